//! UE addresses of this UPF's choice: what is free in its pools, what sessions hold, and what cools off.
//!
//! An address that was given back is not given out again for a while, so that packets that are still on their way to the
//! UE that had it do not reach another. Addresses are numbers below; giving one out and taking it back costs the same
//! however many there are.

use std::collections::{BTreeSet, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops;

use hashbrown::HashMap;
use pfcp::node::{UpFeature, UpFeatures};

use crate::address_pool::AddressPool;
use crate::rules::UeIp;
use crate::side::mask;

/// An address or prefix of a UE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UeAddress {
    /// An address.
    V4(Ipv4Addr),
    /// A prefix and its length in bits.
    V6(Ipv6Addr, u8),
}

/// A kind of address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An IPv4 address.
    V4,
    /// An IPv6 prefix of this length.
    V6(u8),
}

/// What an address is wanted for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// Its network instance; any where absent.
    pub network_instance: Option<&'a str>,
    /// Names of pools; any where there are none.
    pub pools: &'a [String],
}

/// Nothing is free that would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all addresses are occupied")]
pub struct Exhausted;

/// The pools.
#[derive(Clone, Debug)]
pub struct Addresses {
    pools: Vec<Pool>,
    cooling_ns: u64,
    now_ns: u64,
}

#[derive(Clone, Debug)]
struct Pool {
    name: String,
    network_instances: Vec<String>,
    v4: Space,
    v6: Space,
    /// Length of the prefixes of `v6`.
    v6_length: u8,
}

/// How full a pool is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// The pool's name.
    pub name: String,
    /// IPv4 addresses that sessions have, and of how many.
    pub v4: (u64, u64),
    /// IPv6 prefixes that sessions have, and of how many.
    pub v6: (u64, u64),
}

impl UeAddress {
    /// The addresses of a UE.
    pub fn of(ue: &UeIp) -> impl Iterator<Item = Self> + use<> {
        let v6 = ue.v6.map(|(net, length)| Self::V6(Ipv6Addr::from_bits(net.to_bits() & mask(true, length)), length));
        ue.v4.map(Self::V4).into_iter().chain(v6)
    }

    fn kind(&self) -> Kind {
        match *self {
            Self::V4(_) => Kind::V4,
            Self::V6(_, length) => Kind::V6(length),
        }
    }
}

impl Addresses {
    /// With every address free. One that is given back is not given out again before `cooling_ns` have passed.
    pub fn new(pools: &[AddressPool], cooling_ns: u64) -> Self {
        Self { pools: pools.iter().map(Pool::new).collect(), cooling_ns, now_ns: 0 }
    }

    /// How full the pools are.
    pub fn usage(&self) -> Vec<PoolUsage> {
        let of = |space: &Space| (space.held.len() as u64, space.total);
        self.pools
            .iter()
            .map(|pool| PoolUsage { name: pool.name.clone(), v4: of(&pool.v4), v6: of(&pool.v6) })
            .collect()
    }

    /// Whether there are no pools.
    pub fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// What session managers are told: choice of addresses (UEIP), and of IPv6 prefixes of other lengths than 64 (IP6PL).
    pub fn features(&self) -> Vec<UpFeature> {
        let is_other = |pool: &Pool| pool.v6.total > 0 && pool.v6_length != pfcp::rule::UeIp::DEFAULT_PREFIX;
        let chooses = (!self.is_empty()).then_some(UpFeatures::UEIP);
        chooses.into_iter().chain(self.pools.iter().any(is_other).then_some(UpFeatures::IP6PL)).collect()
    }

    /// Whether there is a pool with this name.
    pub fn has_pool(&self, name: &str) -> bool {
        self.pools.iter().any(|pool| pool.name == name)
    }

    /// Whether the address could have been given out for `wanted`.
    pub fn suits(&self, address: UeAddress, wanted: Wanted) -> bool {
        self.pools.iter().any(|pool| {
            let numbers = pool.numbers(address);
            pool.suits(wanted) && numbers.end - numbers.start == 1
        })
    }

