//! Paths that sessions' tunnels take. They are written down, so that the next process knows them by the same numbers.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use super::blocks::{Blocks, Kind};
use super::hops::Hops;
use super::version::Change;
use crate::path::{Path, PathKey};
use crate::side::Sides;

pub(super) struct Paths {
    sides: Sides,
    /// By their numbers. None where a number is free.
    entries: Vec<Option<Entry>>,
    by_key: HashMap<PathKey, u32>,
    /// Neighbours with the paths that they are on.
    by_hop: BTreeSet<(u32, u32)>,
    free: Vec<u32>,
    /// Not yet published.
    fresh: Vec<u32>,
    /// Perhaps no longer needed.
    loose: Vec<u32>,
}

struct Entry {
    key: PathKey,
    /// Index of the neighbour that leads to the peer.
    hop: u32,
    /// As it was last published.
    ethernet: Option<[u8; 12]>,
    pins: u32,
    /// None before it is written down.
    block: Option<u32>,
}

impl Paths {
    pub fn new(sides: Sides) -> Self {
        let (by_key, by_hop) = (HashMap::new(), BTreeSet::new());
        Self { sides, entries: vec![], by_key, by_hop, free: vec![], fresh: vec![], loose: vec![] }
    }

    /// Takes in a path that an earlier process wrote down, which nobody needs as yet. False if there is none like it, with a
    /// number below `most`.
    pub fn restore(&mut self, block: u32, record: &[u8], most: u32, hops: &mut Hops) -> bool {
        let Ok((number, key)) = postcard::from_bytes::<(u32, PathKey)>(record) else { return false };
        let is_known = self.by_key.contains_key(&key) || self.has(number);
        if is_known || number >= most || key.port.number() >= self.sides.iter().count() {
            return false;
        }
        let Some(next_hop) = self.sides.get(key.port).next_hop(key.peer) else { return false };
        if key.source.is_ipv4() != key.peer.is_ipv4() {
            return false;
        }
        let hop = hops.pin(key.port, next_hop);
        if number as usize >= self.entries.len() {
            self.entries.resize_with(number as usize + 1, || None);
        }
        self.entries[number as usize] = Some(Entry { key, hop, ethernet: None, pins: 0, block: Some(block) });
        self.by_key.insert(key, number);
        self.by_hop.insert((hop, number));
        self.fresh.push(number);
        self.loose.push(number);
        true
    }

    /// Whether there is a path with this number.
    pub fn has(&self, number: u32) -> bool {
        self.entries.get(number as usize).is_some_and(Option::is_some)
    }

    /// The number of the path, which stays until it is unpinned.
    ///
    /// # Panics
    /// If no route leads to the peer.
    pub fn pin(&mut self, key: PathKey, hops: &mut Hops) -> u32 {
        let number = match self.by_key.get(&key) {
            Some(&number) => number,
            None => self.add(key, hops),
        };
        self.pin_again(number);
        number
    }

    /// Somebody else needs the path, too.
    pub fn pin_again(&mut self, number: u32) {
        self.entry(number).pins += 1;
    }

    pub fn unpin(&mut self, number: u32) {
        let entry = self.entry(number);
        entry.pins -= 1;
        if entry.pins == 0 {
            self.loose.push(number);
        }
    }

    fn add(&mut self, key: PathKey, hops: &mut Hops) -> u32 {
        let next_hop =
            self.sides.get(key.port).next_hop(key.peer).expect("whoever wants a path has looked for a route");
        let hop = hops.pin(key.port, next_hop);
        let entry = Entry { key, hop, ethernet: None, pins: 0, block: None };
        let number = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.entries[number as usize] = Some(entry);
        self.by_key.insert(key, number);
        self.by_hop.insert((hop, number));
        self.fresh.push(number);
        number
    }

    /// Adds to `changes` what pinning and unpinning came to, and writes down what is new. Returns blocks of paths that nobody
    /// needs any more.
    pub fn settle(&mut self, hops: &mut Hops, blocks: &mut Blocks, changes: &mut Vec<Change>) -> Vec<u32> {
        let mut before = Vec::new();
        for number in std::mem::take(&mut self.fresh) {
            let Some(entry) = &mut self.entries[number as usize] else { continue };
            entry.ethernet = hops.ethernet(entry.hop);
            entry.block.get_or_insert_with(|| {
                let record = postcard::to_allocvec(&(number, entry.key)).expect("nothing in it is of unknown length");
                blocks.put(Kind::Path, 0, &record, &[])
            });
            before.push(Change::Path(number, entry.path(&self.sides)));
        }
        // Rules may name a path only once it is there.
        changes.splice(0..0, before);
        let mut left = vec![];
        for number in std::mem::take(&mut self.loose) {
            let unneeded = self.entries[number as usize].take_if(|entry| entry.pins == 0);
            let Some(Entry { key, hop, block, .. }) = unneeded else { continue };
            left.extend(block);
            self.forget(number, &key, hop, hops);
        }
        left
    }

    /// Most lines that paths take which are not written down yet.
    pub fn fresh_lines(&self) -> usize {
        2 * self.fresh.len()
    }

    /// Forgets paths that are not written down and that nobody needs.
    pub fn forget_fresh(&mut self, hops: &mut Hops) {
        for number in std::mem::take(&mut self.fresh) {
            let unneeded = self.entries[number as usize].take_if(|entry| entry.pins == 0);
            let Some(Entry { key, hop, .. }) = unneeded else { continue };
            self.forget(number, &key, hop, hops);
        }
    }

    fn forget(&mut self, number: u32, key: &PathKey, hop: u32, hops: &mut Hops) {
        hops.unpin(hop);
        self.by_key.remove(key);
        self.by_hop.remove(&(hop, number));
        self.free.push(number);
    }

    /// Adds to `changes`, which tell what has become of neighbours, what that makes of the paths that these are on.
    pub fn follow(&mut self, hops: &Hops, changes: &mut Vec<Change>) {
        let mut moved = vec![];
        for change in &*changes {
            let Change::Hop(hop, _) = *change else { continue };
            let ethernet = hops.ethernet(hop);
            for &(_, number) in self.by_hop.range((hop, 0)..=(hop, u32::MAX)) {
                let Some(entry) = &mut self.entries[number as usize] else { continue };
                if std::mem::replace(&mut entry.ethernet, ethernet) != ethernet {
                    moved.push(Change::Path(number, entry.path(&self.sides)));
                }
            }
        }
        changes.extend(moved);
    }

    fn entry(&mut self, number: u32) -> &mut Entry {
        self.entries[number as usize].as_mut().expect("a path stays while it is pinned")
    }
}

impl Entry {
    fn path(&self, sides: &Sides) -> Box<Path> {
        let Self { key, ethernet, .. } = self;
        let side = sides.get(key.port);
        let next_hop = side.next_hop(key.peer).unwrap_or(key.peer);
        let path = Path::new(key, side.mtu, next_hop).expect("both addresses are of one version");
        path.with_ethernet(*ethernet).into()
    }
}
