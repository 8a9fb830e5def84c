//! What there is for each session, by the UPF's SEID. SEIDs are given out in order, so neighbours lie together: sixteen on
//! a shelf, which costs next to nothing besides.

use std::collections::BTreeMap;

/// Sessions of a shelf.
const SHELF: usize = 16;

type Shelf<V> = Box<[Option<V>; SHELF]>;

/// A value for each of some SEIDs, in their order.
#[derive(Debug)]
pub(crate) struct BySeid<V> {
    /// By the SEID without its lowest bits. None is empty.
    shelves: BTreeMap<u64, Shelf<V>>,
    len: usize,
}

impl<V> Default for BySeid<V> {
    fn default() -> Self {
        Self { shelves: BTreeMap::new(), len: 0 }
    }
}

impl<V> BySeid<V> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn contains_key(&self, seid: &u64) -> bool {
        self.get(seid).is_some()
    }

    pub fn get(&self, seid: &u64) -> Option<&V> {
        let (shelf, at) = place(*seid);
        self.shelves.get(&shelf)?[at].as_ref()
    }

    pub fn get_mut(&mut self, seid: &u64) -> Option<&mut V> {
        let (shelf, at) = place(*seid);
        self.shelves.get_mut(&shelf)?[at].as_mut()
    }

    /// Puts a value in; the one that was there before.
    pub fn insert(&mut self, seid: u64, value: V) -> Option<V> {
        let (shelf, at) = place(seid);
        let shelf = self.shelves.entry(shelf).or_insert_with(|| Box::new([const { None }; SHELF]));
        let former = shelf[at].replace(value);
        self.len += usize::from(former.is_none());
        former
    }

    pub fn remove(&mut self, seid: &u64) -> Option<V> {
        let (number, at) = place(*seid);
        let shelf = self.shelves.get_mut(&number)?;
        let value = shelf[at].take()?;
        if shelf.iter().all(Option::is_none) {
            self.shelves.remove(&number);
        }
        self.len -= 1;
        Some(value)
    }

    pub fn keys(&self) -> impl Iterator<Item = u64> {
        self.iter().map(|(seid, _)| seid)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        self.from(0)
    }

    /// Those from this SEID on.
    pub fn from(&self, first: u64) -> impl Iterator<Item = (u64, &V)> {
        let shelves = self.shelves.range(place(first).0..);
        let all = shelves.flat_map(|(&number, shelf)| {
            shelf.iter().enumerate().filter_map(move |(at, value)| Some((seid(number, at), value.as_ref()?)))
        });
        all.skip_while(move |(seid, _)| *seid < first)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut V)> {
        self.shelves.iter_mut().flat_map(|(&number, shelf)| {
            shelf.iter_mut().enumerate().filter_map(move |(at, value)| Some((seid(number, at), value.as_mut()?)))
        })
    }
}

impl<V> Extend<(u64, V)> for BySeid<V> {
    fn extend<I: IntoIterator<Item = (u64, V)>>(&mut self, values: I) {
        for (seid, value) in values {
            self.insert(seid, value);
        }
    }
}

fn place(seid: u64) -> (u64, usize) {
    (seid / SHELF as u64, (seid % SHELF as u64) as usize)
}

fn seid(shelf: u64, at: usize) -> u64 {
    shelf * SHELF as u64 + at as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map(steps in proptest::collection::vec((0u64..70, any::<bool>()), 0..200), first in 0u64..80) {
            let (mut sessions, mut model) = (BySeid::default(), BTreeMap::new());
            for (number, (low, put)) in steps.into_iter().enumerate() {
                let seid = u64::MAX - 80 + low;
                if put {
                    prop_assert_eq!(sessions.insert(seid, number), model.insert(seid, number));
                } else {
                    prop_assert_eq!(sessions.remove(&seid), model.remove(&seid));
                }
                prop_assert_eq!(sessions.contains_key(&seid), put);
                prop_assert_eq!(sessions.len(), model.len());
            }
            prop_assert!(sessions.iter().map(|(seid, value)| (seid, *value)).eq(model.clone()));
            let first = u64::MAX - 80 + first;
            prop_assert!(sessions.from(first).eq(model.range(first..).map(|(seid, value)| (*seid, value))));
            sessions.iter_mut().for_each(|(_, value)| *value += 1);
            prop_assert!(model.iter().all(|(seid, value)| sessions.get(seid) == Some(&(value + 1))));
            prop_assert!(model.keys().all(|seid| sessions.remove(seid).is_some()));
            prop_assert!(sessions.shelves.is_empty() && sessions.len() == 0);
        }
    }
}
