//! What one worker translates in one data network: endpoint-independent mappings (RFC 4787, REQ-1) with paired addresses
//! (REQ-2), whose ports come from blocks, and the peers that each UE has sent to. Everything has its bound, and is made at the
//! start.

use std::hash::BuildHasher;
use std::hash::Hasher;

use hashbrown::DefaultHashBuilder;

use super::blocks::Blocks;
use super::chains::{Chains, NONE};
use super::connection::{Connection, Keep};
use super::flow::{Flow, ICMP, TCP, is_query};
use super::held::Whole;
use super::log::{Entry, Log};
use super::slab::Slab;
use super::terms::{BLOCKS_PER_UE_MAX, Filtering, SourceNat};
use super::translation::{End, Translation};
use crate::drops::DropReason;
use crate::ip::{Packet, UDP};

/// Most peers that are known of a binding; one more takes the place of that which was heard of last long ago.
const PEERS_OF_BINDING: u16 = 64;
/// Peers for each binding, over all.
const PEERS_EACH: usize = 2;
/// Packets of which the first fragment was translated, and others may follow.
const FRAGMENTED: usize = 256;
/// For how long the others may follow.
const FRAGMENTS_FOLLOW_NS: u64 = 2_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// The translator.
#[derive(Debug)]
pub struct Translator {
    terms: SourceNat,
    /// UEs choose ports, and so they must not know which share a chain.
    hasher: DefaultHashBuilder,
    blocks: Blocks,
    users: Slab<User>,
    by_user: Chains,
    bindings: Slab<Binding>,
    by_inside: Chains,
    by_outside: Chains,
    peers: Slab<Peer>,
    fragmented: Box<[Fragmented]>,
    /// The binding that is looked at next, whether it is still needed.
    turn: u32,
}

/// A session that has blocks.
#[derive(Clone, Copy, Debug, Default)]
struct User {
    up_seid: u64,
    /// The first address that it sent from.
    address: u32,
    blocks: [u32; BLOCKS_PER_UE_MAX],
    blocks_len: u8,
    /// Of all its bindings, beside the first one of each.
    further_peers: u32,
}

/// A port of a UE, and the one that it has outside. The default is none.
#[derive(Clone, Copy, Debug, Default)]
struct Binding {
    /// 0 if the entry is free.
    protocol: u8,
    user: u32,
    address: u32,
    port: u16,
    block: u32,
    outside_port: u16,
    until_ns: u64,
    first_peer: u32,
    peers: u16,
}

/// Whom a UE has sent to.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    address: u32,
    port: u16,
    until_ns: u64,
    next: u32,
    connection: Connection,
}

/// A packet whose first fragment has come. The default is none.
#[derive(Clone, Copy, Debug, Default)]
struct Fragmented {
    whole: Whole,
    outside: u32,
    until_ns: u64,
}

/// What a packet from outside is to become, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// The translation.
    pub translation: Translation,
    /// The port outside.
    pub outside_port: u16,
    /// The UPF's SEID of the UE's session.
    pub up_seid: u64,
}

impl Translator {
    /// A translator by these blocks, which may have so many bindings.
    pub fn new(terms: &SourceNat, blocks: Blocks, bindings: usize) -> Self {
        // Each has a block, and a binding in it.
        let users = blocks.capacity().min(bindings);
        Self {
            terms: terms.clone(),
            hasher: DefaultHashBuilder::default(),
            blocks,
            users: Slab::new(users),
            by_user: Chains::new(users),
            bindings: Slab::new(bindings),
            by_inside: Chains::new(bindings),
            by_outside: Chains::new(bindings),
            peers: Slab::new(bindings * PEERS_EACH),
            fragmented: vec![Fragmented::default(); FRAGMENTED].into(),
            turn: 0,
        }
    }

    /// Bindings, and blocks, in use.
    pub fn in_use(&self) -> (usize, usize) {
        (self.bindings.in_use(), self.blocks.in_use())
    }

