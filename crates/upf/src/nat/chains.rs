//! A hash table of a fixed size: numbers of entries that somebody else holds, chained by their hashes. It allocates nothing
//! after it was made, and never has to be made anew.

/// No entry.
pub const NONE: u32 = u32::MAX;

/// The chains.
#[derive(Debug)]
pub struct Chains {
    /// First entry of each chain; a power of two.
    heads: Box<[u32]>,
    /// The entry behind each.
    next: Box<[u32]>,
}

impl Chains {
    /// Chains for entries with numbers below `entries`.
    pub fn new(entries: usize) -> Self {
        Self { heads: vec![NONE; entries.next_power_of_two()].into(), next: vec![NONE; entries].into() }
    }

    /// The first entry with this hash for which `is_it`.
    #[inline]
    pub fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let mut entry = self.heads[self.head(hash)];
        while entry != NONE && !is_it(entry) {
            entry = self.next[entry as usize];
        }
        (entry != NONE).then_some(entry)
    }

    /// Puts in an entry that is not in.
    pub fn insert(&mut self, hash: u64, entry: u32) {
        let head = self.head(hash);
        self.next[entry as usize] = std::mem::replace(&mut self.heads[head], entry);
    }

    /// Takes out an entry with this hash.
    pub fn remove(&mut self, hash: u64, entry: u32) {
        let head = self.head(hash);
        let behind = std::mem::replace(&mut self.next[entry as usize], NONE);
        if self.heads[head] == entry {
            self.heads[head] = behind;
            return;
        }
        let mut at = self.heads[head];
        while at != NONE {
            if self.next[at as usize] == entry {
                self.next[at as usize] = behind;
                return;
            }
            at = self.next[at as usize];
        }
    }

    #[inline]
    fn head(&self, hash: u64) -> usize {
        hash as usize & (self.heads.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chains_find_what_a_map_finds(steps in prop::collection::vec((0..16_u32, any::<bool>()), 0..200)) {
            // Many keys share a hash.
            let (mut chains, mut model) = (Chains::new(16), HashMap::new());
            for (key, put) in steps {
                let hash = u64::from(key / 4);
                let found = chains.find(hash, |entry| entry == key);
                prop_assert_eq!(found, model.get(&key).copied());
                match (put, found) {
                    (true, None) => {
                        chains.insert(hash, key);
                        model.insert(key, key);
                    }
                    (false, Some(entry)) => {
                        chains.remove(hash, entry);
                        model.remove(&key);
                    }
                    _ => {}
                }
            }
        }
    }
}
