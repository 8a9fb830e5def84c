//! What a session has for itself: addresses, TEIDs, times and counts. All else it has in common with many others, which
//! the same session manager has made from the same plan. So these numbers rest apart, and the rest of the session, a
//! pattern, lies in memory once for all sessions that have it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use hashbrown::HashSet;

use crate::rules::{FTeid, Forwarding, Pdi, UeIp};

/// A number may be said to be the same as one that is so far back at most.
const BACK_MOST: usize = 16;
/// So many numbers at once.
const RUN_MOST: usize = 15;
/// Numbers that a session has at least, or not many less.
const ROOM: usize = 32;
/// The first octet of what says so; those below say how many octets a number has.
const RUNS: usize = 9;

/// Numbers on their way out of a session, which has zeros instead of them afterwards, or back into it. Both ways they come
/// by in the same order.
pub(super) enum Exchange<'a> {
    /// Out.
    Out(Vec<u64>),
    /// Back.
    Back(Reader<'a>),
}

impl<'a> Exchange<'a> {
    /// Out of a session.
    pub fn out() -> Self {
        Self::Out(Vec::with_capacity(ROOM))
    }

    /// Back from what [`Exchange::pack`] made of them.
    pub fn back(packed: &'a [u8]) -> Self {
        Self::Back(Reader { packed, recent: [0; BACK_MOST], count: 0, run: (0, 0), is_wrong: false })
    }

    /// The numbers that came out, packed.
    pub fn pack(self) -> Vec<u8> {
        let mut octets = Vec::with_capacity(2 * ROOM);
        if let Self::Out(numbers) = self {
            pack(&numbers, &mut octets);
        }
        octets
    }

    /// What is packed behind the numbers that have come back; none if they are not those that were to come.
    pub fn rest(self) -> Option<&'a [u8]> {
        match self {
            Self::Back(reader) => (!reader.is_wrong && reader.run.0 == 0).then_some(reader.packed),
            Self::Out(_) => None,
        }
    }

    pub fn number(&mut self, number: &mut u64) {
        match self {
            Self::Out(numbers) => numbers.push(std::mem::take(number)),
            Self::Back(reader) => *number = reader.next(),
        }
    }

    pub fn word(&mut self, word: &mut u32) {
        let mut number = u64::from(*word);
        self.number(&mut number);
        match u32::try_from(number) {
            Ok(number) => *word = number,
            Err(_) => self.is_wrong(),
        }
    }

    pub fn optional(&mut self, number: &mut Option<u64>) {
        number.iter_mut().for_each(|number| self.number(number));
    }

    fn v4(&mut self, address: &mut Ipv4Addr) {
        let mut word = address.to_bits();
        self.word(&mut word);
        *address = Ipv4Addr::from_bits(word);
    }

    fn v6(&mut self, address: &mut Ipv6Addr) {
        let [mut high, mut low] = [(address.to_bits() >> 64) as u64, address.to_bits() as u64];
        self.number(&mut high);
        self.number(&mut low);
        *address = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
    }

    fn ip(&mut self, address: &mut IpAddr) {
        match address {
            IpAddr::V4(v4) => self.v4(v4),
            IpAddr::V6(v6) => self.v6(v6),
        }
    }

    pub fn pdi(&mut self, pdi: &mut Pdi) {
        if let Some(FTeid { teid, .. }) = &mut pdi.f_teid {
            self.word(teid);
        }
        if let Some(UeIp { v4, v6 }) = &mut pdi.ue_ip {
            v4.iter_mut().for_each(|v4| self.v4(v4));
            v6.iter_mut().for_each(|(net, _)| self.v6(net));
        }
        pdi.framed_routes.iter_mut().for_each(|(net, _)| self.ip(net));
    }

    pub fn forwarding(&mut self, forwarding: &mut Forwarding) {
        if let Some(tunnel) = &mut forwarding.outer_header_creation {
            self.word(&mut tunnel.teid);
            self.ip(&mut tunnel.address);
        }
    }

    fn is_wrong(&mut self) {
        if let Self::Back(reader) = self {
            reader.is_wrong = true;
        }
    }
}

/// Packs numbers into `to`: of each its octets but for leading zeros, or that it is the same as an earlier one.
pub(super) fn pack(numbers: &[u64], to: &mut Vec<u8>) {
    let mut at = 0;
    while at < numbers.len() {
        let run = |back: usize| {
            let same = (at..numbers.len()).take(RUN_MOST).take_while(|&next| numbers[next] == numbers[next - back]);
            (same.count(), back)
        };
        let longest = (1..=at.min(BACK_MOST)).map(run).max().filter(|&(count, _)| count > 0);
        if let Some((count, back)) = longest {
            to.push((RUNS + (back - 1) * RUN_MOST + count - 1) as u8);
            at += count;
            continue;
        }
        let octets = numbers[at].to_le_bytes();
        let len = 8 - numbers[at].leading_zeros() as usize / 8;
        to.push(len as u8);
        to.extend_from_slice(&octets[..len]);
        at += 1;
    }
}

