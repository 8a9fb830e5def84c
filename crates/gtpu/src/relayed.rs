//! Headers of G-PDUs that an intermediate node passes on from one tunnel into another (TS 29.281, 5.1 and 5.2.1).

use crate::extension::{Chain, Extension, ExtensionType};
use crate::header::{BASE_LEN, E, MessageType, OPTIONAL_LEN, PN, ParseError, S, VERSION_1_GTP};
use crate::pdu_session::PduSession;

/// Octets of the longest header that a [`RelayedHeader`] can be.
pub const RELAYED_MAX_LEN: usize = 256;

/// The header that a G-PDU gets in its next tunnel, with what goes on of the one that it came with: sequence number and N-PDU number,
/// and all extension headers, as they are and in their order, that do not end at intermediate nodes. A PDU session container comes first,
/// as receivers expect it (5.2.1), and once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayedHeader {
    bytes: [u8; RELAYED_MAX_LEN],
    len: u16,
}

impl RelayedHeader {
    /// What becomes of `came`, the whole header of a G-PDU and nothing behind it, in a tunnel whose packets have this PDU session
    /// container. Where it came with one of the same direction, what that says beside the QoS flow goes on.
    pub fn new(came: &[u8], container: Option<PduSession>) -> Result<Self, ParseError> {
        let Some((fixed, optional)) = came.split_first_chunk::<BASE_LEN>() else { return Err(ParseError::Truncated) };
        let numbers = fixed[0] & (S | PN);
        let mut header = Self { bytes: [0; RELAYED_MAX_LEN], len: (BASE_LEN + OPTIONAL_LEN) as u16 };
        header.bytes[..2].copy_from_slice(&[VERSION_1_GTP | numbers, MessageType::GPDU.0]);
        let first = header.take_optional(fixed[0], optional)?;
        let chain = || Chain::new(came, came.len(), first, BASE_LEN + OPTIONAL_LEN);
        if let Some(container) = container {
            header.push_container(container, chain())?;
        }
        for extension in chain() {
            let Extension { kind, content, .. } = extension?;
            if kind != ExtensionType::PDU_SESSION && !kind.ends_at_intermediate_node() {
                header.push(kind, content)?;
            }
        }
        if header.bytes[0] == VERSION_1_GTP {
            header.len = BASE_LEN as u16;
        }
        Ok(header)
    }

    /// Takes over the numbers that mean something, and tells the type of the first extension header.
    fn take_optional(&mut self, flags: u8, optional: &[u8]) -> Result<ExtensionType, ParseError> {
        if flags & (E | S | PN) == 0 {
            return Ok(ExtensionType::NONE);
        }
        let Some(&[s0, s1, number, next]) = optional.first_chunk::<OPTIONAL_LEN>() else {
            return Err(ParseError::Truncated);
        };
        if flags & S != 0 {
            self.bytes[BASE_LEN..BASE_LEN + 2].copy_from_slice(&[s0, s1]);
        }
        if flags & PN != 0 {
            self.bytes[BASE_LEN + 2] = number;
        }
        Ok(if flags & E != 0 { ExtensionType(next) } else { ExtensionType::NONE })
    }

    fn push_container(&mut self, container: PduSession, chain: Chain<'_>) -> Result<(), ParseError> {
        let containers = chain.filter(|extension| match extension {
            Ok(extension) => extension.kind == ExtensionType::PDU_SESSION,
            Err(_) => true,
        });
        // The last one counts, as for whoever parses the header.
        let came = containers.last().transpose()?.map(|extension| extension.content);
        let is_same = |content: &&[u8]| PduSession::parse(content).is_ok_and(|is| is.direction == container.direction);
        let content_at = self.len() + 1;
        match came.filter(is_same) {
            Some(content) => self.push(ExtensionType::PDU_SESSION, content)?,
            None => self.push(ExtensionType::PDU_SESSION, &container.write()[1..PduSession::LEN - 1])?,
        }
        container.overwrite(&mut self.bytes[content_at..]);
        Ok(())
    }

    /// Puts an extension header behind all others.
    fn push(&mut self, kind: ExtensionType, content: &[u8]) -> Result<(), ParseError> {
        let begin = self.len();
        let end = begin + 1 + content.len() + 1;
        if end > RELAYED_MAX_LEN {
            return Err(ParseError::HeaderTooLong);
        }
        self.bytes[0] |= E;
        // What is last says what follows: the optional part, or an extension header.
        self.bytes[begin - 1] = kind.0;
        self.bytes[begin] = ((end - begin) / 4) as u8;
        self.bytes[begin + 1..end - 1].copy_from_slice(content);
        self.len = end as u16;
        Ok(())
    }

