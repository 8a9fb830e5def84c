//! Network addresses as a descriptor writes them: an address with its prefix length, and a MAC address.

use crate::quantity::{ValueError, text_form};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{borrow::Cow, fmt, net::IpAddr, str::FromStr};

/// An IPv4 or IPv6 address with the length of its prefix: `10.3.0.1/24`, `2001:db8::1/64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    /// The address, with its host bits.
    pub address: IpAddr,
    /// Length of the prefix in bits: at most 32 (IPv4) or 128 (IPv6).
    pub prefix: u8,
}

impl Cidr {
    /// The address with its host bits cleared.
    pub fn network(self) -> IpAddr {
        match self.address {
            IpAddr::V4(a) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                IpAddr::V4((a.to_bits() & mask).into())
            }
            IpAddr::V6(a) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                IpAddr::V6((a.to_bits() & mask).into())
            }
        }
    }

    /// Whether `address` is of the same family and has the same prefix.
    pub fn contains(self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4() && Self { address, prefix: self.prefix }.network() == self.network()
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for Cidr {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        const EXAMPLE: &str = "write an address and a prefix length, for example 10.3.0.1/24 or 2001:db8::1/64";
        let Some((address, prefix)) = text.split_once('/') else {
            let reason = format!("{text:?} has no prefix length");
            let remedy = match text.parse::<IpAddr>() {
                Ok(IpAddr::V4(a)) => format!("write for example {a}/24, or {a}/32 for the address alone"),
                Ok(IpAddr::V6(a)) => format!("write for example {a}/64, or {a}/128 for the address alone"),
                Err(_) => EXAMPLE.into(),
            };
            return Err(ValueError::new(reason, remedy));
        };
        let address: IpAddr =
            address.parse().map_err(|_| ValueError::new(format!("{address:?} is no IP address"), EXAMPLE))?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let digits = !prefix.is_empty() && prefix.bytes().all(|b| b.is_ascii_digit());
        match prefix.parse::<u8>() {
            Ok(length) if digits && length <= longest => Ok(Self { address, prefix: length }),
            _ => Err(ValueError::new(
                format!("{prefix:?} is no prefix length"),
                format!("write a number from 0 to {longest} after the slash"),
            )),
        }
    }
}

text_form!(Cidr, "cidr", r"^[0-9A-Fa-f:.]+/[0-9]{1,3}$");

/// An Ethernet address: `02:00:5e:00:53:01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Whether it addresses a group (or nobody), so that no port can have it.
    pub fn is_usable(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let no_mac = || {
            let reason = format!("{text:?} is no MAC address");
            ValueError::new(reason, "write six pairs of hexadecimal digits, for example 02:00:5e:00:53:01")
        };
        let mut octets = [0u8; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().filter(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()));
            *octet = u8::from_str_radix(part.ok_or_else(no_mac)?, 16).map_err(|_| no_mac())?;
        }
        if parts.next().is_some() { Err(no_mac()) } else { Ok(Self(octets)) }
    }
}

text_form!(Mac, "mac", r"^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_contains_its_addresses_and_no_others() {
        let net: Cidr = "10.3.0.1/24".parse().unwrap();
        assert!(net.contains("10.3.0.255".parse().unwrap()));
        assert!(!net.contains("10.3.1.0".parse().unwrap()));
        assert!(!net.contains("::10.3.0.1".parse().unwrap()));
        assert_eq!(net.to_string(), "10.3.0.1/24");
        assert!("0.0.0.0/0".parse::<Cidr>().unwrap().contains("192.0.2.1".parse().unwrap()));
        let six: Cidr = "2001:db8::1/64".parse().unwrap();
        assert!(six.contains("2001:db8::ffff".parse().unwrap()));
        assert!(!six.contains("2001:db8:0:1::".parse().unwrap()));
    }

    #[test]
    fn what_is_no_address_says_how_to_write_one() {
        let why = |text: &str| text.parse::<Cidr>().unwrap_err();
        assert_eq!(why("10.3.0.1").remedy, "write for example 10.3.0.1/24, or 10.3.0.1/32 for the address alone");
        assert_eq!(why("10.3.0.1/33").remedy, "write a number from 0 to 32 after the slash");
        assert_eq!(why("10.3.0.1/+8").reason, "\"+8\" is no prefix length");
        assert_eq!(why("10.3.0/24").reason, "\"10.3.0\" is no IP address");
    }

    #[test]
    fn a_mac_address_is_six_pairs() {
        assert_eq!("02:00:5E:00:53:01".parse::<Mac>().unwrap().to_string(), "02:00:5e:00:53:01");
        for bad in ["", "02:00:5e:00:53", "02:00:5e:00:53:01:00", "2:0:5e:0:53:1", "+2:00:5e:00:53:01"] {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
        assert!(!Mac([1, 0, 0x5e, 0, 0, 1]).is_usable());
    }
}
