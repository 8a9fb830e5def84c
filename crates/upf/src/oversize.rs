//! Users' packets that are longer than their way allows: IPv4 lets a router cut them up unless their sender forbids it
//! (RFC 791); of all others the sender is told how long they may be (RFC 1191, RFC 8201).
//!
//! A tunnel's outer packets are never fragmented: what does not fit is cut before it is put in.

use std::net::IpAddr;

use crate::ip::{self, Packet, checksum, sum};
use crate::packet::{Arrival, Came, Class, Forward, User};
use crate::packet::{count, counted, find_plain, find_tunnelled, into_tunnel, neighbour, out_of, remark};
use crate::path::Tunnel;
use crate::side::PortId;
use crate::state::State;
use crate::tables::{Action, Rule, Version};

/// What is done about a packet that is too long.
#[derive(Clone, Copy, Debug)]
pub enum Remedy<'t> {
    /// Send it in fragments.
    Cut {
        /// How to send each.
        forward: Forward<'t>,
        /// The neighbour that is to be resolved first.
        unresolved: Option<IpAddr>,
        /// Most octets of a fragment, its IP header included.
        mtu: u16,
    },
    /// Drop it and tell its sender, which is a UE or not.
    Tell {
        /// The data network's port that a UE's packet was to leave by; none for packets from there.
        from_ue_to: Option<PortId>,
        /// Octets that would pass.
        mtu: u16,
    },
    /// Drop it.
    Nothing,
}

/// What to do about a packet that [`crate::packet::decide`] found too long; the arguments are the same. A packet that is
/// cut is counted.
#[cold]
pub fn remedy<'t>(tables: &'t Version, state: &mut State, class: &Class, head: &[u8], now: u64) -> Remedy<'t> {
    let &Class::User { list, arrival, at, len, .. } = class else { return Remedy::Nothing };
    let user = User { list, head, at, len };
    let found = match ip::is_v6(user.bytes()) {
        Some(false) => remedy_for::<false>(tables, state, &user, arrival, now),
        Some(true) => remedy_for::<true>(tables, state, &user, arrival, now),
        None => None,
    };
    found.unwrap_or(Remedy::Nothing)
}

fn remedy_for<'t, const V6: bool>(
    tables: &'t Version,
    state: &mut State,
    user: &User<'_>,
    arrival: Arrival,
    now: u64,
) -> Option<Remedy<'t>> {
    let packet = user.packet::<V6>().ok()?;
    let came = Came::of(arrival, user.head, user.at);
    let rule = match arrival {
        Arrival::Plain => find_plain(tables, user, &packet)?,
        Arrival::Tunnelled { v6, .. } | Arrival::Extended { v6 } => {
            find_tunnelled(tables, user, &packet, v6, came.flow).ok()?
        }
        Arrival::EndMarker { .. } => return None,
    };
    let rule = rule.substitute(tables, packet.len()).unwrap_or(rule);
    if came.must_go_on && matches!(rule.action(tables), Action::Relay(_)) {
        // What its tunnel's header tells, a PDCP PDU number say, is of one packet and not of its fragments. What nobody needs to
        // understand, and sequence numbers, they are sent without.
        return None;
    }
    let (mtu, forward) = way(tables, rule, &packet, user.at, came.flow)?;
    if packet.may_be_fragmented() {
        let unresolved = (!forward.resolved).then(|| neighbour(tables, &forward, user.bytes()));
        count(tables, state, rule, rule.is_uplink(), packet.len(), now);
        return Some(Remedy::Cut { forward, unresolved, mtu });
    }
    Some(match rule.action(tables) {
        Action::Route(port) | Action::RouteMarked(port, _) => Remedy::Tell { from_ue_to: Some(port), mtu },
        Action::Tunnel(_) => Remedy::Tell { from_ue_to: None, mtu },
        // A tunnel into another one has no way back for its packets' senders.
        _ => Remedy::Nothing,
    })
}

/// The longest packet that gets through, and what would be done with it.
fn way<'t, const V6: bool>(
    tables: &'t Version,
    rule: Rule<'t>,
    packet: &Packet<'_, V6>,
    at: u16,
    flow: Option<u8>,
) -> Option<(u16, Forward<'t>)> {
    let counted = counted(tables, rule);
    let into =
        |tunnel: Tunnel| (tables.path(tunnel.path).inner_max(), into_tunnel(tables, at, packet.len(), tunnel, counted));
    Some(match rule.action(tables) {
        Action::Route(port) => (tables.side(port).mtu as u16, out_of(tables, port, packet, at, counted).ok()?),
        Action::RouteMarked(port, marking) => {
            (tables.side(port).mtu as u16, remark(out_of(tables, port, packet, at, counted).ok()?, marking))
        }
        Action::Tunnel(tunnel) => into(tunnel),
        Action::Relay(relay) => into(relay.tunnel(flow)),
        Action::Drop(_) | Action::Buffer(_) => return None,
    })
}

/// Most octets of a message that tells of a packet over IPv4 (RFC 1812, 4.3.2.3).
pub const TOLD_V4_MAX: usize = 576;
/// Most octets of a message that tells of a packet over IPv6 (RFC 4443, 3.2).
pub const TOLD_V6_MAX: usize = 1_280;
/// Most octets of an IPv4 header.
pub const IPV4_HEADER_MAX: usize = 60;
const MORE_FRAGMENTS: u8 = 0x20;

