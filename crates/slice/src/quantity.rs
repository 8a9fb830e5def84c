//! Quantities as a descriptor writes them, `100us`, `256MiB`, `1Gbps`: a number and a unit, held as a plain integer.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

/// Why a text is not a value of the kind that its field wants, and how to write it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ValueError {
    /// What is wrong, as a phrase: `"5 parsecs" has no known unit`.
    pub reason: String,
    /// What to write instead.
    pub remedy: String,
}

impl ValueError {
    pub(crate) fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { reason: reason.into(), remedy: remedy.into() }
    }
}

/// The units of one quantity, smallest first, each with its size in the smallest.
type Units = &'static [(&'static str, u64)];

const TIME: Units = &[("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
const BYTES: Units = &[
    ("B", 1),
    ("kB", 1_000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
    ("TB", 1_000_000_000_000),
    ("TiB", 1 << 40),
];
const BITS: Units =
    &[("bps", 1), ("kbps", 1_000), ("Mbps", 1_000_000), ("Gbps", 1_000_000_000), ("Tbps", 1_000_000_000_000)];

/// Reads `digits[.digits]unit` exactly: the result must be a whole number of the smallest unit and fit 64 bits.
fn parse(text: &str, units: Units, what: &str, example: &str) -> Result<u64, ValueError> {
    let remedy = || {
        let names: Vec<_> = units.iter().map(|(name, _)| *name).collect();
        format!("write a number and one of {}, for example {example}", names.join(", "))
    };
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    if number.is_empty() {
        return Err(ValueError::new(format!("{text:?} is no {what}: it does not begin with a number"), remedy()));
    }
    if unit.is_empty() {
        return Err(ValueError::new(format!("{text:?} has no unit"), remedy()));
    }
    let Some(&(_, size)) = units.iter().find(|(name, _)| *name == unit) else {
        let meant = |name: &&(&str, u64)| {
            let plain = unit.trim().replace(['\u{b5}', '\u{3bc}'], "u");
            [plain.clone(), format!("{plain}B"), format!("{plain}ps")].iter().any(|u| u.eq_ignore_ascii_case(name.0))
        };
        let hint = units.iter().find(meant).map_or_else(remedy, |(name, _)| format!("write {number}{name}"));
        return Err(ValueError::new(format!("{unit:?} is not a unit of {what}"), hint));
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |s: &str| s.parse::<u128>().ok().filter(|_| s.len() <= 30);
    let scaled = digits(whole).zip(digits(fraction)).and_then(|(w, f)| {
        let ten = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        let f = f.checked_mul(size.into())?;
        let w = w.checked_mul(size.into())?;
        f.is_multiple_of(ten).then(|| w.checked_add(f / ten))?
    });
    let Some(value) = scaled else {
        return Err(ValueError::new(format!("{text:?} is not a whole number of {}", units[0].0), remedy()));
    };
    u64::try_from(value).map_err(|_| ValueError::new(format!("{text:?} is larger than any {what} can be"), remedy()))
}

/// Writes a value with the largest unit of which it is a whole multiple.
fn write(value: u64, units: Units, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let fits = |(_, size): &&(&str, u64)| *size == 1 || (value >= *size && value.is_multiple_of(*size));
    let (name, size) = units.iter().filter(fits).max_by_key(|(_, size)| *size).unwrap_or(&units[0]);
    write!(f, "{}{name}", value / size)
}

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $units:ident, $what:literal, $example:literal, $pattern:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl FromStr for $name {
            type Err = ValueError;
            fn from_str(text: &str) -> Result<Self, ValueError> {
                parse(text, $units, $what, $example).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write(self.0, $units, f)
            }
        }

        text_form!($name, $what, $pattern);
    };
}

/// Serde and JSON Schema of a type that a descriptor writes as a string: `format` names its parser.
macro_rules! text_form {
    ($name:ident, $format:literal, $pattern:literal) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "format": $format, "pattern": $pattern})
            }
        }
    };
}
pub(crate) use text_form;

quantity! {
    /// A latency, in nanoseconds: `100us`, `1.5ms`.
    Latency, TIME, "latency", "100us", r"^[0-9]+(\.[0-9]+)?(ns|us|ms|s)$"
}
quantity! {
    /// An amount of memory, in bytes: `256MiB`, `1GB`.
    ByteSize, BYTES, "size", "256MiB", r"^[0-9]+(\.[0-9]+)?(B|kB|KiB|MB|MiB|GB|GiB|TB|TiB)$"
}
quantity! {
    /// A bit rate, in bits per second: `1Gbps`, `2.5Gbps`.
    BitRate, BITS, "rate", "1Gbps", r"^[0-9]+(\.[0-9]+)?(bps|kbps|Mbps|Gbps|Tbps)$"
}

impl Latency {
    /// The same span of time for the standard library.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_is_read_exactly_and_written_shortest() {
        assert_eq!("100us".parse(), Ok(Latency(100_000)));
        assert_eq!("1.5ms".parse(), Ok(Latency(1_500_000)));
        assert_eq!("256MiB".parse(), Ok(ByteSize(256 << 20)));
        assert_eq!("2.5Gbps".parse(), Ok(BitRate(2_500_000_000)));
        for text in ["100us", "0ns", "1s", "1001ns"] {
            assert_eq!(text.parse::<Latency>().unwrap().to_string(), text);
        }
        assert_eq!(ByteSize(1 << 30).to_string(), "1GiB");
        assert_eq!(ByteSize(5_000_000).to_string(), "5MB");
    }

    #[test]
    fn what_is_no_quantity_says_why() {
        let why = |text: &str| text.parse::<Latency>().unwrap_err();
        assert_eq!(why("100").reason, "\"100\" has no unit");
        assert_eq!(why("fast").reason, "\"fast\" is no latency: it does not begin with a number");
        assert_eq!(why("1min").reason, "\"min\" is not a unit of latency");
        assert_eq!(why("1MS").remedy, "write 1ms");
        assert_eq!(why("1 ms").remedy, "write 1ms");
        assert_eq!(why("1\u{b5}s").remedy, "write 1us");
        assert_eq!("256Mi".parse::<ByteSize>().unwrap_err().remedy, "write 256MiB");
        assert_eq!("10Gb".parse::<BitRate>().unwrap_err().remedy, "write 10Gbps");
        assert_eq!(why("0.5ns").reason, "\"0.5ns\" is not a whole number of ns");
        assert_eq!(why("1..5ms").reason, "\"1..5ms\" is not a whole number of ns");
        assert_eq!(why("99999999999999s").reason, "\"99999999999999s\" is larger than any latency can be");
        assert_eq!(why("1e9s").reason, "\"e9s\" is not a unit of latency");
    }
}