    /// Time goes on to `now_ns`.
    pub fn tick(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// An address of this kind for a session that has the addresses `had`: one of them if it suits, or else one more, which
    /// is then the last of `new`, too.
    pub fn choose(
        &mut self,
        kind: Kind,
        wanted: Wanted,
        had: &BTreeSet<UeAddress>,
        new: &mut Vec<UeAddress>,
    ) -> Result<UeAddress, Exhausted> {
        if let Some(&address) = had.iter().find(|had| had.kind() == kind && self.suits(**had, wanted)) {
            return Ok(address);
        }
        let address = self.allocate(kind, wanted)?;
        new.push(address);
        Ok(address)
    }

    /// Gives out an address.
    pub fn allocate(&mut self, kind: Kind, wanted: Wanted) -> Result<UeAddress, Exhausted> {
        let (now_ns, cooling_ns) = (self.now_ns, self.cooling_ns);
        let mut pools = self.pools.iter_mut().filter(|pool| pool.suits(wanted));
        let found = pools.find_map(|pool| match kind {
            Kind::V4 => Some(UeAddress::V4(Ipv4Addr::from_bits(pool.v4.allocate(now_ns, cooling_ns)? as u32))),
            Kind::V6(length) if length != pool.v6_length => None,
            Kind::V6(length) => Some(UeAddress::V6(Ipv6Addr::from_bits(pool.v6.allocate(now_ns, cooling_ns)?), length)),
        });
        found.ok_or(Exhausted)
    }

    /// Notes that a session has this address, whoever chose it; as often as it is given back later. What is in no pool does
    /// not matter.
    pub fn take(&mut self, address: UeAddress) {
        self.with(address, |space, number| space.take(number));
    }

    /// A session does not have this address any more.
    pub fn give_back(&mut self, address: UeAddress) {
        let now_ns = self.now_ns;
        self.with(address, |space, number| space.give_back(number, now_ns));
    }

    /// An address that was given out last was not used.
    pub fn undo(&mut self, address: UeAddress) {
        self.with(address, |space, number| space.undo(number));
    }

    fn with(&mut self, address: UeAddress, mut act: impl FnMut(&mut Space, u64)) {
        for pool in &mut self.pools {
            let numbers = pool.numbers(address);
            if numbers.end - numbers.start <= MOST_AT_ONCE {
                let space = if matches!(address, UeAddress::V4(_)) { &mut pool.v4 } else { &mut pool.v6 };
                numbers.for_each(|number| act(space, number));
            }
        }
    }
}

impl Pool {
    fn new(config: &AddressPool) -> Self {
        let v4 = config.ipv4.iter().map(|range| {
            let (first, last) = (range.first.to_bits(), range.last.to_bits());
            (first.into(), u64::from(last - first) + 1)
        });
        let length = config.ipv6_prefix_length;
        let v6 = config.ipv6.iter().map(|net| (net.network.to_bits(), 1 << (length - net.length)));
        Self {
            name: config.name.clone(),
            network_instances: config.network_instances.clone(),
            v4: Space::new(v4, 0),
            v6: Space::new(v6, 128 - u32::from(length)),
            v6_length: length,
        }
    }

    fn suits(&self, wanted: Wanted) -> bool {
        let is_served =
            |name| self.network_instances.is_empty() || self.network_instances.iter().any(|own| own == name);
        wanted.network_instance.is_none_or(is_served) && (wanted.pools.is_empty() || wanted.pools.contains(&self.name))
    }

