//! What a port leads to: its side of the UPF, the UEs that are found from it, and its neighbours.

use std::hash::{BuildHasher, Hash};
use std::net::IpAddr;

use hashbrown::HashMap;
use port::CacheLevel;

use super::direct::Direct;
use super::mix::Mix;
use super::version::UeKey;
use crate::side::{self, Side};

/// Neighbours that have places of their own, as those of one network that is not larger.
const NEIGHBOURS: usize = 1 << 12;

/// A port's part of the tables. UEs of two data networks may have the same address.
#[derive(Clone, Debug)]
pub struct Network {
    /// Its addresses and routes.
    pub side: Side,
    ues_v4: Direct,
    /// Sessions by IPv4 networks behind their UEs, longest first.
    routes_v4: Vec<(u8, HashMap<u32, u32>)>,
    /// Sessions by IPv6 prefixes of 64 bits.
    ues_v6: HashMap<u64, u32, Mix>,
    /// Sessions by IPv6 prefixes of other lengths, longest first.
    ues_v6_other: Vec<(u8, HashMap<u128, u32>)>,
    /// Gateways in order (see [`Side::gateways`]), as indices of hops.
    pub(super) gateways: Box<[u32]>,
    /// Other neighbours, as indices of hops.
    neighbours_v4: Direct,
    neighbours_v6: HashMap<u128, u32>,
}

impl Network {
    /// Without any, for so many UEs as have places of their own, a power of two.
    pub(super) fn new(side: Side, ues: usize) -> Self {
        Self {
            side,
            ues_v4: Direct::new(ues),
            routes_v4: Vec::new(),
            ues_v6: HashMap::default(),
            ues_v6_other: Vec::new(),
            gateways: Box::new([]),
            neighbours_v4: Direct::new(NEIGHBOURS),
            neighbours_v6: HashMap::new(),
        }
    }

    /// Asks for what [`Network::ue`] will look at, of an IPv4 address.
    #[inline(always)]
    pub(crate) fn ask_ue_v4(&self, bits: u32, level: CacheLevel) {
        self.ues_v4.ask(bits, level);
    }

    /// The list of rules of the UE with this IPv4 address, if it is found where [`Network::ask_ue_v4`] asked.
    #[inline(always)]
    pub(crate) fn asked_ue_v4(&self, bits: u32) -> Option<u32> {
        self.ues_v4.at_place(bits)
    }

    /// The list of rules of the UE with this address (IPv4 in the low 32 bits).
    #[inline]
    pub fn ue(&self, v6: bool, bits: u128) -> Option<u32> {
        match v6 {
            false => self.ues_v4.get(bits as u32).or_else(|| self.route_v4(bits as u32)),
            true => self.ue_v6(bits),
        }
    }

    #[cold]
    fn route_v4(&self, bits: u32) -> Option<u32> {
        self.routes_v4.iter().find_map(|(len, ues)| ues.get(&(bits & side::mask(false, *len) as u32)).copied())
    }

    fn ue_v6(&self, bits: u128) -> Option<u32> {
        let (longer, shorter) = self.ues_v6_other.split_at(self.ues_v6_other.partition_point(|(len, _)| *len > 64));
        longest(longer, bits)
            .or_else(|| self.ues_v6.get(&((bits >> 64) as u64)).copied())
            .or_else(|| longest(shorter, bits))
    }

    /// Index of the gateway with this number (see [`Side::gateways`]).
    #[inline]
    pub fn gateway(&self, number: u16) -> u32 {
        self.gateways[usize::from(number)]
    }

    /// Of the UE with just this address or network.
    pub(super) fn at(&self, key: UeKey) -> Option<u32> {
        match key {
            UeKey::V4(address) => self.ues_v4.get(address),
            UeKey::V6(net, 64) => self.ues_v6.get(&((net >> 64) as u64)).copied(),
            UeKey::V4Net(net, len) => of_len(&self.routes_v4, len)?.get(&net).copied(),
            UeKey::V6(net, len) => of_len(&self.ues_v6_other, len)?.get(&net).copied(),
        }
    }

    /// Index of the neighbour with this address (IPv4 in the low 32 bits), if it is known.
    #[inline]
    pub fn neighbour(&self, v6: bool, bits: u128) -> Option<u32> {
        if v6 { self.neighbours_v6.get(&bits).copied() } else { self.neighbours_v4.get(bits as u32) }
    }

    pub(super) fn set_ue(&mut self, key: UeKey, list: Option<u32>) {
        match key {
            UeKey::V4(address) => self.ues_v4.set(address, list),
            UeKey::V6(net, 64) => set(&mut self.ues_v6, (net >> 64) as u64, list),
            UeKey::V4Net(net, len) => set_net(&mut self.routes_v4, net, len, list),
            UeKey::V6(net, len) => set_net(&mut self.ues_v6_other, net, len, list),
        }
    }

    pub(super) fn set_neighbour(&mut self, address: IpAddr, index: Option<u32>) {
        // In tunnels neighbours are found by the index that the tunnel has.
        match address {
            _ if self.side.kind.has_tunnels() => {}
            IpAddr::V4(address) => self.neighbours_v4.set(address.to_bits(), index),
            IpAddr::V6(address) => set(&mut self.neighbours_v6, address.to_bits(), index),
        }
    }
}

/// Sets the session of a network, where the lengths descend.
fn set_net<A: Hash + Eq>(nets: &mut Vec<(u8, HashMap<A, u32>)>, net: A, len: u8, list: Option<u32>) {
    let at = nets.partition_point(|(other, _)| *other > len);
    if nets.get(at).is_none_or(|(other, _)| *other != len) {
        nets.insert(at, (len, HashMap::new()));
    }
    let (_, ues) = &mut nets[at];
    set(ues, net, list);
    if ues.is_empty() {
        nets.remove(at);
    }
}

/// Sessions of networks of this length, where the lengths descend.
fn of_len<A>(nets: &[(u8, HashMap<A, u32>)], len: u8) -> Option<&HashMap<A, u32>> {
    nets.iter().find(|(other, _)| *other == len).map(|(_, ues)| ues)
}

/// The session with the longest prefix, where the lengths descend.
fn longest(prefixes: &[(u8, HashMap<u128, u32>)], bits: u128) -> Option<u32> {
    prefixes.iter().find_map(|(len, ues)| ues.get(&(bits & side::mask(true, *len))).copied())
}

fn set<K: Hash + Eq, V, S: BuildHasher>(map: &mut HashMap<K, V, S>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}
