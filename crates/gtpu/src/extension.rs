//! Extension headers (TS 29.281, 5.2): the chain between the header and the payload.

use crate::header::ParseError;

/// Type of an extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExtensionType(pub u8);

/// What a node must do with an extension header that it does not know: bits 8 and 7 of the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comprehension {
    /// Not required; an intermediate node forwards it.
    NotRequired,
    /// Not required; an intermediate node takes it out.
    NotRequiredDiscard,
    /// Required of the endpoint; an intermediate node forwards it.
    Endpoint,
    /// Required of every node.
    Everyone,
}

impl ExtensionType {
    /// Ends the chain.
    pub const NONE: Self = Self(0x00);
    /// Service class indicator.
    pub const SERVICE_CLASS: Self = Self(0x20);
    /// UDP port, in error indications.
    pub const UDP_PORT: Self = Self(0x40);
    /// RAN container.
    pub const RAN_CONTAINER: Self = Self(0x81);
    /// Long PDCP PDU number.
    pub const LONG_PDCP: Self = Self(0x82);
    /// Xw RAN container.
    pub const XW_RAN_CONTAINER: Self = Self(0x83);
    /// NR RAN container.
    pub const NR_RAN_CONTAINER: Self = Self(0x84);
    /// PDU session container.
    pub const PDU_SESSION: Self = Self(0x85);
    /// PDCP PDU number.
    pub const PDCP: Self = Self(0xc0);

    /// What the type asks of a node that does not know it.
    pub fn comprehension(self) -> Comprehension {
        match self.0 >> 6 {
            0b00 => Comprehension::NotRequired,
            0b01 => Comprehension::NotRequiredDiscard,
            0b10 => Comprehension::Endpoint,
            _ => Comprehension::Everyone,
        }
    }

    /// Whether a tunnel endpoint that does not know the type must refuse the packet.
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
    fn the_two_highest_bits_tell_who_must_understand() {
        assert_eq!(ExtensionType::SERVICE_CLASS.comprehension(), Comprehension::NotRequired);
        assert_eq!(ExtensionType::UDP_PORT.comprehension(), Comprehension::NotRequiredDiscard);
        assert_eq!(ExtensionType::PDU_SESSION.comprehension(), Comprehension::Endpoint);
        assert_eq!(ExtensionType::PDCP.comprehension(), Comprehension::Everyone);
        assert!(ExtensionType::PDCP.required_of_endpoint() && !ExtensionType::UDP_PORT.required_of_endpoint());
    }
}
