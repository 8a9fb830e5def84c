//! A map from TEIDs or IPv4 addresses. They are mostly given out one after the other, so that their low bits tell them apart: who
//! looks for one finds it where these say, in one cache line. Those of which another one has the place are in a table of hashes.

use hashbrown::HashMap;
use port::CacheLevel;
use vport::large_pages::Words;

use super::mix::Mix;

/// The map.
#[derive(Debug)]
pub(super) struct Direct {
    /// By the key's low bits: the key, and in the upper half what it leads to; 0 where there is none. Empty before the first key.
    places: Words,
    mask: u32,
    /// Places that are not empty.
    used: usize,
    others: HashMap<u32, u32, Mix>,
}

impl Direct {
    /// An empty map with this many places, a power of two. They take no memory before they are used.
    pub fn new(places: usize) -> Self {
        assert!(places.is_power_of_two());
        Self { places: Words::default(), mask: (places - 1) as u32, used: 0, others: HashMap::default() }
    }

    /// What the key leads to.
    #[inline(always)]
    pub fn get(&self, key: u32) -> Option<u32> {
        match self.at_place(key) {
            None if !self.others.is_empty() => self.others.get(&key).copied(),
            found => found,
        }
    }

    /// The same, if the key has the place that its low bits say.
    #[inline(always)]
    pub fn at_place(&self, key: u32) -> Option<u32> {
        let place = *self.places.get((key & self.mask) as usize)?;
        is_of(place, key).then_some((place >> 32) as u32)
    }

    /// Asks for the line that will soon be looked at.
    #[inline(always)]
    pub fn ask(&self, key: u32, level: CacheLevel) {
        self.places.ask((key & self.mask) as usize, level);
    }

    /// Has the key lead there, or nowhere.
    pub fn set(&mut self, key: u32, to: Option<u32>) {
        let at = (key & self.mask) as usize;
        if to.is_some() && self.places.is_empty() {
            // Without them all are among the others.
            self.places = Words::zeroed(self.mask as usize + 1).unwrap_or_default();
        }
        match (self.places.get_mut(at), to) {
            // The key 0 has no place: that would be an empty one.
            (Some(place), Some(to)) if key != 0 && (*place == 0 || is_of(*place, key)) => {
                self.used += usize::from(*place == 0);
                *place = u64::from(to) << 32 | u64::from(key);
                self.others.remove(&key);
            }
            (Some(place), None) if is_of(*place, key) => {
                self.used -= 1;
                *place = 0;
            }
            (_, Some(to)) => _ = self.others.insert(key, to),
            (_, None) => _ = self.others.remove(&key),
        }
    }

    /// How many keys there are.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.used + self.others.len()
    }
}

impl Clone for Direct {
    fn clone(&self) -> Self {
        let mut copy = Self::new(self.mask as usize + 1);
        let used = self.places.iter().filter(|place| **place != 0);
        let all = used
            .map(|place| (*place as u32, (place >> 32) as u32))
            .chain(self.others.iter().map(|(&key, &to)| (key, to)));
        all.for_each(|(key, to)| copy.set(key, Some(to)));
        copy
    }
}

#[inline(always)]
fn is_of(place: u64, key: u32) -> bool {
    place as u32 == key && key != 0
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_that_differ_in_high_bits_alone_are_told_apart() {
        let mut map = Direct::new(16);
        map.set(0x123, Some(7));
        map.set(0x223, Some(8));
        assert_eq!([0x123, 0x223, 0x323, 3, 0].map(|key| map.get(key)), [Some(7), Some(8), None, None, None]);
        map.set(0x123, None);
        assert_eq!([0x123, 0x223].map(|key| map.get(key)), [None, Some(8)]);
        map.set(0x223, Some(9));
        map.set(0x123, Some(1));
        assert_eq!([0x123, 0x223].map(|key| map.get(key)), [Some(1), Some(9)]);
    }

    proptest! {
        #[test]
        fn it_is_a_map(changes in prop::collection::vec((0..64_u32, prop::option::of(0..9_u32)), 0..200)) {
            let (mut map, mut model) = (Direct::new(8), HashMap::new());
            for (key, to) in changes {
                map.set(key, to);
                match to {
                    Some(to) => model.insert(key, to),
                    None => model.remove(&key),
                };
                prop_assert_eq!(map.len(), model.len());
                prop_assert!((0..64).all(|key| map.get(key) == model.get(&key).copied()));
            }
            let copy = map.clone();
            prop_assert!(copy.len() == model.len() && (0..64).all(|key| copy.get(key) == model.get(&key).copied()));
        }
    }
}