    /// Octets of the header. (It is never empty.)
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Writes the header, towards `teid` and for a payload of `payload_len` octets, to the start of `to`.
    ///
    /// # Panics
    /// If `to` is shorter than [`RelayedHeader::len`].
    pub fn write(&self, teid: u32, payload_len: usize, to: &mut [u8]) {
        let len = self.len();
        to[..len].copy_from_slice(&self.bytes[..len]);
        to[2..4].copy_from_slice(&((len - BASE_LEN + payload_len) as u16).to_be_bytes());
        to[4..8].copy_from_slice(&teid.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::header::parse_at_intermediate_node;
    use crate::pdu_session::Direction;

    const TEID: u32 = 0x1122_3344;

    /// An extension header's type and all of it but the next one's type.
    type Raw = (u8, Vec<u8>);

    /// A G-PDU's header as somebody may have sent it.
    fn came(numbers: u8, chain: &[Raw]) -> Vec<u8> {
        let mut bytes = vec![VERSION_1_GTP | numbers | if chain.is_empty() { 0 } else { E }, 255, 0, 0, 0, 0, 0, 9];
        if bytes[0] & (E | S | PN) != 0 {
            bytes.extend([0x12, 0x34, 0x56]);
            for (kind, raw) in chain {
                bytes.push(*kind);
                bytes.extend(raw);
            }
            bytes.push(0);
        }
        let len = (bytes.len() - BASE_LEN) as u16;
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        bytes
    }

    fn relayed(came: &[u8], container: Option<PduSession>) -> Vec<u8> {
        let header = RelayedHeader::new(came, container).unwrap();
        let mut bytes = vec![0xff; header.len()];
        header.write(TEID, 0, &mut bytes);
        bytes
    }

    /// The extension headers of a header, by no code of this crate.
    fn chain(bytes: &[u8]) -> Vec<Raw> {
        let (mut all, mut at) = (vec![], 12);
        while bytes[0] & E != 0 && bytes[at - 1] != 0 {
            let end = at + usize::from(bytes[at]) * 4;
            all.push((bytes[at - 1], bytes[at..end - 1].to_vec()));
            at = end;
        }
        assert_eq!(at.min(bytes.len()), bytes.len(), "{bytes:x?}");
        all
    }

    fn uplink(qfi: u8) -> PduSession {
        PduSession { direction: Direction::Uplink, qfi, rqi: false }
    }

    fn downlink(qfi: u8) -> PduSession {
        PduSession { direction: Direction::Downlink, qfi, rqi: false }
    }

    #[test]
    fn what_intermediate_nodes_need_not_understand_goes_on_behind_the_container() {
        let pdcp = (0xc0, vec![1, 0x12, 0x34]);
        let service_class = (0x20, vec![1, 7, 0]);
        let came = came(0, &[pdcp.clone(), (0x85, vec![1, 0, 5]), (0x40, vec![1, 8, 0x68]), service_class.clone()]);
        let sent = relayed(&came, Some(downlink(6)));
        assert_eq!(sent[..12], [0x34, 255, 0, 16, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0x85]);
        assert_eq!(chain(&sent), [(0x85, vec![1, 0, 6]), pdcp, service_class]);
    }

    #[test]
    fn numbers_go_on_where_their_flags_say_that_they_mean_something() {
        let numbers = |flags| relayed(&came(flags, &[(0x20, vec![1, 7, 0])]), None)[..11].to_vec();
        assert_eq!(numbers(S)[..1], [0x36]);
        assert_eq!(numbers(S)[8..], [0x12, 0x34, 0]);
        assert_eq!((numbers(PN)[0], &numbers(PN)[8..]), (0x35, &[0, 0, 0x56][..]));
        assert_eq!((numbers(S | PN)[0], &numbers(S | PN)[8..]), (0x37, &[0x12, 0x34, 0x56][..]));
        assert_eq!(numbers(0)[8..], [0, 0, 0]);
    }

    #[test]
    fn a_header_of_which_nothing_goes_on_is_the_shortest() {
        let nothing = relayed(&came(0, &[(0x40, vec![1, 8, 0x68])]), None);
        assert_eq!(nothing, [0x30, 255, 0, 0, 0x11, 0x22, 0x33, 0x44]);
    }

    #[test]
    fn a_container_of_the_same_direction_keeps_what_it_says_beside_the_flow() {
        // Paging policy and reflective QoS, downlink; delay measurement, uplink.
        let paging = came(0, &[(0x85, vec![2, 0x00, 0xc5, 0x60, 0, 0, 0])]);
        assert_eq!(chain(&relayed(&paging, Some(downlink(6)))), [(0x85, vec![2, 0x00, 0x86, 0x60, 0, 0, 0])]);
        assert_eq!(chain(&relayed(&paging, Some(uplink(6)))), [(0x85, vec![1, 0x10, 6])]);
        let delays = came(0, &[(0x85, vec![2, 0x18, 0x45, 1, 2, 3, 4])]);
        assert_eq!(chain(&relayed(&delays, Some(uplink(6)))), [(0x85, vec![2, 0x18, 0x46, 1, 2, 3, 4])]);
        assert_eq!(chain(&relayed(&delays, None)), []);
    }

    #[test]
    fn a_header_that_would_be_too_long_is_none() {
        let came = came(0, &vec![(0x20, vec![1, 7, 0]); 61]);
        assert_eq!(came.len(), RELAYED_MAX_LEN);
        assert_eq!(RelayedHeader::new(&came, None).unwrap().len(), RELAYED_MAX_LEN);
        assert_eq!(RelayedHeader::new(&came, Some(uplink(1))), Err(ParseError::HeaderTooLong));
    }

    fn raw() -> impl Strategy<Value = Raw> {
        let kinds = prop_oneof![Just(0xc0), Just(0x85), 1_u8..0xc0];
        (kinds, 1_u8..5, vec(any::<u8>(), 20), 0_u8..2, any::<u8>()).prop_map(
            |(kind, units, octets, direction, flow)| {
                let mut raw = octets;
                raw.truncate(usize::from(units) * 4 - 1);
                raw[0] = units;
                if kind == 0x85 {
                    (raw[1], raw[2]) = (raw[1] & 0xf | direction << 4, flow);
                }
                (kind, raw)
            },
        )
    }

    fn container() -> impl Strategy<Value = PduSession> {
        (0_u8..64, any::<bool>(), any::<bool>()).prop_map(|(qfi, rqi, is_downlink)| match is_downlink {
            true => PduSession { rqi, ..downlink(qfi) },
            false => uplink(qfi),
        })
    }

    proptest! {
        #[test]
        fn headers_that_go_on_are_the_same_octets_in_the_same_order(
            numbers in 0_u8..4,
            raws in vec(raw(), 0..12),
            container in option::of(container()),
        ) {
            let came = came(numbers, &raws);
            let sent = relayed(&came, container);
            let goes_on = |(kind, _): &&Raw| *kind != 0x85 && kind >> 6 != 0b01;
            let expected: Vec<_> = raws.iter().filter(goes_on).cloned().collect();
            let mut seen = chain(&sent);
            let own = container.map(|_| seen.remove(0));
            prop_assert_eq!(seen, expected);
            prop_assert_eq!(own.map(|(kind, _)| kind), container.map(|_| 0x85));
            let header = parse_at_intermediate_node(&sent, sent.len()).unwrap();
            prop_assert_eq!((header.teid, header.pdu_session, header.payload_len), (TEID, container, 0));
            prop_assert_eq!(header.sequence, (numbers & S != 0).then_some(0x1234));
            prop_assert_eq!(sent[0] & PN, numbers & PN);
        }

        #[test]
        fn any_header_that_is_parsed_is_passed_on_or_too_long(
            mut bytes in vec(prop_oneof![any::<u8>(), 0_u8..4, Just(0x85), Just(0xc0)], 8..600),
            container in option::of(container()),
        ) {
            bytes[0] = 0x30 | bytes[0] & 7;
            let len = (bytes.len() - BASE_LEN) as u16;
            bytes[2..4].copy_from_slice(&len.to_be_bytes());
            let _ = RelayedHeader::new(&bytes, container);
            if let Ok(header) = parse_at_intermediate_node(&bytes, bytes.len()) {
                match RelayedHeader::new(&bytes[..header.header_len], container) {
                    Ok(relayed) => prop_assert!(relayed.len() <= header.header_len.max(12) + PduSession::LEN),
                    Err(error) => prop_assert_eq!(error, ParseError::HeaderTooLong),
                }
            }
        }
    }
}
