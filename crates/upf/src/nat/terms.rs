//! Source NAT of a data network, as configured.
//!
//! ```yaml
//! n6:
//!   port: n6
//!   sourceNat: {addresses: [203.0.113.0/28], ports: 1024-65535, portsPerBlock: 256, blocksPerUe: 4}
//! ```

use std::hash::{BuildHasher, RandomState};
use std::net::Ipv4Addr;

use serde::Deserialize;

use crate::address_pool::Ipv4Range;

/// How UEs' addresses are translated on their way into a data network (RFC 4787, 5382, 5508).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SourceNat {
    /// Addresses that UEs' packets get.
    pub addresses: Vec<Ipv4Range>,
    /// Ports, and identifiers of ICMP queries, that they get.
    #[serde(default)]
    pub ports: Ports,
    /// Ports of a block; a UE gets ports by blocks, so that one line tells of many bindings.
    #[serde(default = "default_ports_per_block")]
    pub ports_per_block: u16,
    /// Most blocks of a UE.
    #[serde(default = "default_blocks_per_ue")]
    pub blocks_per_ue: u8,
    /// Seconds for which a block that a UE gave back is not given to another one (RFC 6888, REQ-8).
    #[serde(default = "default_block_cooling_s")]
    pub block_cooling_s: u32,
    /// Most bindings of all UEs.
    #[serde(default = "default_max_bindings")]
    pub max_bindings: u32,
    /// Whose packets come in by a binding.
    #[serde(default)]
    pub filtering: Filtering,
    /// Seconds until a binding of UDP that nobody uses is forgotten.
    #[serde(default = "default_udp_timeout_s")]
    pub udp_timeout_s: u32,
    /// Seconds until a TCP connection that nobody uses is forgotten.
    #[serde(default = "default_tcp_timeout_s")]
    pub tcp_timeout_s: u32,
    /// The same of one that begins or ends.
    #[serde(default = "default_tcp_transitory_timeout_s")]
    pub tcp_transitory_timeout_s: u32,
    /// Seconds until an ICMP query that nobody uses is forgotten.
    #[serde(default = "default_icmp_timeout_s")]
    pub icmp_timeout_s: u32,
    /// Where among all blocks the first one is that a UE gets. At random, as nobody knows which blocks of a process before this one have
    /// yet to cool.
    #[serde(skip, default = "any_block")]
    pub first_block: usize,
}

/// A range of ports, ends included: `1024-65535`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Ports {
    /// The first port.
    pub first: u16,
    /// The last one.
    pub last: u16,
}

/// Whose packets come in by a binding (RFC 4787, 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Filtering {
    /// Anybody's.
    EndpointIndependent,
    /// Those of addresses that the UE has sent to.
    #[default]
    AddressDependent,
    /// Those of addresses and ports that the UE has sent to.
    AddressAndPortDependent,
}

/// Most blocks that a UE may have.
pub const BLOCKS_PER_UE_MAX: usize = 16;
/// Most addresses.
const ADDRESSES_MAX: u64 = 4_096;
/// Most bindings.
const BINDINGS_MAX: u32 = 1 << 22;

impl Default for Ports {
    fn default() -> Self {
        Self { first: 1_024, last: u16::MAX }
    }
}

impl TryFrom<String> for Ports {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let range = text
            .split_once('-')
            .and_then(|(first, last)| Some((first.trim().parse().ok()?, last.trim().parse().ok()?)));
        match range {
            Some((first, last)) if 0 < first && first <= last => Ok(Self { first, last }),
            _ => Err(format!("`{text}` is not a range of ports")),
        }
    }
}

fn default_ports_per_block() -> u16 {
    256
}

fn default_blocks_per_ue() -> u8 {
    4
}

fn default_block_cooling_s() -> u32 {
    120
}

fn default_max_bindings() -> u32 {
    65_536
}

fn default_udp_timeout_s() -> u32 {
    300
}

fn default_tcp_timeout_s() -> u32 {
    7_440
}

fn default_tcp_transitory_timeout_s() -> u32 {
    240
}

fn default_icmp_timeout_s() -> u32 {
    60
}

fn any_block() -> usize {
    RandomState::new().hash_one(0) as usize
}

impl SourceNat {
    /// With these addresses, of which the first block is given first, and everything else as it is by default.
    pub fn with(addresses: Vec<Ipv4Range>) -> Self {
        Self {
            addresses,
            ports: Ports::default(),
            ports_per_block: default_ports_per_block(),
            blocks_per_ue: default_blocks_per_ue(),
            block_cooling_s: default_block_cooling_s(),
            max_bindings: default_max_bindings(),
            filtering: Filtering::default(),
            udp_timeout_s: default_udp_timeout_s(),
            tcp_timeout_s: default_tcp_timeout_s(),
            tcp_transitory_timeout_s: default_tcp_transitory_timeout_s(),
            icmp_timeout_s: default_icmp_timeout_s(),
            first_block: 0,
        }
    }

