//! Policers that sessions share. What is one session's alone has its state in the session's block ([`super::rule`]).

use std::net::IpAddr;
use std::num::NonZeroU32;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::compile::MeterKey;
use super::record::Record;
use crate::usage::whole;

/// A policer in use.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Policer {
    pub index: u32,
    /// By which workers notice that it starts anew. 0 is that of a state which nobody has used.
    pub generation: NonZeroU32,
}

impl Policer {
    /// The word that it is named by.
    pub fn word(self) -> u64 {
        whole(self.index, self.generation.get())
    }
}

/// Policers that sessions of a session manager share, in use and free.
pub(super) struct SharedPolicers {
    /// The last one of each.
    generations: Vec<u32>,
    max: usize,
    freed: Vec<u32>,
    /// Those in use, by the session manager's address.
    shared: HashMap<(IpAddr, MeterKey), Shared>,
}

/// A policer that sessions share, whoever owns them.
struct Shared {
    policer: Policer,
    sessions: u32,
}

impl SharedPolicers {
    /// So many at most.
    pub fn new(max: usize) -> Self {
        Self { generations: vec![], max, freed: vec![], shared: HashMap::new() }
    }

    /// The policers that a session has from an earlier process are in use. False if they cannot be: each is of those sessions that
    /// share it.
    pub fn restore(&mut self, record: &Record) -> bool {
        let Some(manager) = record.manager else { return record.shared.is_empty() };
        let mut own = vec![];
        for &(key, policer) in &record.shared {
            let is_free = self.generations.get(policer.index as usize).is_none_or(|&generation| generation == 0);
            let fits = match self.shared.get(&(manager, key)) {
                Some(shared) => shared.policer == policer,
                None => is_free,
            };
            let is_twice = own.iter().any(|&(other, index)| other == key || index == policer.index);
            if !fits || is_twice || policer.index as usize >= self.max {
                return false;
            }
            own.push((key, policer.index));
        }
        for &(key, policer) in &record.shared {
            let at = policer.index as usize;
            if at >= self.generations.len() {
                self.generations.resize(at + 1, 0);
            }
            self.generations[at] = policer.generation.get();
            self.shared.entry((manager, key)).or_insert(Shared { policer, sessions: 0 }).sessions += 1;
        }
        true
    }

    /// Nothing more is restored: what is not in use is free.
    pub fn settle(&mut self) {
        let unused = self.generations.iter().enumerate().filter(|(_, generation)| **generation == 0);
        self.freed = unused.map(|(index, _)| index as u32).collect();
    }

    /// The policer that sessions of `manager` share, for one of them; `is_held` if the session has had it before.
    pub fn share(&mut self, manager: IpAddr, key: MeterKey, is_held: bool) -> Policer {
        if !self.shared.contains_key(&(manager, key)) {
            let policer = self.take();
            self.shared.insert((manager, key), Shared { policer, sessions: 0 });
        }
        let shared = self.shared.get_mut(&(manager, key)).expect("it is there now");
        shared.sessions += u32::from(!is_held);
        shared.policer
    }

    pub fn free(&self) -> usize {
        self.max - self.generations.len() + self.freed.len()
    }

    /// # Panics
    /// If none is free.
    fn take(&mut self) -> Policer {
        let index = self.freed.pop().unwrap_or_else(|| {
            assert!(self.generations.len() < self.max, "checked before anything was changed");
            self.generations.push(0);
            self.generations.len() as u32 - 1
        });
        let generation = &mut self.generations[index as usize];
        let next = NonZeroU32::new(generation.wrapping_add(1)).unwrap_or(NonZeroU32::MIN);
        *generation = next.get();
        Policer { index, generation: next }
    }

    /// A session of `manager` does not use the policer any more.
    pub fn give_back(&mut self, manager: IpAddr, key: MeterKey) {
        let Some(shared) = self.shared.get_mut(&(manager, key)) else { return };
        shared.sessions -= 1;
        if shared.sessions == 0 {
            self.freed.push(shared.policer.index);
            self.shared.remove(&(manager, key));
        }
    }
}