    fn numbers(&self, address: UeAddress) -> ops::Range<u64> {
        match address {
            UeAddress::V4(address) => self.v4.numbers(address.to_bits().into(), address.to_bits().into()),
            UeAddress::V6(net, length) => self.v6.numbers(net.to_bits(), net.to_bits() | !mask(true, length)),
        }
    }
}

/// Numbered addresses. Those below `next` that nobody holds are in `unused` or cool off; of those from `next` on the ones are
/// free that nobody holds and that do not cool off.
#[derive(Clone, Debug, Default)]
struct Space {
    ranges: Vec<Range>,
    /// Bits of an address behind those that are counted.
    shift: u32,
    total: u64,
    /// No number from here on was given out.
    next: u64,
    /// How many sessions have each.
    held: HashMap<u64, u32>,
    /// Given out, but not used. What is held or cools off meanwhile does not count.
    unused: Vec<u64>,
    /// Given back, with the number of the entry in `queue` that counts.
    cooling: HashMap<u64, u64>,
    /// In the order in which they were given back.
    queue: VecDeque<Cooling>,
    /// Number of the last entry of `queue`.
    serial: u64,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    /// The first address.
    address: u128,
    /// Its number.
    first: u64,
    count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Cooling {
    number: u64,
    serial: u64,
    since_ns: u64,
}

/// Most numbers that one prefix of a session manager's choice takes. A shorter prefix takes none: the tables find longer
/// ones within it first.
const MOST_AT_ONCE: u64 = 1 << 12;

impl Space {
    fn new(ranges: impl Iterator<Item = (u128, u64)>, shift: u32) -> Self {
        let mut space = Self { shift, ..Self::default() };
        for (address, count) in ranges {
            space.ranges.push(Range { address, first: space.total, count });
            space.total += count;
        }
        space
    }

    /// The numbers of the addresses from `first` to `last`.
    fn numbers(&self, first: u128, last: u128) -> ops::Range<u64> {
        let number = |range: &Range| {
            let end = range.address + ((u128::from(range.count) << self.shift) - 1);
            if last < range.address || end < first {
                return None;
            }
            let at = |address: u128| range.first + ((address - range.address) >> self.shift) as u64;
            Some(at(first.max(range.address))..at(last.min(end)) + 1)
        };
        self.ranges.iter().find_map(number).unwrap_or(0..0)
    }

    fn address(&self, number: u64) -> u128 {
        let range = self.ranges[self.ranges.partition_point(|range| range.first <= number) - 1];
        range.address + (u128::from(number - range.first) << self.shift)
    }

    fn is_free(&self, number: u64) -> bool {
        !self.held.contains_key(&number) && !self.cooling.contains_key(&number)
    }

    fn allocate(&mut self, now_ns: u64, cooling_ns: u64) -> Option<u128> {
        let unused = self.unused();
        let number = unused.or_else(|| self.cooled(now_ns, cooling_ns)).or_else(|| self.fresh())?;
        self.held.insert(number, 1);
        Some(self.address(number))
    }

    fn unused(&mut self) -> Option<u64> {
        while let Some(number) = self.unused.pop() {
            if self.is_free(number) {
                return Some(number);
            }
        }
        None
    }

    /// The number that was given back first, if that is long enough ago.
    fn cooled(&mut self, now_ns: u64, cooling_ns: u64) -> Option<u64> {
        while let Some(&Cooling { number, serial, since_ns }) = self.queue.front() {
            let counts = self.cooling.get(&number) == Some(&serial);
            if counts && now_ns < since_ns.saturating_add(cooling_ns) {
                return None;
            }
            self.queue.pop_front();
            if counts {
                self.cooling.remove(&number);
                return Some(number);
            }
        }
        None
    }

    fn fresh(&mut self) -> Option<u64> {
        while self.next < self.total {
            self.next += 1;
            if self.is_free(self.next - 1) {
                return Some(self.next - 1);
            }
        }
        None
    }

    fn take(&mut self, number: u64) {
        self.cooling.remove(&number);
        *self.held.entry(number).or_default() += 1;
    }

