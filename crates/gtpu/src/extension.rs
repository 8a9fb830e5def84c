//! Extension headers (TS 29.281, 5.2): the chain between the header and the payload.

use crate::header::ParseError;

/// Type of an extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExtensionType(pub u8);

impl ExtensionType {
    /// Ends the chain.
    pub const NONE: Self = Self(0x00);
    /// UDP port, in error indications.
    pub const UDP_PORT: Self = Self(0x40);
    /// PDU session container.
    pub const PDU_SESSION: Self = Self(0x85);

    /// PDCP PDU number, of packets on their way from one RAN node to the next (5.2.2.2).
    pub const PDCP_PDU_NUMBER: Self = Self(0xc0);

    /// Whether a tunnel endpoint that does not know the type must refuse the packet: bit 8 says so (5.2.1).
    pub fn required_of_endpoint(self) -> bool {
        self.0 & 0x80 != 0
    }

    /// Whether an intermediate node must refuse the packet, too: both bits say so, and the type is not that of a number which an
    /// intermediate node only has to hand on.
    pub fn required_of_intermediate_node(self) -> bool {
        self.handling() == 0b11 && self != Self::PDCP_PDU_NUMBER
    }

    /// Whether an intermediate node leaves it out of what it passes on.
    pub fn ends_at_intermediate_node(self) -> bool {
        self.handling() == 0b01
    }

    /// Bits 8 and 7, which say what receivers that do not know the type do.
    fn handling(self) -> u8 {
        self.0 >> 6
    }
}

/// One extension header of a message.
pub(crate) struct Extension<'a> {
    pub kind: ExtensionType,
    /// Its content, without the length and next-type octets: 4 n - 2 octets.
    pub content: &'a [u8],
    /// Where the next one begins.
    pub next_at: usize,
    next: ExtensionType,
}

/// The extension headers of a message of `message_len` octets, of which `bytes` are at hand. Ends with the first that is broken.
pub(crate) struct Chain<'a> {
    bytes: &'a [u8],
    message_len: usize,
    kind: ExtensionType,
    at: usize,
}

impl<'a> Chain<'a> {
    /// Those from `at` on, of which the first is of type `kind`.
    #[inline]
    pub(crate) fn new(bytes: &'a [u8], message_len: usize, kind: ExtensionType, at: usize) -> Self {
        Self { bytes, message_len, kind, at }
    }
}

impl<'a> Iterator for Chain<'a> {
    type Item = Result<Extension<'a>, ParseError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.kind == ExtensionType::NONE {
            return None;
        }
        let extension = read(self.bytes, self.message_len, self.kind, self.at);
        (self.kind, self.at) =
            extension.as_ref().map_or((ExtensionType::NONE, self.at), |extension| (extension.next, extension.next_at));
        Some(extension)
    }
}

/// Reads the extension header at `at` of a message of `message_len` octets, of which `bytes` are at hand.
#[inline]
fn read(bytes: &[u8], message_len: usize, kind: ExtensionType, at: usize) -> Result<Extension<'_>, ParseError> {
    // The chain may neither leave the message nor what we hold of it; the first is the sender's fault.
    let within = |end: usize| match () {
        () if end > message_len => Err(ParseError::ExtensionLength),
        () if end > bytes.len() => Err(ParseError::HeaderTooLong),
        () => Ok(()),
    };
    within(at + 1)?;
    let len = usize::from(bytes[at]) * 4;
    if len == 0 {
        return Err(ParseError::ExtensionLength);
    }
    let next_at = at + len;
    within(next_at)?;
    Ok(Extension { kind, content: &bytes[at + 1..next_at - 1], next_at, next: ExtensionType(bytes[next_at - 1]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_bit_tells_whether_an_endpoint_must_understand() {
        let (service_class, pdcp) = (ExtensionType(0x20), ExtensionType(0xc0));
        assert!(pdcp.required_of_endpoint() && ExtensionType::PDU_SESSION.required_of_endpoint());
        assert!(!service_class.required_of_endpoint() && !ExtensionType::UDP_PORT.required_of_endpoint());
    }

    #[test]
    fn the_two_highest_bits_tell_what_an_intermediate_node_does() {
        let all = || (1..=u8::MAX).map(ExtensionType);
        let left_out: Vec<_> = all().filter(|kind| kind.ends_at_intermediate_node()).collect();
        assert_eq!(left_out, (0x40..0x80).map(ExtensionType).collect::<Vec<_>>());
        let refused: Vec<_> = all().filter(|kind| kind.required_of_intermediate_node()).collect();
        assert_eq!(refused, (0xc1..=u8::MAX).map(ExtensionType).collect::<Vec<_>>());
    }
}
