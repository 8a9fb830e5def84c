//! SDF filters as workers use them: a packet's key is made once, and then held against each filter in a few comparisons, those
//! that tell most first.

use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

use vport::tally::Line;

use super::image::{Image, quarters};
use crate::ip::{Packet, Upper};
use crate::rules::{Endpoint, SdfFilter};
use crate::side;
use crate::usage::whole;

/// An SDF filter that is yet to be written, turned into the direction of the packets that it sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Draft {
    upper: Masked<u32>,
    /// Source, then destination.
    v4: Masked<u64>,
    source_ports: Range,
    destination_ports: Range,
    v6: AddressesV6,
    /// What few filters have.
    more: More,
}

// Words of a filter.

/// Value, and in the upper half mask, of the key's `upper`.
const UPPER: usize = 0;
const V4_VALUE: usize = 1;
const V4_MASK: usize = 2;
/// Quarters: first and span of source ports, then of destination ports.
const PORT_RANGES: usize = 3;
/// Octet: what [`AddressesV6`] says; then in the upper half so many lines behind are its networks.
const V6: usize = 4;
/// So many lines behind is more; 0 if there is none. In the upper half the numbers of ranges, source and destination.
const MORE: usize = 5;
/// SPI, and in the upper half flow label.
const NUMBERS: usize = 6;
/// Bits: whether there are SPI and flow label. In the upper half so many lines before is the filter's rule.
const HAS_NUMBERS: usize = 7;

const ANYTHING: SdfFilter = SdfFilter {
    id: None,
    protocol: None,
    from: Endpoint { prefix: None, ports: vec![] },
    to: Endpoint { prefix: None, ports: vec![] },
    tos: None,
    spi: None,
    flow_label: None,
};

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
    Nets([Masked<u128>; 2]),
}

/// Of [`V6`].
const ANY: u8 = 0;
const NONE: u8 = 1;
const NETS: u8 = 2;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct More {
    /// Where there are several ranges.
    source_ports: Vec<Range>,
    destination_ports: Vec<Range>,
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

impl Draft {
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
        let several = |ports: &[(u16, u16)]| if ports.len() > 1 { ranges(ports) } else { vec![] };
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
            more,
        }
    }

    /// Matches every packet.
    pub fn any() -> Self {
        Self::new(&ANYTHING, true)
    }

    /// Writes filters to the end of `image`, each with the line of its rule. Returns where they begin.
    pub fn write_all(filters: &[(usize, Self)], image: &mut Image) -> usize {
        let first = image.add(filters.len());
        for (number, (rule, filter)) in filters.iter().enumerate() {
            let at = first + number;
            filter.write(at, image);
            image[at][HAS_NUMBERS] |= ((at - rule) as u64) << 32;
        }
        first
    }

    fn write(&self, at: usize, image: &mut Image) {
        let [source, destination] = [self.source_ports, self.destination_ports];
        let More { source_ports, destination_ports, spi, flow_label } = &self.more;
        let v6 = match &self.v6 {
            AddressesV6::Any => ANY.into(),
            AddressesV6::None => NONE.into(),
            AddressesV6::Nets(nets) => {
                let wide = |bits: u128| [bits as u64, (bits >> 64) as u64];
                let words = nets.iter().flat_map(|net| wide(net.value).into_iter().chain(wide(net.mask)));
                whole(NETS.into(), (image.append(words) - at) as u32)
            }
        };
        let ranges: Vec<_> = source_ports.iter().chain(destination_ports).copied().collect();
        let is_more = self.more != More::default();
        let behind = match () {
            () if ranges.is_empty() => usize::from(is_more),
            () => image.append(ranges.chunks(2).map(|pair| whole(pair[0].bits(), pair[pair.len() - 1].bits()))) - at,
        };
        image[at] = [
            whole(self.upper.value, self.upper.mask),
            self.v4.value,
            self.v4.mask,
            quarters([source.first.into(), source.span.into(), destination.first.into(), destination.span.into()]),
            v6,
            quarters([behind & 0xffff, behind >> 16, source_ports.len(), destination_ports.len()]),
            whole(spi.unwrap_or(0), flow_label.unwrap_or(0)),
            u64::from(spi.is_some()) | u64::from(flow_label.is_some()) << 1,
        ];
    }
}

