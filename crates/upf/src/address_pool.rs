//! Pools of UE addresses, as configured.
//!
//! ```yaml
//! addressPools:
//!   - {name: gold, networkInstances: [internet], ipv4: [10.45.0.0/16, 10.46.0.10-10.46.0.99], ipv6: ["2001:db8::/40"]}
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Deserialize;

/// Addresses that this UPF gives to UEs where the session manager leaves it the choice (TS 29.244, 5.21).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddressPool {
    /// UE IP address Pool Identity.
    pub name: String,
    /// Network instances whose sessions get addresses from it; any where there are none.
    #[serde(default)]
    pub network_instances: Vec<String>,
    /// IPv4 addresses.
    #[serde(default)]
    pub ipv4: Vec<Ipv4Range>,
    /// Networks to take IPv6 prefixes from.
    #[serde(default)]
    pub ipv6: Vec<Ipv6Network>,
    /// Length of the prefix that a UE gets.
    #[serde(default = "default_ipv6_prefix_length")]
    pub ipv6_prefix_length: u8,
}

/// A range of IPv4 addresses, ends included: `10.46.0.10-10.46.0.99`, or `10.45.0.0/16` without the network's own address
/// and its broadcast address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Ipv4Range {
    /// The first address.
    pub first: Ipv4Addr,
    /// The last one.
    pub last: Ipv4Addr,
}

/// An IPv6 network, `2001:db8::/40`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Ipv6Network {
    /// Its address; what is behind its length is zero.
    pub network: Ipv6Addr,
    /// Its length in bits.
    pub length: u8,
}

fn default_ipv6_prefix_length() -> u8 {
    64
}

impl TryFrom<String> for Ipv4Range {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("`{text}` is neither a range of IPv4 addresses nor a network");
        if let Some((first, last)) = text.split_once('-') {
            let (first, last) = (first.trim().parse().map_err(|_| wrong())?, last.trim().parse().map_err(|_| wrong())?);
            return if first <= last { Ok(Self { first, last }) } else { Err(wrong()) };
        }
        let (address, length) = text.split_once('/').ok_or_else(wrong)?;
        let address: u32 = address.parse::<Ipv4Addr>().map_err(|_| wrong())?.to_bits();
        let length: u32 = length.parse().ok().filter(|length| (1..=32).contains(length)).ok_or_else(wrong)?;
        let others = u32::MAX.checked_shr(length).unwrap_or(0);
        let (mut first, mut last) = (address & !others, address | others);
        if length < 31 {
            (first, last) = (first + 1, last - 1);
        }
        Ok(Self { first: first.into(), last: last.into() })
    }
}

impl TryFrom<String> for Ipv6Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not an IPv6 network");
        let (address, length) = text.split_once('/').ok_or_else(wrong)?;
        let address: Ipv6Addr = address.parse().map_err(|_| wrong())?;
        let length: u8 = length.parse().ok().filter(|length| (1..=128).contains(length)).ok_or_else(wrong)?;
        let network = Ipv6Addr::from_bits(address.to_bits() & crate::side::mask(true, length));
        Ok(Self { network, length })
    }
}

impl AddressPool {
    /// What is wrong with `pools`, if anything is.
    pub fn check(pools: &[Self]) -> Result<(), &'static str> {
        let mut taken: Vec<(IpAddr, IpAddr)> = vec![];
        for (at, pool) in pools.iter().enumerate() {
            if pool.name.is_empty() || pool.name.len() > 255 || pools[..at].iter().any(|other| other.name == pool.name)
            {
                return Err("each pool needs a name of its own, of up to 255 octets");
            }
            if pool.ipv4.is_empty() && pool.ipv6.is_empty() {
                return Err("a pool needs ipv4 or ipv6");
            }
            let too_small = |net: &Ipv6Network| !(net.length..=128).contains(&pool.ipv6_prefix_length);
            let too_large = |net: &Ipv6Network| pool.ipv6_prefix_length - net.length > 40;
            if pool.ipv6.iter().any(|net| too_small(net) || too_large(net)) {
                return Err(
                    "ipv6PrefixLength must be from the length of each network in ipv6 to 40 bits more, and not over 128",
                );
            }
            for (first, last) in pool.spans() {
                if taken.iter().any(|other| first <= other.1 && other.0 <= last) {
                    return Err("an address can be in one pool only, and there once");
                }
                taken.push((first, last));
            }
        }
        Ok(())
    }

    /// First and last address of each range.
    fn spans(&self) -> impl Iterator<Item = (IpAddr, IpAddr)> {
        let v4 = self.ipv4.iter().map(|range| (range.first.into(), range.last.into()));
        let last =
            |net: &Ipv6Network| Ipv6Addr::from_bits(net.network.to_bits() | !crate::side::mask(true, net.length));
        v4.chain(self.ipv6.iter().map(move |net| (net.network.into(), last(net).into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Option<(String, String)> {
        Ipv4Range::try_from(text.to_owned()).ok().map(|range| (range.first.to_string(), range.last.to_string()))
    }

    #[test]
    fn networks_and_ranges_are_understood() {
        let is = |text, first: &str, last: &str| assert_eq!(range(text), Some((first.into(), last.into())), "{text}");
        is("10.45.0.0/16", "10.45.0.1", "10.45.255.254");
        is("10.45.0.7/30", "10.45.0.5", "10.45.0.6");
        is("10.45.0.6/31", "10.45.0.6", "10.45.0.7");
        is("10.45.0.6/32", "10.45.0.6", "10.45.0.6");
        is("10.45.0.6 - 10.45.1.6", "10.45.0.6", "10.45.1.6");
        for text in ["10.45.0.6", "10.45.0.0/0", "10.45.0.0/33", "10.45.0.2-10.45.0.1", "2001:db8::/32", ""] {
            assert_eq!(range(text), None, "{text}");
        }
        let net = Ipv6Network::try_from("2001:db8:1::9/40".to_owned()).unwrap();
        assert_eq!((net.network.to_string(), net.length), ("2001:db8::".into(), 40));
        assert!(
            ["2001:db8::", "2001:db8::/0", "2001:db8::/129", "10.0.0.0/8"]
                .iter()
                .all(|text| { Ipv6Network::try_from((*text).to_owned()).is_err() })
        );
    }

    fn pools(text: &str) -> Vec<AddressPool> {
        serde_saphyr::from_str(text).unwrap()
    }

    #[test]
    fn pools_that_cannot_be_meant_are_refused() {
        let check = |text| AddressPool::check(&pools(text));
        assert_eq!(check("[{name: a, ipv4: [10.45.0.0/16]}, {name: b, ipv6: ['2001:db8::/40']}]"), Ok(()));
        for text in [
            "[{name: '', ipv4: [10.45.0.0/16]}]",
            "[{name: a}]",
            "[{name: a, ipv4: [10.45.0.0/16]}, {name: a, ipv4: [10.46.0.0/16]}]",
            "[{name: a, ipv4: [10.45.0.0/16]}, {name: b, ipv4: [10.45.3.0/24]}]",
            "[{name: a, ipv4: [10.45.0.0/16, 10.45.1.1-10.45.1.1]}]",
            "[{name: a, ipv6: ['2001:db8::/40'], ipv6PrefixLength: 32}]",
            "[{name: a, ipv6: ['2001:db8::/40'], ipv6PrefixLength: 129}]",
            "[{name: a, ipv6: ['2001:db8::/40'], ipv6PrefixLength: 128}]",
        ] {
            assert!(check(text).is_err(), "{text}");
        }
    }
}