    fn give_back(&mut self, number: u64, now_ns: u64) {
        let Some(holders) = self.held.get_mut(&number) else { return };
        *holders -= 1;
        if *holders > 0 {
            return;
        }
        self.held.remove(&number);
        self.serial += 1;
        self.cooling.insert(number, self.serial);
        self.queue.push_back(Cooling { number, serial: self.serial, since_ns: now_ns });
        if self.queue.len() > 2 * self.cooling.len() + 64 {
            // More than half of the entries are of numbers that were taken meanwhile.
            let cooling = &self.cooling;
            self.queue.retain(|entry| cooling.get(&entry.number) == Some(&entry.serial));
        }
    }

    fn undo(&mut self, number: u64) {
        if self.held.remove(&number).is_some() {
            self.unused.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const COOLING_NS: u64 = 100;

    fn addresses(text: &str) -> Addresses {
        Addresses::new(&serde_saphyr::from_str::<Vec<AddressPool>>(text).unwrap(), COOLING_NS)
    }

    fn v4(text: &str) -> UeAddress {
        UeAddress::V4(text.parse().unwrap())
    }

    fn v6(text: &str, length: u8) -> UeAddress {
        UeAddress::V6(text.parse().unwrap(), length)
    }

    fn get(addresses: &mut Addresses) -> Result<UeAddress, Exhausted> {
        addresses.allocate(Kind::V4, Wanted::default())
    }

    #[test]
    fn a_pool_is_given_out_once_and_then_exhausted() {
        let mut addresses =
            addresses("[{name: a, ipv4: [10.45.0.0/30, 10.46.0.9-10.46.0.10], ipv6: ['2001:db8::/63']}]");
        let given: Vec<_> = (0..5).map(|_| get(&mut addresses)).collect();
        let expected = ["10.45.0.1", "10.45.0.2", "10.46.0.9", "10.46.0.10"].map(|text| Ok(v4(text)));
        assert_eq!((&given[..4], given[4]), (&expected[..], Err(Exhausted)));
        let mut prefix = |length| addresses.allocate(Kind::V6(length), Wanted::default());
        assert_eq!(prefix(56), Err(Exhausted));
        assert_eq!(prefix(64), Ok(v6("2001:db8::", 64)));
        assert_eq!(prefix(64), Ok(v6("2001:db8:0:1::", 64)));
        assert_eq!(prefix(64), Err(Exhausted));
    }

    #[test]
    fn an_address_cools_off_before_another_gets_it() {
        let mut addresses = addresses("[{name: a, ipv4: [10.45.0.1-10.45.0.2]}]");
        let (first, second) = (get(&mut addresses).unwrap(), get(&mut addresses).unwrap());
        addresses.tick(10);
        addresses.give_back(second);
        addresses.tick(20);
        addresses.give_back(first);
        for (now_ns, expected) in [(109, Err(Exhausted)), (110, Ok(second)), (119, Err(Exhausted)), (120, Ok(first))] {
            addresses.tick(now_ns);
            assert_eq!(get(&mut addresses), expected, "{now_ns}");
        }
    }

    #[test]
    fn what_a_session_manager_gives_is_taken_out_of_the_pool() {
        let mut addresses = addresses("[{name: a, ipv4: [10.45.0.1-10.45.0.3], ipv6: ['2001:db8::/62']}]");
        addresses.take(v4("10.45.0.1"));
        addresses.take(v4("10.45.0.3"));
        addresses.take(v4("10.99.0.1"));
        assert_eq!(get(&mut addresses), Ok(v4("10.45.0.2")));
        assert_eq!(get(&mut addresses), Err(Exhausted));
        addresses.give_back(v4("10.45.0.3"));
        addresses.tick(100);
        assert_eq!(get(&mut addresses), Ok(v4("10.45.0.3")));
        // A part of one prefix; two prefixes at once.
        addresses.take(v6("2001:db8:0:1::7", 128));
        addresses.take(v6("2001:db8:0:2::", 63));
        assert_eq!(addresses.allocate(Kind::V6(64), Wanted::default()), Ok(v6("2001:db8::", 64)));
        assert_eq!(addresses.allocate(Kind::V6(64), Wanted::default()), Err(Exhausted));
    }

    #[test]
    fn an_address_comes_from_a_pool_of_its_network_instance_and_name() {
        let mut addresses = addresses(
            "[{name: a, networkInstances: [internet], ipv4: [10.1.0.0/24]}, {name: b, networkInstances: [ims], ipv4: \
             [10.2.0.0/24]}, {name: c, ipv4: [10.3.0.0/24]}]",
        );
        let mut net = |network_instance, pools: &[&str]| {
            let pools: Vec<_> = pools.iter().map(|&name| name.to_owned()).collect();
            match addresses.allocate(Kind::V4, Wanted { network_instance, pools: &pools }) {
                Ok(UeAddress::V4(address)) => Some(address.octets()[1]),
                _ => None,
            }
        };
        assert_eq!(net(None, &[]), Some(1));
        assert_eq!(net(Some("ims"), &[]), Some(2));
        assert_eq!(net(Some("corporate"), &[]), Some(3));
        assert_eq!(net(Some("internet"), &["c"]), Some(3));
        assert_eq!(net(Some("internet"), &["b"]), None);
        let wanted = Wanted { network_instance: Some("ims"), pools: &[] };
        assert!(addresses.suits(v4("10.2.0.9"), wanted) && addresses.suits(v4("10.3.0.9"), wanted));
        assert!(!addresses.suits(v4("10.1.0.9"), wanted) && !addresses.suits(v4("10.4.0.9"), wanted));
    }

    /// One thing that happens to a pool.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Allocate,
        AllocateInVain,
        Take(u8),
        GiveBack(u8),
        Wait(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => Just(Event::Allocate),
            1 => Just(Event::AllocateInVain),
            2 => (1..=12u8).prop_map(Event::Take),
            5 => (1..=12u8).prop_map(Event::GiveBack),
            2 => (0..150u64).prop_map(Event::Wait),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

        /// Ten addresses, and two more that are in no pool.
        #[test]
        fn nobody_gets_what_another_holds_or_has_just_given_back(events in proptest::collection::vec(event(), 0..200)) {
            let mut addresses = addresses("[{name: a, ipv4: [10.0.0.1-10.0.0.6, 10.0.0.7-10.0.0.10]}]");
            let address = |number: u8| UeAddress::V4([10, 0, 0, number].into());
            let mut held: BTreeMap<u8, u32> = BTreeMap::new();
            let mut left: BTreeMap<u8, u64> = BTreeMap::new();
            let mut now = 1_000;
            for event in events {
                match event {
                    Event::Allocate | Event::AllocateInVain => {
                        let is_free = |n: &u8| {
                            !held.contains_key(n) && left.get(n).is_none_or(|&since| now >= since + COOLING_NS)
                        };
                        let free: Vec<_> = (1..=10u8).filter(is_free).collect();
                        addresses.tick(now);
                        match get(&mut addresses) {
                            Ok(given) => {
                                let number = (1..=10).find(|&n| address(n) == given).unwrap_or(0);
                                prop_assert!(free.contains(&number), "{number} is not of {free:?}");
                                if matches!(event, Event::Allocate) {
                                    held.insert(number, 1);
                                    left.remove(&number);
                                } else {
                                    addresses.undo(address(number));
                                }
                            }
                            Err(Exhausted) => prop_assert!(free.is_empty(), "{free:?} are free"),
                        }
                    }
                    Event::Take(number) => {
                        addresses.take(address(number));
                        *held.entry(number).or_default() += 1;
                        left.remove(&number);
                    }
                    Event::GiveBack(number) => {
                        addresses.tick(now);
                        addresses.give_back(address(number));
                        if let Some(holders) = held.get_mut(&number) {
                            *holders -= 1;
                            if *holders == 0 {
                                held.remove(&number);
                                left.insert(number, now);
                            }
                        }
                    }
                    Event::Wait(ns) => now += ns,
                }
            }
        }
    }
}