/// Cuts a whole IPv4 packet into fragments of at most `mtu` octets (RFC 791, 3.2), and hands out header and payload of each; of one
/// that fits its own. False, and nothing handed out, if `mtu` leaves no room for payload, or the packet is none.
pub fn fragment(packet: &[u8], mtu: usize, mut each: impl FnMut(&[u8], &[u8])) -> bool {
    let Ok(whole) = Packet::<false>::parse(packet, packet.len()) else { return false };
    let (first, payload) = packet[..whole.len()].split_at(whole.header_len());
    if whole.len() <= mtu {
        each(first, payload);
        return true;
    }
    let room = mtu.saturating_sub(first.len()) & !7;
    if room == 0 {
        return false;
    }
    let mut later = [0; IPV4_HEADER_MAX];
    let later_len = later_header(first, &mut later);
    let more_behind = first[6] & MORE_FRAGMENTS;
    let begin = u16::from_be_bytes([first[6] & 0x1f, first[7]]);
    let last = payload.len().div_ceil(room).saturating_sub(1);
    for (number, piece) in payload.chunks(room).enumerate() {
        let mut header = [0; IPV4_HEADER_MAX];
        let template = if number == 0 { first } else { &later[..later_len] };
        let header = &mut header[..template.len()];
        header.copy_from_slice(template);
        let len = (header.len() + piece.len()) as u16;
        header[2..4].copy_from_slice(&len.to_be_bytes());
        let [high, low] = (begin + (number * room / 8) as u16).to_be_bytes();
        let more = if number < last { MORE_FRAGMENTS } else { more_behind };
        header[6..8].copy_from_slice(&[more | high & 0x1f, low]);
        header[10..12].fill(0);
        let sum = checksum(sum(header));
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        each(header, piece);
    }
    true
}

/// The header of fragments behind the first, which has only the options that are to be copied. Returns its length.
fn later_header(first: &[u8], header: &mut [u8; IPV4_HEADER_MAX]) -> usize {
    header[..20].copy_from_slice(&first[..20]);
    let mut end = 20;
    let mut options = &first[20..];
    while let Some(&kind) = options.first() {
        let len = match kind {
            0 => break,
            1 => 1,
            _ => options.get(1).map_or(0, |&len| usize::from(len)),
        };
        // An option with a length that cannot be ends what is understood of them.
        let Some((option, behind)) = options.split_at_checked(len).filter(|_| kind == 1 || len >= 2) else { break };
        if kind & 0x80 != 0 {
            header[end..end + len].copy_from_slice(option);
            end += len;
        }
        options = behind;
    }
    end = end.next_multiple_of(4);
    header[0] = 0x40 | (end / 4) as u8;
    end
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A packet with these options, flags and offset.
    fn packet(options: &[u8], flags: [u8; 2], payload: &[u8]) -> Vec<u8> {
        let header_len = 20 + options.len();
        let mut bytes = vec![0x40 | (header_len / 4) as u8, 7, 0, 0, 0x12, 0x34, flags[0], flags[1], 64, 17, 0, 0];
        bytes.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend(options);
        bytes[2..4].copy_from_slice(&((header_len + payload.len()) as u16).to_be_bytes());
        let sum = checksum(sum(&bytes));
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    fn fragments(packet: &[u8], mtu: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut all = vec![];
        fragment(packet, mtu, |header, payload| all.push((header.to_vec(), payload.to_vec())));
        all
    }

    #[test]
    fn options_that_are_not_to_be_copied_stay_with_the_first_fragment() {
        // No operation, timestamp (68), strict source route (137).
        let options = [1, 68, 4, 0, 0, 137, 3, 4];
        let all = fragments(&packet(&options, [0, 0], &[7; 40]), 44);
        assert_eq!(all[0].0[20..], options);
        assert_eq!(all[1].0[20..], [137, 3, 4, 0]);
        assert_eq!(all.iter().map(|(_, payload)| payload.len()).collect::<Vec<_>>(), [16, 16, 8]);
    }

    #[test]
    fn a_fragment_s_fragments_go_on_where_it_begins_and_ends() {
        let all = fragments(&packet(&[], [0x20, 10], &[7; 24]), 36);
        assert_eq!(all.iter().map(|(header, _)| [header[6], header[7]]).collect::<Vec<_>>(), [[0x20, 10], [0x20, 12]]);
    }

    #[test]
    fn a_packet_that_fits_stays_whole() {
        let whole = packet(&[], [0, 0], &[7; 21]);
        assert_eq!(fragments(&whole, 41), [(whole[..20].to_vec(), whole[20..].to_vec())]);
        assert_eq!(fragments(&whole, 40).len(), 2);
    }

    #[test]
    fn an_mtu_without_room_for_payload_cuts_nothing() {
        assert!(!fragment(&packet(&[], [0, 0], &[7; 24]), 27, |_, _| panic!("nothing is handed out")));
    }

    proptest! {
        #[test]
        fn fragments_fit_and_make_the_packet_again(len in 1usize..3_000, mtu in 28usize..1_500) {
            let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let mut again: Vec<u8> = vec![];
            let all = fragments(&packet(&[], [0, 0], &payload), mtu);
            for (number, (header, piece)) in all.iter().enumerate() {
                let bytes = [&header[..], piece].concat();
                let parsed = Packet::<false>::parse(&bytes, bytes.len()).expect("sound");
                prop_assert!(parsed.checksum_is_right() && parsed.len() == bytes.len() && bytes.len() <= mtu);
                let offset = usize::from(u16::from_be_bytes([header[6] & 0x1f, header[7]])) * 8;
                prop_assert_eq!(offset, again.len());
                prop_assert_eq!(header[6] & 0x20 != 0, number + 1 < all.len());
                again.extend(piece);
            }
            prop_assert_eq!(again, payload);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), mtu in 0usize..200) {
            fragment(&bytes, mtu, |_, _| {});
        }
    }
}
