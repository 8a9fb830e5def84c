//! Which policers sessions have.

use std::net::IpAddr;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::Settings;
use super::compile::MeterKey;
use super::record::Record;
use crate::policer::Meter;

/// A policer in use.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Policer {
    index: u32,
    generation: u32,
}

/// Policers in use and free. A freed policer gets another generation, by which workers notice that it starts anew.
pub(super) struct PolicerPool {
    burst_ms: u32,
    generations: Vec<u32>,
    max: usize,
    freed: Vec<u32>,
    /// Those that several sessions of a session manager share, by its address.
    shared: HashMap<(IpAddr, MeterKey), Shared>,
}

/// A policer that sessions share, whoever owns them.
struct Shared {
    policer: Policer,
    sessions: u32,
}

impl PolicerPool {
    pub fn new(settings: &Settings) -> Self {
        Self {
            burst_ms: settings.policer_burst_ms,
            generations: vec![],
            max: settings.max_policers(),
            freed: vec![],
            shared: HashMap::new(),
        }
    }

    /// The meter of a policer.
    pub fn meter(&self, key: MeterKey, rate: u64, policer: Policer) -> Meter {
        let meter = Meter::new(rate, self.burst_ms, policer.index, policer.generation);
        if key.correlated { meter.shared() } else { meter }
    }

    /// The policers that a session has from an earlier process are in use. False if they cannot be: each is one session's, or
    /// that of those which share it.
    pub fn restore(&mut self, record: &Record) -> bool {
        let mut own = vec![];
        for &(key, policer) in &record.policers {
            let is_free = self.generations.get(policer.index as usize).is_none_or(|&generation| generation == 0);
            let manager = record.manager.filter(|_| key.correlated);
            let shared = manager.and_then(|manager| self.shared.get(&(manager, key)));
            let fits = match shared {
                Some(shared) => shared.policer == policer,
                None => is_free && key.correlated == manager.is_some(),
            };
            let is_twice = own.iter().any(|&(other, index)| other == key || index == policer.index);
            if !fits || is_twice || policer.index as usize >= self.max || policer.generation == 0 {
                return false;
            }
            own.push((key, policer.index));
        }
        for &(key, policer) in &record.policers {
            let at = policer.index as usize;
            if at >= self.generations.len() {
                self.generations.resize(at + 1, 0);
            }
            self.generations[at] = self.generations[at].max(policer.generation);
            if let Some(manager) = record.manager.filter(|_| key.correlated) {
                let shared = self.shared.entry((manager, key)).or_insert(Shared { policer, sessions: 0 });
                shared.sessions += 1;
            }
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
    pub fn take(&mut self) -> Policer {
        let index = self.freed.pop().unwrap_or_else(|| {
            assert!(self.generations.len() < self.max, "checked before anything was changed");
            self.generations.push(0);
            self.generations.len() as u32 - 1
        });
        let generation = &mut self.generations[index as usize];
        // 0 is the generation of a state that nobody has used.
        *generation = generation.checked_add(1).unwrap_or(1);
        Policer { index, generation: *generation }
    }

    /// A session of `manager` does not use the policer any more.
    pub fn give_back(&mut self, manager: Option<IpAddr>, key: MeterKey, policer: Policer) {
        if let Some(manager) = manager.filter(|_| key.correlated)
            && let Some(shared) = self.shared.get_mut(&(manager, key))
        {
            shared.sessions -= 1;
            if shared.sessions > 0 {
                return;
            }
            self.shared.remove(&(manager, key));
        }
        self.freed.push(policer.index);
    }
}