/// Numbers that were packed, one after the other.
pub(super) struct Reader<'a> {
    packed: &'a [u8],
    recent: [u64; BACK_MOST],
    /// How many there were.
    count: usize,
    /// So many more are the same as those so far back.
    run: (usize, usize),
    is_wrong: bool,
}

impl Reader<'_> {
    fn next(&mut self) -> u64 {
        let number = self.try_next();
        self.is_wrong |= number.is_none();
        let number = number.unwrap_or(0);
        self.recent[self.count % BACK_MOST] = number;
        self.count += 1;
        number
    }

    fn try_next(&mut self) -> Option<u64> {
        if self.run.0 == 0 {
            let (&kind, rest) = self.packed.split_first()?;
            self.packed = rest;
            let kind = usize::from(kind);
            let Some(run) = kind.checked_sub(RUNS) else { return self.literal(kind) };
            self.run = (run % RUN_MOST + 1, run / RUN_MOST + 1);
        }
        let (left, back) = self.run;
        self.run.0 = left - 1;
        let from = self.count.checked_sub(back).filter(|_| back <= BACK_MOST)?;
        Some(self.recent[from % BACK_MOST])
    }

    fn literal(&mut self, len: usize) -> Option<u64> {
        let (octets, rest) = self.packed.split_at_checked(len)?;
        self.packed = rest;
        Some(octets.iter().rev().fold(0, |number, &octet| number << 8 | u64::from(octet)))
    }
}

/// Patterns in use, each once.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    all: HashSet<Arc<[u8]>>,
    /// When there are so many it is time to look which are still in use.
    sweep_at: usize,
}

/// Fewer patterns than this are never too many.
const FEW: usize = 64;

impl Patterns {
    /// The pattern with these octets.
    pub fn get(&mut self, octets: &[u8]) -> Arc<[u8]> {
        if let Some(pattern) = self.all.get(octets) {
            return pattern.clone();
        }
        if self.all.len() >= self.sweep_at {
            self.all.retain(|pattern| Arc::strong_count(pattern) > 1);
            self.all.shrink_to(2 * self.all.len());
            self.sweep_at = FEW.max(2 * self.all.len());
        }
        let pattern: Arc<[u8]> = octets.into();
        self.all.insert(pattern.clone());
        pattern
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(numbers: &[u64]) -> Vec<u8> {
        let mut octets = vec![];
        pack(numbers, &mut octets);
        octets
    }

    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![3 => 0..3_u64, 1 => any::<u64>(), 1 => any::<u32>().prop_map(u64::from)]
    }

    proptest! {
        #[test]
        fn numbers_come_back_as_they_were(numbers in proptest::collection::vec(number(), 0..100), rest: Vec<u8>) {
            let octets = [packed(&numbers), rest.clone()].concat();
            let mut exchange = Exchange::back(&octets);
            for expected in &numbers {
                let mut number = 7;
                exchange.number(&mut number);
                prop_assert_eq!(number, *expected);
            }
            prop_assert_eq!(exchange.rest(), Some(&rest[..]));
        }

        #[test]
        fn octets_may_be_any_others(octets: Vec<u8>, count in 0..200) {
            let mut exchange = Exchange::back(&octets);
            (0..count).for_each(|_| exchange.word(&mut 0));
            exchange.rest();
        }
    }

    #[test]
    fn what_is_said_again_takes_one_octet() {
        assert_eq!(packed(&[0, 0, 0, 0, 0, 0x1234, 0, 0, 0, 0, 0, 0x1234]).len(), 1 + 1 + 3 + 1);
        assert_eq!(packed(&[]).len(), 0);
        assert_eq!(packed(&[u64::MAX]).len(), 9);
    }

    #[test]
    fn patterns_that_nobody_has_any_more_are_forgotten() {
        let mut patterns = Patterns::default();
        let kept: Vec<_> = (0..100_u32).map(|number| patterns.get(&number.to_be_bytes())).collect();
        (0..100_000_u32).for_each(|number| drop(patterns.get(&number.to_le_bytes())));
        assert!(patterns.all.len() < 1_000, "{}", patterns.all.len());
        assert!(
            (0..100_u32).zip(&kept).all(|(number, pattern)| Arc::ptr_eq(pattern, &patterns.get(&number.to_be_bytes())))
        );
    }
}
