//! Framing of information elements (TS 29.244, 8.1): types, lengths, nesting. Nothing here knows what an element means.

use rs_pfcp::error::PfcpError;
use rs_pfcp::ie::IeType;

use crate::fault::{Cause, Fault};

/// Types from here on belong to vendors; their values begin with an enterprise ID.
const VENDOR_SPECIFIC: u16 = 0x8000;

/// An information element, still encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ie<'a> {
    /// Type.
    pub kind: u16,
    /// Value.
    pub value: &'a [u8],
}

/// The elements of a message or of a grouped element, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ies<'a>(Vec<Ie<'a>>);

impl<'a> Ies<'a> {
    /// Takes `bytes` apart. An element that ends beyond them is blamed for its length (7.6.7).
    pub fn parse(mut bytes: &'a [u8]) -> Result<Self, Fault> {
        let mut elements = vec![];
        while !bytes.is_empty() {
            let (ie, rest) = Ie::split(bytes)?;
            elements.push(ie);
            bytes = rest;
        }
        Ok(Self(elements))
    }

    /// The first element of type `kind`. Where only one is expected others are ignored (7.6.10).
    pub fn first(&self, kind: IeType) -> Option<Ie<'a>> {
        self.all(kind).next()
    }

    /// All elements of type `kind`.
    pub fn all(&self, kind: IeType) -> impl Iterator<Item = Ie<'a>> {
        self.0.iter().copied().filter(move |ie| ie.kind == kind as u16)
    }

    /// The first element of type `kind`, which the standard marks as mandatory here.
    pub fn mandatory(&self, kind: IeType) -> Result<Ie<'a>, Fault> {
        self.first(kind).ok_or(Fault::of(Cause::MandatoryIeMissing, kind))
    }

    /// Types of the elements that are of none of the types `known`.
    pub fn others(&self, known: &[IeType]) -> Vec<u16> {
        let is_known = |ie: &&Ie| known.iter().any(|&kind| kind as u16 == ie.kind);
        self.0.iter().filter(|ie| !is_known(ie)).map(|ie| ie.kind).collect()
    }
}

impl<'a> Ie<'a> {
    fn split(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Fault> {
        let &[a, b, ref rest @ ..] = bytes else { return Err(Fault::new(Cause::InvalidLength)) };
        let kind = u16::from_be_bytes([a, b]);
        let wrong_length = Fault::of_raw(Cause::InvalidLength, kind);
        let &[c, d, ref rest @ ..] = rest else { return Err(wrong_length) };
        let length = usize::from(u16::from_be_bytes([c, d]));
        let (value, rest) = rest.split_at_checked(length).ok_or(wrong_length)?;
        if kind >= VENDOR_SPECIFIC && value.len() < 2 {
            return Err(wrong_length);
        }
        Ok((Self { kind, value }, rest))
    }

    /// The elements of a grouped element. An empty group lacks what it should have, so its length is wrong only if that
    /// is mandatory; the caller finds out. What is too short to be an element is the group's fault.
    pub fn group(&self) -> Result<Ies<'a>, Fault> {
        Ies::parse(self.value).map_err(|fault| Fault { offending_ie: fault.offending_ie.or(Some(self.kind)), ..fault })
    }

    /// A fault to blame on this element.
    pub fn fault(&self, cause: Cause) -> Fault {
        Fault::of_raw(cause, self.kind)
    }

    /// The value's first octet.
    pub fn octet(&self) -> Result<u8, Fault> {
        self.value.first().copied().ok_or(self.fault(Cause::InvalidLength))
    }

    /// The value's first two octets.
    pub fn u16(&self) -> Result<u16, Fault> {
        self.value.first_chunk().map(|&octets| u16::from_be_bytes(octets)).ok_or(self.fault(Cause::InvalidLength))
    }

    /// The value's first four octets. More are for later versions of the standard.
    pub fn u32(&self) -> Result<u32, Fault> {
        self.value.first_chunk().map(|&octets| u32::from_be_bytes(octets)).ok_or(self.fault(Cause::InvalidLength))
    }
}

/// Decodes a value by a decoder of `rs-pfcp`; what is wrong with it is blamed on the element.
pub(crate) fn decode<T>(ie: Ie, decoder: fn(&[u8]) -> Result<T, PfcpError>) -> Result<T, Fault> {
    decoder(ie.value).map_err(|error| match error {
        PfcpError::InvalidLength { .. } | PfcpError::ZeroLengthNotAllowed { .. } => ie.fault(Cause::InvalidLength),
        _ => ie.fault(Cause::MandatoryIeIncorrect),
    })
}

/// Appending elements to an encoded sequence of them.
pub(crate) trait Elements {
    /// Appends an element with the encoded `value`.
    fn element(&mut self, kind: IeType, value: &[u8]);

    /// Appends a grouped element, whose elements `fill` appends.
    fn grouped(&mut self, kind: IeType, fill: impl FnOnce(&mut Vec<u8>));
}

impl Elements for Vec<u8> {
    fn element(&mut self, kind: IeType, value: &[u8]) {
        let length = u16::try_from(value.len()).expect("an element's value fits its length field");
        self.extend_from_slice(&(kind as u16).to_be_bytes());
        self.extend_from_slice(&length.to_be_bytes());
        self.extend_from_slice(value);
    }

    fn grouped(&mut self, kind: IeType, fill: impl FnOnce(&mut Vec<u8>)) {
        let mut value = vec![];
        fill(&mut value);
        self.element(kind, &value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_that_ends_beyond_its_container_is_blamed() {
        let whole = [0, 96, 0, 4, 1, 2, 3, 4, 0, 60, 0, 5, 0, 10, 4, 0, 2];
        assert_eq!(Ies::parse(&whole).unwrap().mandatory(IeType::NodeId).unwrap().value, [0, 10, 4, 0, 2]);
        for len in 10..whole.len() {
            let fault = Fault::of(Cause::InvalidLength, IeType::NodeId);
            assert_eq!(Ies::parse(&whole[..len]), Err(fault), "cut to {len} octets");
        }
        assert_eq!(Ies::parse(&whole[..9]), Err(Fault::new(Cause::InvalidLength)));
    }

    #[test]
    fn of_repeated_elements_the_first_counts() {
        let twice = [0, 56, 0, 2, 0, 7, 0, 56, 0, 2, 0, 8];
        assert_eq!(Ies::parse(&twice).unwrap().first(IeType::PdrId).unwrap().u16(), Ok(7));
    }

    #[test]
    fn a_vendors_element_has_an_enterprise_id() {
        assert!(Ies::parse(&[0x80, 1, 0, 2, 0, 9]).is_ok());
        assert_eq!(Ies::parse(&[0x80, 1, 0, 1, 0]), Err(Fault::of_raw(Cause::InvalidLength, 0x8001)));
    }
}
