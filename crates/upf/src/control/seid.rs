//! A SEID as operators read and write it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A session endpoint identifier (TS 29.244, 5.6.1). In JSON it is text, for many readers of JSON round numbers over 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Seid(pub u64);

/// What is no SEID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSeid;

impl fmt::Display for Seid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// `0x65f01a7300000001`, or decimal.
impl FromStr for Seid {
    type Err = NoSeid;

    fn from_str(text: &str) -> Result<Self, NoSeid> {
        let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
        let number =
            digits.starts_with(|first: char| first.is_ascii_hexdigit()).then(|| u64::from_str_radix(digits, radix));
        number.and_then(Result::ok).map(Self).ok_or(NoSeid)
    }
}

impl From<Seid> for String {
    fn from(seid: Seid) -> Self {
        seid.to_string()
    }
}

impl TryFrom<String> for Seid {
    type Error = NoSeid;

    fn try_from(text: String) -> Result<Self, NoSeid> {
        text.parse()
    }
}

impl fmt::Display for NoSeid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is no SEID")
    }
}

impl std::error::Error for NoSeid {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seid_is_text_in_json_and_none_of_its_bits_is_lost() {
        let seid = Seid(0x65f0_1a73_0000_0001);
        let text = serde_json::to_string(&seid).unwrap();
        assert_eq!(text, "\"0x65f01a7300000001\"");
        assert_eq!(serde_json::from_str::<Seid>(&text).unwrap(), seid);
    }

    #[test]
    fn a_seid_is_read_in_hexadecimal_and_in_decimal() {
        for (text, number) in [("0x51f", 0x51f), ("1311", 1311), ("0xffffffffffffffff", u64::MAX), ("0", 0)] {
            assert_eq!(text.parse(), Ok(Seid(number)), "{text}");
        }
        for text in ["", "0x", "51f", "-1", "+1", "0x+1", "0x10000000000000000", "10.60.0.1"] {
            assert_eq!(text.parse::<Seid>(), Err(NoSeid), "{text}");
        }
    }
}