    /// What a UE's packet becomes. It opens the way for answers.
    pub fn outgoing(
        &mut self,
        packet: &Packet<'_, false>,
        up_seid: u64,
        now: u64,
        log: &mut Log,
    ) -> Result<Translation, DropReason> {
        let (ue, peer) = (packet.source() as u32, packet.destination() as u32);
        let binding = match Flow::of(packet)? {
            Flow::Rest => return self.outgoing_rest(packet, now),
            // Nobody asks a UE.
            Flow::Whole { protocol: ICMP, kind, .. } if !is_query(kind) => return Err(DropReason::NatNoBinding),
            Flow::Whole { protocol, source, destination, kind } => {
                let binding = match self.inside(protocol, ue, source, up_seid) {
                    Some(binding) => binding,
                    None => self.bind(protocol, (ue, source), up_seid, now, log)?,
                };
                self.heard(binding, end(protocol, peer, destination), kind, now);
                binding
            }
            Flow::Error { protocol, destination: (address, port), .. } => {
                let binding = self.inside(protocol, address, port, up_seid);
                binding.filter(|_| address == ue).ok_or(DropReason::NatNoBinding)?
            }
        };
        let &Binding { block, outside_port, .. } = self.bindings.get(binding);
        let address = self.blocks.address(block);
        if packet.is_first_fragment() {
            let (whole, until_ns) = (Whole::of(packet), now + FRAGMENTS_FOLLOW_NS);
            let place = self.fragment_place(&whole);
            self.fragmented[place] = Fragmented { whole, outside: address, until_ns };
        }
        Ok(Translation { end: End::Source, address, port: outside_port })
    }

    /// A fragment behind the first, which has to come before.
    fn outgoing_rest(&self, packet: &Packet<'_, false>, now: u64) -> Result<Translation, DropReason> {
        let whole = Whole::of(packet);
        let known = &self.fragmented[self.fragment_place(&whole)];
        if known.whole != whole || known.until_ns <= now {
            return Err(DropReason::NatFragment);
        }
        Ok(Translation { end: End::Source, address: known.outside, port: 0 })
    }

    /// What a packet from outside becomes, if it may come in.
    pub fn incoming(&mut self, packet: &Packet<'_, false>, now: u64) -> Result<Admitted, DropReason> {
        let (peer, address) = (packet.source() as u32, packet.destination() as u32);
        let binding = match Flow::of(packet)? {
            Flow::Rest => return Err(DropReason::NatFragment),
            Flow::Whole { protocol: ICMP, kind, .. } if is_query(kind) => return Err(DropReason::NatNoBinding),
            Flow::Whole { protocol, source, destination, kind } => {
                let binding = self.outside(protocol, address, destination, now).ok_or(DropReason::NatNoBinding)?;
                self.admit(binding, end(protocol, peer, source), Some(kind).filter(|_| protocol == TCP), now)?;
                binding
            }
            Flow::Error { protocol, source: (quoted, port), destination } => {
                let binding = self.outside(protocol, address, port, now).filter(|_| quoted == address);
                let binding = binding.ok_or(DropReason::NatNoBinding)?;
                self.admit(binding, end(protocol, destination.0, destination.1), None, now)?;
                binding
            }
        };
        let binding = self.bindings.get(binding);
        let up_seid = self.users.get(binding.user).up_seid;
        let translation = Translation { end: End::Destination, address: binding.address, port: binding.port };
        Ok(Admitted { translation, outside_port: binding.outside_port, up_seid })
    }

    /// Forgets bindings, of the next so many, that were not used for long enough or whose session is gone.
    pub fn sweep(&mut self, steps: usize, now: u64, is_there: impl Fn(u32, u64) -> bool, log: &mut Log) {
        for _ in 0..steps.min(self.bindings.capacity()) {
            let at = self.turn;
            self.turn = (at + 1) % self.bindings.capacity() as u32;
            let binding = self.bindings.get(at);
            if binding.protocol == 0 {
                continue;
            }
            if binding.until_ns > now && is_there(binding.address, self.users.get(binding.user).up_seid) {
                continue;
            }
            if !log.has_room() {
                return;
            }
            self.unbind(at, now, log);
        }
    }

