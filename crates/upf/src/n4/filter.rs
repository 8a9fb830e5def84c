//! Flow descriptions: IPFilterRules (RFC 6733, 4.3.1) within the bounds of TS 29.212, 5.4.2.
//!
//! `permit out PROTOCOL from ADDRESS [PORTS] to ADDRESS [PORTS]`, where PROTOCOL is a number or `ip`, ADDRESS is `any`,
//! `assigned`, an address or a prefix, and PORTS are numbers and ranges with commas between. Options, `deny`, `in` and `!`
//! are not used on N4.

use std::net::IpAddr;
use std::str::SplitAsciiWhitespace;

use crate::rules::{Endpoint, SdfFilter};

/// Most port ranges on one side of a filter.
const MAX_PORT_RANGES: usize = 16;

/// Why a text is not a flow description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// A word other than the one that must be there.
    #[error("`{0}` is missing")]
    Expected(&'static str),
    /// Not a protocol number, nor `ip`.
    #[error("the protocol is neither a number below 256 nor `ip`")]
    Protocol,
    /// Not an address.
    #[error("an address is neither `any`, `assigned`, an address nor a prefix")]
    Address,
    /// Not ports.
    #[error("ports are not numbers and ranges with commas between, or too many")]
    Ports,
    /// One side is IPv4, the other is IPv6.
    #[error("the two sides are of different IP versions")]
    Versions,
    /// There is more after the destination.
    #[error("options are not supported")]
    Options,
}

/// Parses a flow description.
pub fn parse_flow_description(text: &str) -> Result<SdfFilter, FilterError> {
    let mut words = text.split_ascii_whitespace();
    expect(&mut words, "permit")?;
    expect(&mut words, "out")?;
    let protocol = match words.next().ok_or(FilterError::Protocol)? {
        "ip" => None,
        number => Some(decimal(number).ok_or(FilterError::Protocol)?),
    };
    expect(&mut words, "from")?;
    let (from, next) = side(&mut words)?;
    if next != Some("to") {
        return Err(FilterError::Expected("to"));
    }
    let (to, next) = side(&mut words)?;
    if next.is_some() {
        return Err(FilterError::Options);
    }
    match (from.prefix, to.prefix) {
        (Some((a, _)), Some((b, _))) if a.is_ipv4() != b.is_ipv4() => Err(FilterError::Versions),
        _ => Ok(SdfFilter { protocol, from, to, tos: None, spi: None, flow_label: None, id: None }),
    }
}

fn expect(words: &mut SplitAsciiWhitespace, word: &'static str) -> Result<(), FilterError> {
    if words.next() == Some(word) { Ok(()) } else { Err(FilterError::Expected(word)) }
}

/// One side, and the word after it.
fn side<'a>(words: &mut SplitAsciiWhitespace<'a>) -> Result<(Endpoint, Option<&'a str>), FilterError> {
    let prefix = prefix(words.next().ok_or(FilterError::Address)?)?;
    let next = words.next();
    match next.filter(|word| word.starts_with(|c: char| c.is_ascii_digit())) {
        Some(word) => Ok((Endpoint { prefix, ports: ports(word)? }, words.next())),
        None => Ok((Endpoint { prefix, ports: vec![] }, next)),
    }
}

fn prefix(word: &str) -> Result<Option<(IpAddr, u8)>, FilterError> {
    // The UE's address is what the PDR matches anyway.
    if word == "any" || word == "assigned" {
        return Ok(None);
    }
    let (address, length) = word.split_once('/').map_or((word, None), |(address, length)| (address, Some(length)));
    let address: IpAddr = address.parse().map_err(|_| FilterError::Address)?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        None => bits,
        Some(length) => decimal(length).filter(|&length| length <= bits).ok_or(FilterError::Address)?,
    };
    Ok(Some((address, length)))
}

fn ports(word: &str) -> Result<Vec<(u16, u16)>, FilterError> {
    let range = |range: &str| {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        Some((decimal(low)?, decimal(high)?)).filter(|(low, high)| low <= high)
    };
    let ranges: Vec<_> =
        word.split(',').take(MAX_PORT_RANGES + 1).map(range).collect::<Option<_>>().unwrap_or_default();
    if (1..=MAX_PORT_RANGES).contains(&ranges.len()) { Ok(ranges) } else { Err(FilterError::Ports) }
}

/// Digits only: no sign, as Rust's parser would allow.
fn decimal<T: std::str::FromStr>(word: &str) -> Option<T> {
    if word.bytes().all(|b| b.is_ascii_digit()) { word.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any() -> Endpoint {
        Endpoint { prefix: None, ports: vec![] }
    }

    #[test]
    fn flow_descriptions_are_understood() {
        let parsed = |text: &str| parse_flow_description(text).unwrap();
        let all =
            SdfFilter { protocol: None, from: any(), to: any(), tos: None, spi: None, flow_label: None, id: None };
        assert_eq!(parsed("permit out ip from any to assigned"), all);
        assert_eq!(
            parsed("permit out 17 from 203.0.113.0/24 53,8000-8100 to assigned 1024-65535"),
            SdfFilter {
                protocol: Some(17),
                from: Endpoint {
                    prefix: Some(("203.0.113.0".parse().unwrap(), 24)),
                    ports: vec![(53, 53), (8000, 8100)]
                },
                to: Endpoint { prefix: None, ports: vec![(1024, 65535)] },
                tos: None,
                spi: None,
                flow_label: None,
                id: None,
            }
        );
        assert_eq!(
            parsed("permit out 6 from 2001:db8::/32 to any 80").from.prefix,
            Some(("2001:db8::".parse().unwrap(), 32))
        );
        assert_eq!(parsed("permit out 6 from 10.0.0.1 to any").from.prefix, Some(("10.0.0.1".parse().unwrap(), 32)));
    }

    #[test]
    fn what_is_not_a_flow_description_is_told_apart() {
        use FilterError::*;
        for (text, error) in [
            ("", Expected("permit")),
            ("deny out ip from any to assigned", Expected("permit")),
            ("permit in ip from any to assigned", Expected("out")),
            ("permit out", Protocol),
            ("permit out tcp from any to assigned", Protocol),
            ("permit out 256 from any to assigned", Protocol),
            ("permit out +6 from any to assigned", Protocol),
            ("permit out ip any to assigned", Expected("from")),
            ("permit out ip from", Address),
            ("permit out ip from !10.0.0.1 to assigned", Address),
            ("permit out ip from 10.0.0.0/33 to assigned", Address),
            ("permit out ip from 2001:db8::/129 to assigned", Address),
            ("permit out ip from host.example to assigned", Address),
            ("permit out 6 from any 80- to assigned", Ports),
            ("permit out 6 from any 90-80 to assigned", Ports),
            ("permit out 6 from any 80,,81 to assigned", Ports),
            ("permit out 6 from any 65536 to assigned", Ports),
            ("permit out 6 from any 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17 to assigned", Ports),
            ("permit out 6 from any 80", Expected("to")),
            ("permit out ip from 10.0.0.1 to 2001:db8::1", Versions),
            ("permit out ip from any to assigned established", Options),
        ] {
            assert_eq!(parse_flow_description(text), Err(error), "{text}");
        }
    }
}
