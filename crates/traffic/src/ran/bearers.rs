//! What the gNB knows of its UEs' tunnels, found by UE address (uplink) and by TEID (downlink).

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use gtpu::{Direction, GpduHeader, PduSession};

use crate::ran::config::Wanted;

/// One UE's tunnel.
#[derive(Clone, Debug)]
pub struct Bearer {
    ue_v4: Option<Ipv4Addr>,
    ue_prefix: Option<u64>,
    qfi: u8,
    /// The way to the UPF, while there is a session.
    pub uplink: Option<Uplink>,
}

/// The UPF's end of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// The UPF's GTP-U address.
    pub upf: IpAddr,
    /// The UPF's TEID.
    pub teid: u32,
    /// The header of uplink G-PDUs.
    pub header: GpduHeader,
}

impl Bearer {
    /// Whether `address` is the UE's.
    #[inline]
    pub fn owns(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.ue_v4 == Some(address),
            IpAddr::V6(address) => self.ue_prefix == Some(prefix(address)),
        }
    }
}

/// All bearers of the gNB. A bearer's number is the place of its session in the configuration.
pub struct Bearers {
    bearers: Vec<Bearer>,
    by_v4: HashMap<Ipv4Addr, u32>,
    by_prefix: HashMap<u64, u32>,
    by_teid: HashMap<u32, u32>,
}

impl Bearers {
    /// Bearers without tunnels for the sessions in `wanted`.
    pub fn new(wanted: &[Wanted]) -> Self {
        let numbered = || wanted.iter().zip(0u32..);
        let bearer = |wanted: &Wanted| Bearer {
            ue_v4: wanted.ue_v4,
            ue_prefix: wanted.ue_v6.map(prefix),
            qfi: wanted.qfi,
            uplink: None,
        };
        Self {
            bearers: wanted.iter().map(bearer).collect(),
            by_v4: numbered().filter_map(|(wanted, number)| Some((wanted.ue_v4?, number))).collect(),
            by_prefix: numbered().filter_map(|(wanted, number)| Some((prefix(wanted.ue_v6?), number))).collect(),
            by_teid: numbered().map(|(wanted, number)| (wanted.downlink_teid, number)).collect(),
        }
    }

    /// Gives bearer `number` the UPF's tunnel endpoint, or takes it away.
    pub fn set_uplink(&mut self, number: usize, endpoint: Option<(IpAddr, u32)>) {
        let bearer = &mut self.bearers[number];
        bearer.uplink = endpoint.map(|(upf, teid)| {
            let container = PduSession { direction: Direction::Uplink, qfi: bearer.qfi, rqi: false };
            Uplink { upf, teid, header: GpduHeader::new(teid, Some(container)) }
        });
    }

    /// The bearer of the UE with `address`.
    #[inline]
    pub fn of_ue(&self, address: IpAddr) -> Option<&Bearer> {
        let number = match address {
            IpAddr::V4(address) => self.by_v4.get(&address)?,
            IpAddr::V6(address) => self.by_prefix.get(&prefix(address))?,
        };
        self.bearers.get(*number as usize)
    }

    /// The bearer with this downlink TEID.
    #[inline]
    pub fn of_teid(&self, teid: u32) -> Option<&Bearer> {
        self.bearers.get(*self.by_teid.get(&teid)? as usize)
    }

    /// Whether a bearer has this tunnel endpoint of a UPF. Looks at every bearer.
    pub fn uses(&self, upf: IpAddr, teid: u32) -> bool {
        self.bearers.iter().filter_map(|bearer| bearer.uplink).any(|uplink| uplink.upf == upf && uplink.teid == teid)
    }

    /// How many bearers have a tunnel.
    pub fn established(&self) -> usize {
        self.bearers.iter().filter(|bearer| bearer.uplink.is_some()).count()
    }

    /// The IPv4 addresses of all UEs, and the first addresses of their IPv6 prefixes.
    pub fn ue_addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let first = |prefix: u64| Ipv6Addr::from_bits(u128::from(prefix) << 64);
        self.bearers.iter().flat_map(move |bearer| {
            [bearer.ue_v4.map(IpAddr::from), bearer.ue_prefix.map(|prefix| first(prefix).into())].into_iter().flatten()
        })
    }
}

/// The 64 bits of an IPv6 address that name the UE.
#[inline]
fn prefix(address: Ipv6Addr) -> u64 {
    (address.to_bits() >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearers() -> Bearers {
        let wanted = |number: u32| Wanted {
            ue_v4: Some(Ipv4Addr::from_bits(0x0a3c_0001 + number)),
            ue_v6: Some(Ipv6Addr::from_bits((0x2001_0db8_0000_0000 | u128::from(number)) << 64)),
            qfi: 9,
            downlink_teid: 0x1001 + number,
            access_instance: None,
            network_instance: None,
            mbr_bps: None,
            measure_usage: false,
            filters: Vec::new(),
        };
        Bearers::new(&[wanted(0), wanted(1)])
    }

    #[test]
    fn a_ue_is_found_by_each_of_its_addresses_and_by_teid() {
        let mut bearers = bearers();
        bearers.set_uplink(1, Some(("10.3.0.1".parse().expect("an address"), 7)));
        for address in ["10.60.0.2", "2001:db8:0:1::5"] {
            let address = address.parse().expect("an address");
            assert!(bearers.of_ue(address).expect("the second UE").uplink.is_some(), "{address}");
        }
        assert!(bearers.of_teid(0x1002).expect("the second UE").uplink.is_some());
        assert!(bearers.of_teid(0x1001).expect("the first UE").uplink.is_none());
        assert_eq!(bearers.established(), 1);
        assert!(bearers.uses("10.3.0.1".parse().expect("an address"), 7));
        assert!(!bearers.uses("10.3.0.1".parse().expect("an address"), 8));
    }

    #[test]
    fn a_stranger_is_not_found() {
        let bearers = bearers();
        assert!(bearers.of_ue("10.60.0.9".parse().expect("an address")).is_none());
        assert!(bearers.of_ue("fe80::1".parse().expect("an address")).is_none());
        assert!(bearers.of_teid(0).is_none());
    }

    #[test]
    fn a_session_that_ends_takes_its_tunnel_away() {
        let mut bearers = bearers();
        bearers.set_uplink(0, Some(("10.3.0.1".parse().expect("an address"), 7)));
        bearers.set_uplink(0, None);
        assert_eq!(bearers.established(), 0);
    }
}