    fn bind(
        &mut self,
        protocol: u8,
        (address, port): (u32, u16),
        up_seid: u64,
        now: u64,
        log: &mut Log,
    ) -> Result<u32, DropReason> {
        if self.bindings.free() == 0 || !log.has_room() {
            return Err(DropReason::NatExhausted);
        }
        let user = self.user(address, up_seid, now, log)?;
        let (block, outside_port) = self.outside_port(user, protocol, now, log)?;
        let binding =
            Binding { protocol, user, address, port, block, outside_port, first_peer: NONE, ..Binding::default() };
        let number = self.bindings.take(binding).expect("one is free");
        let (inside, outside) = self.hashes(number);
        self.by_inside.insert(inside, number);
        self.by_outside.insert(outside, number);
        Ok(number)
    }

    /// The session's user, which gets its first block if it is new.
    fn user(&mut self, address: u32, up_seid: u64, now: u64, log: &mut Log) -> Result<u32, DropReason> {
        let hash = self.hash(0, 0, up_seid);
        let users = &self.users;
        if let Some(user) = self.by_user.find(hash, |user| users.get(user).up_seid == up_seid) {
            return Ok(user);
        }
        let block = self.blocks.take(now).ok_or(DropReason::NatExhausted)?;
        let mut new = User { up_seid, address, blocks: [NONE; BLOCKS_PER_UE_MAX], blocks_len: 1, further_peers: 0 };
        new.blocks[0] = block;
        let user = self.users.take(new).expect("each has a block and a binding of its own");
        self.by_user.insert(hash, user);
        log.enter(self.entry(user, block, true));
        Ok(user)
    }

    /// A port of the user's blocks, or of another one.
    fn outside_port(&mut self, user: u32, protocol: u8, now: u64, log: &mut Log) -> Result<(u32, u16), DropReason> {
        let User { blocks, blocks_len, .. } = *self.users.get(user);
        let own = &blocks[..usize::from(blocks_len)];
        for &block in own {
            if let Some(port) = self.port_of(block, protocol) {
                return Ok((block, port));
            }
        }
        if blocks_len >= self.terms.blocks_per_ue {
            return Err(DropReason::NatExhausted);
        }
        let block = self.blocks.take_beside(own[0], now).ok_or(DropReason::NatExhausted)?;
        let changed = self.users.get_mut(user);
        changed.blocks[usize::from(blocks_len)] = block;
        changed.blocks_len += 1;
        log.enter(self.entry(user, block, true));
        Ok((block, self.port_of(block, protocol).expect("nobody else has any of its ports")))
    }

    fn port_of(&mut self, block: u32, protocol: u8) -> Option<u16> {
        let address = self.blocks.address(block);
        let (hasher, by_outside, bindings) = (&self.hasher, &self.by_outside, &self.bindings);
        self.blocks.bind(block, protocol, |port| {
            let is_it = |other: u32| {
                let other = bindings.get(other);
                (other.protocol, other.outside_port, other.block) == (protocol, port, block)
            };
            by_outside.find(hash(hasher, protocol, address, port.into()), is_it).is_none()
        })
    }

    /// The UE's block that has no binding goes back, and with the last one the UE.
    fn unbind(&mut self, number: u32, now: u64, log: &mut Log) {
        let (inside, outside) = self.hashes(number);
        self.by_inside.remove(inside, number);
        self.by_outside.remove(outside, number);
        self.forget_peers(number, u64::MAX);
        let Binding { protocol, user, block, .. } = *self.bindings.get(number);
        self.bindings.put(number);
        self.blocks.unbind(block, protocol);
        if !self.blocks.is_used(block) {
            self.give_back(user, block, now, log);
        }
    }