/// The first of `count` filters, from the line `first` on, that a packet with this key matches, and which `is_it`, which is
/// asked with the line of the filter's rule.
#[inline(always)]
pub(super) fn find<const V6: bool>(
    lines: &[Line],
    first: usize,
    count: usize,
    key: &Key<V6>,
    mut is_it: impl FnMut(usize) -> bool,
) -> Option<usize> {
    for (number, own) in lines.get(first..first + count)?.iter().enumerate() {
        let word = |word: usize| own[word].load(Relaxed);
        let upper = word(UPPER);
        if key.upper & (upper >> 32) as u32 != upper as u32 || !V6 && key.v4 & word(V4_MASK) != word(V4_VALUE) {
            continue;
        }
        let ports = word(PORT_RANGES);
        if !Range::of((ports >> 32) as u32).contains(key.destination_port)
            || !Range::of(ports as u32).contains(key.source_port)
        {
            continue;
        }
        let at = first + number;
        if (V6 && word(self::V6) as u8 != ANY && !has_nets(lines, at, key.v6))
            || (word(MORE) != 0 && !more_matches(lines, at, key))
        {
            continue;
        }
        let rule = at.checked_sub((word(HAS_NUMBERS) >> 32) as usize)?;
        if is_it(rule) {
            return Some(rule);
        }
    }
    None
}

#[inline(never)]
fn has_nets(lines: &[Line], at: usize, addresses: [u128; 2]) -> bool {
    let v6 = lines[at][V6].load(Relaxed);
    let Some(line) = lines.get(at + (v6 >> 32) as usize).filter(|_| v6 as u8 == NETS) else { return false };
    let wide = |at: usize| u128::from(line[at + 1].load(Relaxed)) << 64 | u128::from(line[at].load(Relaxed));
    addresses.into_iter().zip([0, 4]).all(|(address, at)| address & wide(at + 2) == wide(at))
}

#[cold]
#[inline(never)]
fn more_matches<const V6: bool>(lines: &[Line], at: usize, key: &Key<V6>) -> bool {
    let [more, numbers, has] = [MORE, NUMBERS, HAS_NUMBERS].map(|word| lines[at][word].load(Relaxed));
    let (sources, destinations) = ((more >> 32) as u16 as usize, (more >> 48) as usize);
    let ranges = lines.get(at + more as u32 as usize..).unwrap_or_default().as_flattened();
    let range = |number: usize| {
        let word = ranges.get(number / 2).map_or(0, |word| word.load(Relaxed));
        Range::of(if number.is_multiple_of(2) { word as u32 } else { (word >> 32) as u32 })
    };
    let among = |first: usize, count: usize, port: u16| {
        count == 0 || (first..first + count).any(|number| range(number).contains(port))
    };
    among(0, sources, key.source_port)
        && among(sources, destinations, key.destination_port)
        && (has & 1 == 0 || key.spi == Some(numbers as u32))
        && (has & 2 == 0 || key.flow_label == Some((numbers >> 32) as u32))
}

impl Masked<u32> {
    /// These bits are given, too.
    fn give(&mut self, value: u32, mask: u32) {
        self.value |= value & mask;
        self.mask |= mask;
    }
}

impl Range {
    /// The range that all of these are in; any port where there are none.
    fn around(ports: &[(u16, u16)]) -> Self {
        let first = ports.iter().map(|&(first, _)| first).min().unwrap_or(0);
        let last = ports.iter().map(|&(_, last)| last).max().unwrap_or(u16::MAX);
        Self { first, span: last.saturating_sub(first) }
    }

    fn bits(self) -> u32 {
        u32::from(self.span) << 16 | u32::from(self.first)
    }

    #[inline(always)]
    fn of(bits: u32) -> Self {
        Self { first: bits as u16, span: (bits >> 16) as u16 }
    }

    #[inline(always)]
    fn contains(&self, port: u16) -> bool {
        port.wrapping_sub(self.first) <= self.span
    }
}

fn ranges(ports: &[(u16, u16)]) -> Vec<Range> {
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
        (Some(source), Some(destination)) => AddressesV6::Nets([source, destination]),
        _ => AddressesV6::None,
    }
}

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

    /// As it is written and read.
    fn matches<const V6: bool>(filters: &[Draft], key: &Key<V6>) -> bool {
        let mut image = Image::default();
        image.add(3);
        let filters: Vec<_> = filters.iter().map(|filter| (1, filter.clone())).collect();
        let first = Draft::write_all(&filters, &mut image);
        let lines: Vec<Line> = image.iter().map(|words| words.map(Into::into)).collect();
        find(&lines, first, filters.len(), key, |rule| rule == 1).is_some()
    }

    fn check<const V6: bool>(filter: &SdfFilter, bytes: &[u8]) -> Result<(), TestCaseError> {
        let Ok(packet) = Packet::<V6>::parse(bytes, bytes.len()) else { return Ok(()) };
        for uplink in [true, false] {
            let matches = matches(&[Draft::new(filter, uplink)], &Key::of(&packet));
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
