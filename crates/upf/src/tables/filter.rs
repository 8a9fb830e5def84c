//! SDF filters as workers use them: a packet's key is made once, and then held against each filter in a few comparisons, those
//! that tell most first.

use std::net::IpAddr;

use crate::ip::{Packet, Upper};
use crate::rules::{Endpoint, SdfFilter};
use crate::side;

/// An SDF filter, turned into the direction of the packets that it sees. One cache line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub(super) struct Filter {
    upper: Masked<u32>,
    /// Source, then destination.
    v4: Masked<u64>,
    source_ports: Range,
    destination_ports: Range,
    v6: AddressesV6,
    /// What few filters have.
    more: Option<Box<More>>,
}

/// What filters look at, read from a packet.
pub(crate) struct Key<const V6: bool> {
    upper: u32,
    v4: u64,
    v6: [u128; 2],
    source_port: u16,
    destination_port: u16,
    spi: Option<u32>,
    flow_label: Option<u32>,
}

/// Bits of [`Key::upper`]: whether there are ports, the protocol, and ToS or traffic class.
const PORTS: u32 = 1 << 16;
const PROTOCOL: u32 = 0xff << 8;
const TOS: u32 = 0xff;

/// A number of which some bits are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Masked<T> {
    value: T,
    mask: T,
}

