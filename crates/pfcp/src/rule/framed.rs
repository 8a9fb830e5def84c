//! Framed routes: networks behind a UE, as texts that RADIUS made (RFC 2865, 5.22; RFC 3162, 2.5).

use std::net::{IpAddr, Ipv4Addr};

use rs_pfcp::ie::IeType;

use crate::fault::{Cause, Fault};
use crate::ie::{Elements, Ie, Ies};

/// A network and its length in bits.
pub type Network = (IpAddr, u8);

/// All routes of either version, those of IPv4 first.
pub(super) fn read_routes(ies: &Ies) -> Result<Vec<Network>, Fault> {
    ies.all(IeType::FramedRoute).chain(ies.all(IeType::FramedIpv6Route)).map(read_route).collect()
}

/// The routing method (RFC 2865, 5.10): 0 for none.
pub(super) fn read_routing(ie: Ie) -> Result<u32, Fault> {
    ie.u32()
}

pub(super) fn write_routes(routes: &[Network], out: &mut Vec<u8>) {
    for (network, length) in routes {
        // The gateway is the UE, the metric the least.
        match network {
            IpAddr::V4(_) => out.element(IeType::FramedRoute, format!("{network}/{length} 0.0.0.0 1").as_bytes()),
            IpAddr::V6(_) => out.element(IeType::FramedIpv6Route, format!("{network}/{length} :: 1").as_bytes()),
        }
    }
}

/// The network is the first word; gateway and metrics behind it are not for a UPF.
fn read_route(ie: Ie) -> Result<Network, Fault> {
    let network = std::str::from_utf8(ie.value).ok().and_then(network);
    let is_v4 = ie.kind == IeType::FramedRoute as u16;
    network.filter(|(network, _)| network.is_ipv4() == is_v4).ok_or(ie.fault(Cause::MandatoryIeIncorrect))
}

fn network(text: &str) -> Option<Network> {
    let word = text.split(|c: char| c.is_ascii_whitespace() || c == '\0').next()?;
    let (address, length) = word.split_once('/').map_or((word, None), |(address, length)| (address, Some(length)));
    let address: IpAddr = address.parse().ok()?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        Some(digits) if digits.bytes().all(|digit| digit.is_ascii_digit()) => digits.parse().ok()?,
        Some(_) => return None,
        None => length_by_class(address)?,
    };
    (length <= longest).then_some((address, length))
}

/// What RFC 2865 assumes where a route states no length.
fn length_by_class(address: IpAddr) -> Option<u8> {
    let IpAddr::V4(address) = address else { return None };
    Some(match Ipv4Addr::octets(&address)[0] {
        0..128 => 8,
        128..192 => 16,
        _ => 24,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_read_as_radius_servers_write_them() {
        let read = |kind: IeType, text: &str| {
            read_route(Ie { kind: kind as u16, value: text.as_bytes() }).ok().map(|(net, len)| format!("{net}/{len}"))
        };
        let v4 = |text| read(IeType::FramedRoute, text);
        assert_eq!(v4("192.168.1.0/24 192.168.1.1 1 2 -1 3 400"), Some("192.168.1.0/24".into()));
        assert_eq!(v4("192.168.1.0 192.168.1.1 1"), Some("192.168.1.0/24".into()));
        assert_eq!((v4("10.0.0.0"), v4("172.16.0.0\0")), (Some("10.0.0.0/8".into()), Some("172.16.0.0/16".into())));
        let v6 = |text| read(IeType::FramedIpv6Route, text);
        assert_eq!(v6("2000:0:0:106::/64 2000::106:a00:20ff:fe99:a998 1"), Some("2000:0:0:106::/64".into()));
        for text in ["", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/+8", "2001:db8::/32", "host/8", "10.0.0.0/8/8"] {
            assert_eq!(v4(text), None, "{text}");
        }
        assert_eq!((v6("2001:db8::"), v6("2001:db8::/129"), v6("10.0.0.0/8")), (None, None, None));
    }
}