    /// Blocks of an address.
    pub fn blocks_per_address(&self) -> u16 {
        let ports = u32::from(self.ports.last) - u32::from(self.ports.first) + 1;
        (ports / u32::from(self.ports_per_block.max(1))) as u16
    }

    /// All addresses.
    pub fn each_address(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.addresses.iter().flat_map(|range| range.first.to_bits()..=range.last.to_bits()).map(Ipv4Addr::from_bits)
    }

    /// Why the NAT cannot be as it is configured. The timeouts' least values are those of RFC 4787, 4.3, RFC 5382, 5, and
    /// RFC 5508, 3.2.
    pub fn check(&self) -> Result<(), &'static str> {
        let mut spans: Vec<_> = self.addresses.iter().map(|range| (range.first, range.last)).collect();
        spans.sort_unstable();
        let count: u64 = spans.iter().map(|(first, last)| u64::from(last.to_bits() - first.to_bits()) + 1).sum();
        match () {
            () if spans.is_empty() => Err("sourceNat.addresses names no address"),
            () if spans.iter().any(|(first, last)| !is_usable(*first) || !is_usable(*last)) => {
                Err("sourceNat.addresses must be addresses of hosts")
            }
            () if spans.windows(2).any(|pair| pair[1].0 <= pair[0].1) => {
                Err("sourceNat.addresses names an address twice")
            }
            () if count > ADDRESSES_MAX => Err("sourceNat.addresses are more than 4096"),
            () if self.ports_per_block == 0 || self.blocks_per_address() == 0 => {
                Err("sourceNat.portsPerBlock must be over 0, and not more than there are ports")
            }
            () if !(1..=BLOCKS_PER_UE_MAX).contains(&self.blocks_per_ue.into()) => {
                Err("sourceNat.blocksPerUe must be from 1 to 16")
            }
            () if !(1..=BINDINGS_MAX).contains(&self.max_bindings) => {
                Err("sourceNat.maxBindings must be from 1 to 4194304")
            }
            () if self.udp_timeout_s < 120 => Err("sourceNat.udpTimeoutS must be 120 at least"),
            () if self.tcp_timeout_s < 7_440 => Err("sourceNat.tcpTimeoutS must be 7440 at least"),
            () if self.tcp_transitory_timeout_s < 240 => Err("sourceNat.tcpTransitoryTimeoutS must be 240 at least"),
            () if self.icmp_timeout_s < 60 => Err("sourceNat.icmpTimeoutS must be 60 at least"),
            () => Ok(()),
        }
    }
}

/// Whether a host may have the address.
fn is_usable(address: Ipv4Addr) -> bool {
    !matches!(address.octets()[0], 0 | 127 | 224..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_gives_another_block_first() {
        let read = || serde_saphyr::from_str::<SourceNat>("addresses: [203.0.113.0/28]").unwrap();
        assert_ne!(read().first_block, read().first_block);
    }

    #[test]
    fn mistakes_are_refused() {
        let right = SourceNat::with(vec![String::from("203.0.113.0/28").try_into().unwrap()]);
        assert_eq!(right.check(), Ok(()));
        assert_eq!((right.each_address().count(), right.blocks_per_address()), (14, 252));
        let wrong = |change: fn(&mut SourceNat)| {
            let mut nat = right.clone();
            change(&mut nat);
            assert!(nat.check().is_err(), "{nat:?}");
        };
        wrong(|nat| nat.addresses.clear());
        wrong(|nat| nat.addresses.push(String::from("203.0.113.9-203.0.113.20").try_into().unwrap()));
        wrong(|nat| nat.addresses = vec![String::from("10.0.0.0/8").try_into().unwrap()]);
        wrong(|nat| nat.addresses = vec![String::from("224.0.0.1-224.0.0.2").try_into().unwrap()]);
        wrong(|nat| nat.ports_per_block = 0);
        wrong(|nat| nat.ports = Ports { first: 5_000, last: 5_100 });
        wrong(|nat| nat.blocks_per_ue = 17);
        wrong(|nat| nat.max_bindings = 0);
        wrong(|nat| nat.udp_timeout_s = 119);
        wrong(|nat| nat.tcp_timeout_s = 7_000);
        wrong(|nat| nat.tcp_transitory_timeout_s = 1);
        wrong(|nat| nat.icmp_timeout_s = 59);
        for text in ["0-5", "9-5", "1024", "a-b", "1-65536"] {
            assert!(Ports::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