    fn give_back(&mut self, user: u32, block: u32, now: u64, log: &mut Log) {
        log.enter(self.entry(user, block, false));
        self.blocks.give_back(block, now);
        let changed = self.users.get_mut(user);
        let len = usize::from(changed.blocks_len);
        if let Some(at) = changed.blocks[..len].iter().position(|own| *own == block) {
            changed.blocks.copy_within(at + 1..len, at);
            changed.blocks_len -= 1;
        }
        let User { up_seid, blocks_len, .. } = *changed;
        if blocks_len == 0 {
            let hash = self.hash(0, 0, up_seid);
            self.by_user.remove(hash, user);
            self.users.put(user);
        }
    }

    /// The UE sends to this peer, which may answer from now on.
    fn heard(&mut self, number: u32, peer: (u32, u16), kind: u8, now: u64) {
        let known = self.peer(number, |known| (known.address, known.port) == peer);
        let known = known.unwrap_or_else(|| self.new_peer(number, peer, now));
        self.keep(number, known, kind, true, now);
    }

    /// A new peer of the binding. For the first one there is always room; further ones, of which no session has more than are left,
    /// may take the place of the oldest.
    fn new_peer(&mut self, number: u32, (address, port): (u32, u16), now: u64) -> u32 {
        self.forget_peers(number, now);
        let Binding { user, first_peer, peers, .. } = *self.bindings.get(number);
        let new = Peer { address, port, next: first_peer, ..Peer::default() };
        let further_peers = self.users.get(user).further_peers;
        let left = self.peers.free() - self.bindings.free();
        let is_room = peers == 0 || peers < PEERS_OF_BINDING && (further_peers as usize) < left;
        if is_room && let Some(peer) = self.peers.take(new) {
            let binding = self.bindings.get_mut(number);
            (binding.first_peer, binding.peers) = (peer, peers + 1);
            self.users.get_mut(user).further_peers += u32::from(peers > 0);
            return peer;
        }
        let oldest = self.peers_of(number).min_by_key(|&peer| self.peers.get(peer).until_ns);
        let oldest = oldest.expect("there is a peer for each binding at least");
        let next = self.peers.get(oldest).next;
        *self.peers.get_mut(oldest) = Peer { next, ..new };
        oldest
    }

    /// The binding's peers that have not to be known at this time any more go back.
    fn forget_peers(&mut self, number: u32, now: u64) {
        let before = *self.bindings.get(number);
        let mut after = Binding { first_peer: NONE, peers: 0, ..before };
        let mut peer = before.first_peer;
        while peer != NONE {
            let Peer { until_ns, next, .. } = *self.peers.get(peer);
            if until_ns <= now {
                self.peers.put(peer);
            } else {
                self.peers.get_mut(peer).next = after.first_peer;
                (after.first_peer, after.peers) = (peer, after.peers + 1);
            }
            peer = next;
        }
        let further = before.peers.saturating_sub(1) - after.peers.saturating_sub(1);
        self.users.get_mut(before.user).further_peers -= u32::from(further);
        *self.bindings.get_mut(number) = after;
    }

    /// Whether the peer may send to the binding's UE. What it sends keeps a TCP connection; these are the flags of its segment.
    fn admit(&mut self, number: u32, peer: (u32, u16), segment: Option<u8>, now: u64) -> Result<(), DropReason> {
        let exact = self.peer(number, |known| (known.address, known.port) == peer);
        let may = match self.terms.filtering {
            Filtering::EndpointIndependent => true,
            Filtering::AddressDependent => {
                self.peer(number, |known| known.address == peer.0 && known.until_ns > now).is_some()
            }
            Filtering::AddressAndPortDependent => exact.is_some_and(|known| self.peers.get(known).until_ns > now),
        };
        if !may {
            return Err(DropReason::NatFiltered);
        }
        if let (Some(known), Some(flags)) = (exact, segment) {
            self.keep(number, known, flags, false, now);
        }
        Ok(())
    }

