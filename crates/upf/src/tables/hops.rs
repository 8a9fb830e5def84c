//! Neighbours by port and address. Those that paths or routes lead to are pinned, and keep their index.

use std::net::IpAddr;

use hashbrown::HashMap;

use super::version::{Change, Hop, Version};
use crate::side::{PortId, Sides};

pub(super) struct Hops {
    /// The ports' own.
    macs: Vec<[u8; 6]>,
    entries: Vec<Entry>,
    by_address: HashMap<(PortId, IpAddr), u32>,
    free: Vec<u32>,
    /// Not yet published.
    fresh: Vec<u32>,
    /// Perhaps no longer needed.
    loose: Vec<u32>,
}

struct Entry {
    hop: Hop,
    pins: u32,
}

impl Hops {
    /// No neighbours but the gateways of data networks, which `version` gets to know.
    pub fn new(sides: &Sides, version: &mut Version) -> Self {
        let mut hops = Self::empty(sides.iter().map(|(_, side)| side.mac).collect());
        for (port, side) in sides.iter().filter(|(_, side)| !side.kind.has_tunnels()) {
            version.set_gateways(port, side.gateways().iter().map(|&gateway| hops.pin(port, gateway)).collect());
        }
        let mut changes = Vec::new();
        hops.settle(&mut changes);
        changes.into_iter().for_each(|change| version.make(change));
        hops
    }

    fn empty(macs: Vec<[u8; 6]>) -> Self {
        Self { macs, entries: vec![], by_address: HashMap::new(), free: vec![], fresh: vec![], loose: vec![] }
    }

    pub fn pin(&mut self, port: PortId, address: IpAddr) -> u32 {
        let index = match self.by_address.get(&(port, address)) {
            Some(&index) => index,
            None => self.add(port, address),
        };
        self.entries[index as usize].pins += 1;
        index
    }

    pub fn unpin(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        entry.pins -= 1;
        if entry.pins == 0 {
            self.loose.push(index);
        }
    }

    /// Whether paths or routes lead to the neighbour.
    pub fn is_pinned(&self, port: PortId, address: IpAddr) -> bool {
        self.by_address.get(&(port, address)).is_some_and(|&index| self.entries[index as usize].pins > 0)
    }

    /// Destination and source of frames to the neighbour; none while it is not resolved.
    pub fn ethernet(&self, index: u32) -> Option<[u8; 12]> {
        self.entries[index as usize].hop.ethernet
    }

    fn add(&mut self, port: PortId, address: IpAddr) -> u32 {
        let entry = Entry { hop: Hop { port, address, ethernet: None }, pins: 0 };
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.by_address.insert((port, address), index);
        self.fresh.push(index);
        index
    }

    /// Adds to `changes` what pinning and unpinning came to, and returns the neighbours that are to be resolved.
    pub fn settle(&mut self, changes: &mut Vec<Change>) -> Vec<(PortId, IpAddr)> {
        let mut wanted = Vec::new();
        let mut before = Vec::new();
        for index in std::mem::take(&mut self.fresh) {
            let entry = &self.entries[index as usize];
            before.push(Change::Hop(index, entry.hop));
            before.push(Change::Neighbour(entry.hop.port, entry.hop.address, Some(index)));
            wanted.push((entry.hop.port, entry.hop.address));
        }
        // Rules may name a hop only once it is there.
        changes.splice(0..0, before);
        for index in std::mem::take(&mut self.loose) {
            // A resolved neighbour stays until the slow path forgets it.
            let entry = &self.entries[index as usize];
            if entry.pins == 0 && entry.hop.ethernet.is_none() {
                self.remove(index, changes);
            }
        }
        wanted
    }

    pub fn set(&mut self, port: PortId, address: IpAddr, mac: Option<[u8; 6]>, changes: &mut Vec<Change>) {
        let own = self.macs[port.number()];
        let ethernet = mac.map(|mac| std::array::from_fn(|at| if at < 6 { mac[at] } else { own[at - 6] }));
        let index = match (self.by_address.get(&(port, address)), ethernet) {
            (Some(&index), _) => index,
            (None, Some(_)) => self.add(port, address),
            (None, None) => return,
        };
        let fresh = self.fresh.pop().is_some();
        let entry = &mut self.entries[index as usize];
        if entry.hop.ethernet == ethernet && !fresh {
            return;
        }
        entry.hop.ethernet = ethernet;
        changes.push(Change::Hop(index, entry.hop));
        if fresh {
            changes.push(Change::Neighbour(port, address, Some(index)));
        }
        if ethernet.is_none() && entry.pins == 0 {
            self.remove(index, changes);
        }
    }

    fn remove(&mut self, index: u32, changes: &mut Vec<Change>) {
        let entry = &self.entries[index as usize];
        self.by_address.remove(&(entry.hop.port, entry.hop.address));
        changes.push(Change::Neighbour(entry.hop.port, entry.hop.address, None));
        self.free.push(index);
    }
}
