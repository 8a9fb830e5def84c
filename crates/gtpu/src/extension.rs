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

    /// Whether a tunnel endpoint that does not know the type must refuse the packet: bit 8 says so.
    pub fn required_of_endpoint(self) -> bool {
        self.0 & 0x80 != 0
    }
}

/// One extension header of a message.
pub(crate) struct Extension<'a> {
    pub kind: ExtensionType,
    /// Its content, without the length and next-type octets: 4 n - 2 octets.
    pub content: &'a [u8],
    /// Where the next one begins.
    pub next_at: usize,
    pub next: ExtensionType,
}

/// Reads the extension header at `at` of a message of `message_len` octets, of which `bytes` are at hand.
#[inline]
pub(crate) fn read(
    bytes: &[u8],
    message_len: usize,
    kind: ExtensionType,
    at: usize,
) -> Result<Extension<'_>, ParseError> {
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
}