    /// The binding is needed for as long as any of its connections; one that ends may have been the last.
    fn keep(&mut self, number: u32, peer: u32, kind: u8, from_ue: bool, now: u64) {
        let (seconds, shortens) = match self.bindings.get(number).protocol {
            TCP => match self.peers.get_mut(peer).connection.pass(kind, from_ue) {
                Keep::Long => (self.terms.tcp_timeout_s, false),
                Keep::Short => (self.terms.tcp_transitory_timeout_s, true),
                Keep::Unchanged => return,
            },
            UDP => (self.terms.udp_timeout_s, false),
            _ => (self.terms.icmp_timeout_s, false),
        };
        let until_ns = now + u64::from(seconds) * SECOND_NS;
        self.peers.get_mut(peer).until_ns = until_ns;
        let longest = match shortens {
            true => self.peers_of(number).map(|peer| self.peers.get(peer).until_ns).max().unwrap_or(until_ns),
            false => until_ns.max(self.bindings.get(number).until_ns),
        };
        self.bindings.get_mut(number).until_ns = longest;
    }

    fn peers_of(&self, number: u32) -> impl Iterator<Item = u32> {
        let first = self.bindings.get(number).first_peer;
        let there = |peer: u32| (peer != NONE).then_some(peer);
        std::iter::successors(there(first), move |&peer| there(self.peers.get(peer).next))
    }

    fn peer(&self, number: u32, is_it: impl Fn(&Peer) -> bool) -> Option<u32> {
        self.peers_of(number).find(|&peer| is_it(self.peers.get(peer)))
    }

    /// One that is not used any more, and not forgotten yet, goes on.
    fn inside(&self, protocol: u8, ue: u32, port: u16, up_seid: u64) -> Option<u32> {
        let is_it = |number: u32| {
            let binding = self.bindings.get(number);
            let user = self.users.get(binding.user);
            (binding.protocol, binding.port, binding.address, user.up_seid) == (protocol, port, ue, up_seid)
        };
        self.by_inside.find(self.hash(protocol, ue, port.into()), is_it)
    }

    fn outside(&self, protocol: u8, address: u32, port: u16, now: u64) -> Option<u32> {
        let is_it = |number: u32| {
            let binding = self.bindings.get(number);
            let outside = (binding.protocol, self.blocks.address(binding.block), binding.outside_port);
            outside == (protocol, address, port) && binding.until_ns > now
        };
        self.by_outside.find(self.hash(protocol, address, port.into()), is_it)
    }

    /// By which a binding is found from inside, and from outside.
    fn hashes(&self, number: u32) -> (u64, u64) {
        let &Binding { protocol, address, port, block, outside_port, .. } = self.bindings.get(number);
        let inside = self.hash(protocol, address, port.into());
        (inside, self.hash(protocol, self.blocks.address(block), outside_port.into()))
    }

    fn hash(&self, protocol: u8, address: u32, number: u64) -> u64 {
        hash(&self.hasher, protocol, address, number)
    }

    fn fragment_place(&self, whole: &Whole) -> usize {
        self.hash(ICMP, whole.source, whole.identification.into()) as usize % FRAGMENTED
    }

    fn entry(&self, user: u32, block: u32, given: bool) -> Entry {
        let User { address, up_seid, .. } = *self.users.get(user);
        Entry {
            given,
            ue: address.into(),
            up_seid,
            address: self.blocks.address(block).into(),
            ports: self.blocks.ports(block),
        }
    }
}

/// A peer's address and port; the identifier of a query is the UE's.
fn end(protocol: u8, address: u32, port: u16) -> (u32, u16) {
    (address, if protocol == ICMP { 0 } else { port })
}

fn hash(hasher: &DefaultHashBuilder, protocol: u8, address: u32, number: u64) -> u64 {
    let mut state = hasher.build_hasher();
    state.write_u64(u64::from(protocol) << 32 | u64::from(address));
    state.write_u64(number);
    state.finish()
}