/// Port numbers from the first one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u16,
    /// The last one less the first one.
    span: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum AddressesV6 {
    Any,
    None,
    /// Source, destination.
    Nets(Box<[Masked<u128>; 2]>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct More {
    /// Where there are several ranges.
    source_ports: Box<[Range]>,
    destination_ports: Box<[Range]>,
    spi: Option<u32>,
    flow_label: Option<u32>,
}

impl<const V6: bool> Key<V6> {
    #[inline(always)]
    pub fn of(packet: &Packet<'_, V6>) -> Self {
        let upper = packet.upper();
        let Upper { protocol, spi, .. } = upper;
        let ports = upper.ports();
        let (source_port, destination_port) = ports.unwrap_or((0, 0));
        let (source, destination) = (packet.source(), packet.destination());
        Self {
            upper: if ports.is_some() { PORTS } else { 0 } | u32::from(protocol) << 8 | u32::from(packet.tos()),
            v4: if V6 { 0 } else { (source as u64) << 32 | destination as u64 },
            v6: if V6 { [source, destination] } else { [0; 2] },
            source_port,
            destination_port,
            spi,
            flow_label: packet.flow_label(),
        }
    }
}

impl Filter {
    /// Filters are written for downlink, from the data network to the UE.
    pub fn new(filter: &SdfFilter, uplink: bool) -> Self {
        let (source, destination) = if uplink { (&filter.to, &filter.from) } else { (&filter.from, &filter.to) };
        let mut upper = Masked { value: 0, mask: 0 };
        if let Some(protocol) = filter.protocol {
            upper.give(u32::from(protocol) << 8, PROTOCOL);
        }
        if let Some((tos, mask)) = filter.tos {
            upper.give(tos.into(), TOS & u32::from(mask));
        }
        // A fragment behind the first has no ports, and so matches no range of them.
        if !source.ports.is_empty() || !destination.ports.is_empty() {
            upper.give(PORTS, PORTS);
        }
        let several = |ports: &[(u16, u16)]| if ports.len() > 1 { ranges(ports) } else { Box::default() };
        let more = More {
            source_ports: several(&source.ports),
            destination_ports: several(&destination.ports),
            spi: filter.spi,
            flow_label: filter.flow_label,
        };
        Self {
            upper,
            v4: addresses_v4(source, destination),
            source_ports: Range::around(&source.ports),
            destination_ports: Range::around(&destination.ports),
            v6: addresses_v6(source, destination),
            more: (more != More::default()).then(|| Box::new(more)),
        }
    }

    #[inline(always)]
    pub fn matches<const V6: bool>(&self, key: &Key<V6>) -> bool {
        self.upper.holds(key.upper)
            && self.has_addresses(key)
            && self.source_ports.contains(key.source_port)
            && self.destination_ports.contains(key.destination_port)
            && self.more.as_ref().is_none_or(|more| more.matches(key))
    }

    #[inline(always)]
    fn has_addresses<const V6: bool>(&self, key: &Key<V6>) -> bool {
        if !V6 {
            return self.v4.holds(key.v4);
        }
        match &self.v6 {
            AddressesV6::Any => true,
            AddressesV6::None => false,
            AddressesV6::Nets(nets) => nets[0].holds(key.v6[0]) && nets[1].holds(key.v6[1]),
        }
    }
}

impl More {
    #[cold]
    fn matches<const V6: bool>(&self, key: &Key<V6>) -> bool {
        let among = |ranges: &[Range], port| ranges.is_empty() || ranges.iter().any(|range| range.contains(port));
        among(&self.source_ports, key.source_port)
            && among(&self.destination_ports, key.destination_port)
            && (self.spi.is_none() || self.spi == key.spi)
            && (self.flow_label.is_none() || self.flow_label == key.flow_label)
    }
}

impl Masked<u32> {
    /// These bits are given, too.
    fn give(&mut self, value: u32, mask: u32) {
        self.value |= value & mask;
        self.mask |= mask;
    }
}

impl<T: Copy + Eq + std::ops::BitAnd<Output = T>> Masked<T> {
    #[inline(always)]
    fn holds(&self, number: T) -> bool {
        number & self.mask == self.value
    }
}

impl Range {
    /// The range that all of these are in; any port where there are none.
    fn around(ports: &[(u16, u16)]) -> Self {
        let first = ports.iter().map(|&(first, _)| first).min().unwrap_or(0);
        let last = ports.iter().map(|&(_, last)| last).max().unwrap_or(u16::MAX);
        Self { first, span: last.saturating_sub(first) }
    }

    #[inline(always)]
    fn contains(&self, port: u16) -> bool {
        port.wrapping_sub(self.first) <= self.span
    }
}

fn ranges(ports: &[(u16, u16)]) -> Box<[Range]> {
    ports.iter().map(|&range| Range::around(&[range])).collect()
}

/// Any or given; nothing if the other side's are of the other version.
fn addresses_v4(source: &Endpoint, destination: &Endpoint) -> Masked<u64> {
    let mut pair = Masked { value: 0, mask: 0 };
    for (endpoint, shift) in [(source, 32), (destination, 0)] {
        match endpoint.prefix {
            None => {}
            Some((IpAddr::V4(net), len)) => {
                let mask = side::mask(false, len) as u64;
                pair.value |= (u64::from(net.to_bits()) & mask) << shift;
                pair.mask |= mask << shift;
            }
            // No number without given bits is 1.
            Some((IpAddr::V6(_), _)) => return Masked { value: 1, mask: 0 },
        }
    }
    pair
}

fn addresses_v6(source: &Endpoint, destination: &Endpoint) -> AddressesV6 {
    let net = |endpoint: &Endpoint| match endpoint.prefix {
        None => Some(Masked { value: 0, mask: 0 }),
        Some((IpAddr::V4(_), _)) => None,
        Some((IpAddr::V6(net), len)) => {
            let mask = side::mask(true, len);
            Some(Masked { value: net.to_bits() & mask, mask })
        }
    };
    match (net(source), net(destination)) {
        (Some(Masked { mask: 0, .. }), Some(Masked { mask: 0, .. })) => AddressesV6::Any,
        (Some(source), Some(destination)) => AddressesV6::Nets(Box::new([source, destination])),
        _ => AddressesV6::None,
    }
}

const _: () = assert!(std::mem::size_of::<Filter>() == 64, "a filter is one cache line");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a filter means, read off the rule (TS 29.212, 5.4.2): slow and plain.
    fn means<const V6: bool>(filter: &SdfFilter, uplink: bool, packet: &Packet<'_, V6>) -> bool {
        let (source, destination) = if uplink { (&filter.to, &filter.from) } else { (&filter.from, &filter.to) };
        let within = |endpoint: &Endpoint, address: u128| {
            endpoint.prefix.is_none_or(|(net, len)| {
                let (v6, bits) = side::bits(net);
                v6 == V6 && (bits ^ address) & side::mask(v6, len) == 0
            })
        };
        let upper = packet.upper();
        let has_port = |endpoint: &Endpoint, port: Option<u16>| {
            let in_range = |port: u16| endpoint.ports.iter().any(|&(first, last)| (first..=last).contains(&port));
            endpoint.ports.is_empty() || port.is_some_and(in_range)
        };
        within(source, packet.source())
            && within(destination, packet.destination())
            && filter.protocol.is_none_or(|protocol| protocol == upper.protocol)
            && filter.tos.is_none_or(|(tos, mask)| (tos ^ packet.tos()) & mask == 0)
            && filter.spi.is_none_or(|spi| upper.spi == Some(spi))
            && filter.flow_label.is_none_or(|label| packet.flow_label() == Some(label))
            && has_port(source, upper.ports().map(|ports| ports.0))
            && has_port(destination, upper.ports().map(|ports| ports.1))
    }

    fn check<const V6: bool>(filter: &SdfFilter, bytes: &[u8]) -> Result<(), TestCaseError> {
        let Ok(packet) = Packet::<V6>::parse(bytes, bytes.len()) else { return Ok(()) };
        for uplink in [true, false] {
            let matches = Filter::new(filter, uplink).matches(&Key::of(&packet));
            prop_assert_eq!(matches, means(filter, uplink, &packet));
        }
        Ok(())
    }

    /// Few values, so that they meet.
    fn few_ports() -> impl Strategy<Value = Vec<(u16, u16)>> {
        let port = prop_oneof![0u16..4, Just(u16::MAX)];
        proptest::collection::vec((port.clone(), port).prop_map(|(a, b)| (a.min(b), a.max(b))), 0..4)
    }

    fn endpoint() -> impl Strategy<Value = Endpoint> {
        let v4 = (prop_oneof![Just(0x0a00_0001_u32), Just(0x0a00_0002)], 0u8..=32)
            .prop_map(|(a, len)| (IpAddr::V4(a.into()), len));
        let v6 =
            (prop_oneof![Just(1_u128), Just(1 << 127 | 2)], 0u8..=128).prop_map(|(a, len)| (IpAddr::V6(a.into()), len));
        (proptest::option::of(prop_oneof![v4, v6]), few_ports()).prop_map(|(prefix, ports)| Endpoint { prefix, ports })
    }

    fn filter() -> impl Strategy<Value = SdfFilter> {
        let protocol = proptest::option::of(prop_oneof![Just(6u8), Just(17), Just(50)]);
        let tos = proptest::option::of((any::<u8>(), prop_oneof![Just(0xfc_u8), Just(1), Just(0)]));
        let (spi, label) = (proptest::option::of(0u32..3), proptest::option::of(0u32..2));
        (protocol, endpoint(), endpoint(), tos, spi, label).prop_map(|(protocol, from, to, tos, spi, flow_label)| {
            SdfFilter { id: None, protocol, from, to, tos, spi, flow_label }
        })
    }

    fn packet() -> impl Strategy<Value = Vec<u8>> {
        let protocol = prop_oneof![Just(6u8), Just(17), Just(50), Just(1)];
        let address = || prop_oneof![Just(0x0a00_0001_u32), Just(0x0a00_0002)];
        let port = || prop_oneof![0u16..4, Just(u16::MAX)];
        (any::<bool>(), protocol, address(), address(), port(), port(), any::<u8>(), any::<bool>()).prop_map(
            |(v6, protocol, source, destination, source_port, destination_port, tos, fragment)| {
                let ports = [source_port.to_be_bytes(), destination_port.to_be_bytes()].concat();
                let wide = |address: u32| if address == 0x0a00_0001 { 1_u128 } else { 1 << 127 | 2 };
                if v6 {
                    let mut bytes = (0x6000_0000 | u32::from(tos) << 20 | u32::from(tos & 1)).to_be_bytes().to_vec();
                    bytes.extend([0, 4, protocol, 64]);
                    bytes.extend(wide(source).to_be_bytes());
                    bytes.extend(wide(destination).to_be_bytes());
                    [bytes, ports].concat()
                } else {
                    let mut bytes = vec![0x45, tos, 0, 24, 0, 0, 0, u8::from(fragment), 64, protocol, 0, 0];
                    bytes.extend(source.to_be_bytes());
                    bytes.extend(destination.to_be_bytes());
                    [bytes, ports].concat()
                }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn a_filter_matches_what_its_rule_means(filter in filter(), bytes in packet()) {
            check::<false>(&filter, &bytes)?;
            check::<true>(&filter, &bytes)?;
        }
    }
}
