//! Packets of one UE, as long as somebody watches: what came, which rule matched, what became of it.
//!
//! A worker looks at one word a burst whether anybody watches, and leaves records of the UE's packets in a ring. Records that
//! find no room are counted and lost; packets never wait for whoever watches.

use std::net::{IpAddr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use port::PacketRef;

use crate::drops::DropReason;
use crate::ip;
use crate::packet::{Arrival, Class, ETHERNET_LEN, Punt, Rare, Relayed, Verdict, matching, neighbour};
use crate::side::{self, PortId};
use crate::tables::{Rule, Version};

/// Records of a worker that may wait to be read.
const CAPACITY: usize = 1_024;

/// A worker's end.
#[derive(Debug)]
pub struct Tracer {
    watch: Arc<Watch>,
    ring: rtrb::Producer<Record>,
    is_on: bool,
    outside: Option<SocketAddrV4>,
}

/// The reader's end of all workers' tracers.
#[derive(Clone, Debug)]
pub struct Traces {
    watch: Arc<Watch>,
    rings: Arc<Mutex<Vec<rtrb::Consumer<Record>>>>,
}

/// Somebody watches, until this is dropped.
#[derive(Debug)]
pub struct Watching<'t> {
    watch: &'t Watch,
    rings: std::sync::MutexGuard<'t, Vec<rtrb::Consumer<Record>>>,
}

/// Who is watched. Each word may be of another moment than its neighbour while somebody changes them: then a record too many
/// or too few is made, and nothing else happens.
#[derive(Debug, Default)]
struct Watch {
    is_on: AtomicBool,
    /// The UPF's SEID of the UE's session; 0 while it has none.
    up_seid: AtomicU64,
    /// The UE's address, whose packets find no session; [`side::bits`], in two halves.
    is_v6: AtomicBool,
    high: AtomicU64,
    low: AtomicU64,
    lost: AtomicU64,
}

/// A packet of the UE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, in nanoseconds of the UPF's clock.
    pub at_ns: u64,
    /// Where it came in.
    pub from: PortId,
    /// Whether the UE sent it.
    pub is_uplink: bool,
    /// Octets of the frame.
    pub frame_len: u16,
    /// The session that it belongs to, and the PDR that has matched, if one has.
    pub up_seid: u64,
    /// PDR ID.
    pub pdr: Option<u16>,
    /// The UE's packet, as far as it is one.
    pub inner: Option<Inner>,
    /// What the UE's address and port are outside, where they are translated.
    pub outside: Option<SocketAddrV4>,
    /// What became of it.
    pub fate: Traced,
}

/// A packet within a tunnel, or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inner {
    /// Its source.
    pub source: IpAddr,
    /// Its destination.
    pub destination: IpAddr,
    /// Its protocol.
    pub protocol: u8,
    /// Source and destination ports, where it has them.
    pub ports: Option<(u16, u16)>,
    /// Its length in octets.
    pub len: u16,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traced {
    /// Sent.
    Sent {
        /// By this port.
        port: PortId,
        /// Octets of the frame.
        frame_len: u16,
    },
    /// Sent once the Ethernet address of a neighbour is known.
    Unresolved {
        /// By this port.
        port: PortId,
        /// The neighbour.
        neighbour: IpAddr,
    },
    /// Waits for its UE.
    Waits,
    /// Discarded.
    Dropped(DropReason),
    /// Something for the UPF itself.
    SlowPath,
}

/// A tracer for each of so many workers, and their reader.
pub fn channel(workers: usize) -> (Vec<Tracer>, Traces) {
    let watch = Arc::new(Watch::default());
    let (tracers, rings) = (0..workers)
        .map(|_| {
            let (ring, reader) = rtrb::RingBuffer::new(CAPACITY);
            (Tracer { watch: watch.clone(), ring, is_on: false, outside: None }, reader)
        })
        .unzip();
    (tracers, Traces { watch, rings: Arc::new(Mutex::new(rings)) })
}

impl Tracer {
    /// A tracer that nobody reads.
    pub fn unread() -> Self {
        let (mut tracers, _) = channel(1);
        tracers.pop().expect("one was asked for")
    }

    /// Looks whether somebody watches. Called once a burst.
    #[inline]
    pub fn look(&mut self) {
        self.is_on = self.watch.is_on.load(Ordering::Relaxed);
    }

    /// Whether somebody watched at the last look.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// What the UE's address and port are outside, in records from now on.
    pub fn set_outside(&mut self, outside: Option<SocketAddrV4>) {
        self.outside = outside;
    }

    /// Leaves a record, if the packet is the UE's. It is as it came. The verdict is a copy, so that the worker's own need not be in
    /// memory.
    #[cold]
    pub fn record(
        &mut self,
        tables: &Version,
        from: PortId,
        class: &Class,
        packet: &PacketRef<'_>,
        verdict: Verdict<'_>,
        now: u64,
    ) {
        let head = packet.head;
        if !self.watch.concerns(tables, class, head) {
            return;
        }
        let rule = matching(tables, class, head);
        // All rules of a tunnel, or of a UE's address, are of one direction; what finds none of them is for a UE.
        let first = class.first_rule(tables);
        let fate = match verdict {
            Ok(forward) if forward.resolved => {
                let relayed = Relayed::of(class, &forward, head).map(|relayed| forward.keep + relayed.len() as u16);
                Traced::Sent { port: forward.port, frame_len: relayed.unwrap_or(forward.frame_len()) }
            }
            Ok(forward) => {
                let neighbour = neighbour(tables, &forward, &head[usize::from(forward.strip)..]);
                Traced::Unresolved { port: forward.port, neighbour }
            }
            Err(Rare::Drop(reason)) => Traced::Dropped(reason),
            Err(Rare::Buffer(_)) => Traced::Waits,
            Err(Rare::Punt(Punt::UnknownTeid)) => Traced::Dropped(DropReason::UnknownTeid),
            Err(Rare::Punt(Punt::UnknownExtension)) => Traced::Dropped(DropReason::GtpuExtension),
            Err(Rare::Punt(_) | Rare::Duplicate(_) | Rare::Translate(_)) => Traced::SlowPath,
        };
        self.leave(Record {
            at_ns: now,
            from,
            is_uplink: rule.or(first).is_some_and(Rule::is_uplink),
            frame_len: packet.len() as u16,
            up_seid: first.map_or(0, |rule| rule.origin(tables).up_seid),
            pdr: rule.map(|rule| rule.origin(tables).pdr),
            inner: inner(class, head),
            outside: self.outside,
            fate,
        });
    }

    /// A packet that was decided to be sent was refused by its port.
    #[cold]
    pub fn record_refused(&mut self, tables: &Version, from: PortId, class: &Class, reason: DropReason, now: u64) {
        let Some(rule) = class.first_rule(tables) else { return };
        let up_seid = rule.origin(tables).up_seid;
        if up_seid == self.watch.up_seid.load(Ordering::Relaxed) {
            let fate = Traced::Dropped(reason);
            let is_uplink = rule.is_uplink();
            self.leave(Record {
                at_ns: now,
                from,
                is_uplink,
                frame_len: 0,
                up_seid,
                pdr: None,
                inner: None,
                outside: None,
                fate,
            });
        }
    }

    fn leave(&mut self, record: Record) {
        if self.ring.push(record).is_err() {
            self.watch.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Traces {
    /// Has workers leave records of this UE's packets. None while somebody else watches.
    pub fn watch(&self) -> Option<Watching<'_>> {
        let mut rings = match self.rings.try_lock() {
            Ok(rings) => rings,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => return None,
        };
        // What was left for whoever watched before.
        rings.iter_mut().for_each(|ring| while ring.pop().is_ok() {});
        self.watch.lost.store(0, Ordering::Relaxed);
        Some(Watching { watch: &self.watch, rings })
    }
}

impl Watching<'_> {
    /// Watches the UE with this address, whose session has this SEID at present, if it has one.
    pub fn set(&self, ue: Option<IpAddr>, up_seid: Option<u64>) {
        let (is_v6, bits) = ue.map_or((false, 0), side::bits);
        self.watch.is_v6.store(is_v6, Ordering::Relaxed);
        self.watch.high.store((bits >> 64) as u64, Ordering::Relaxed);
        self.watch.low.store(bits as u64, Ordering::Relaxed);
        self.watch.up_seid.store(up_seid.unwrap_or(0), Ordering::Relaxed);
        self.watch.is_on.store(true, Ordering::Release);
    }

    /// Records since the last call, by time, up to so many of each worker.
    pub fn take(&mut self, most: usize) -> Vec<Record> {
        let mut records: Vec<_> =
            self.rings.iter_mut().flat_map(|ring| std::iter::from_fn(|| ring.pop().ok()).take(most)).collect();
        records.sort_by_key(|record| record.at_ns);
        records
    }

    /// Records that found no room since the last call.
    pub fn lost(&self) -> u64 {
        self.watch.lost.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.watch.is_on.store(false, Ordering::Relaxed);
    }
}

impl Watch {
    fn concerns(&self, tables: &Version, class: &Class, head: &[u8]) -> bool {
        match class.first_rule(tables) {
            Some(rule) => rule.origin(tables).up_seid == self.up_seid.load(Ordering::Relaxed),
            None => matches!(class, Class::Drop(DropReason::UnknownUe)) && self.is_for_ue(head),
        }
    }

    /// Whether a plain packet is for the UE's address.
    fn is_for_ue(&self, head: &[u8]) -> bool {
        let bits = u128::from(self.high.load(Ordering::Relaxed)) << 64 | u128::from(self.low.load(Ordering::Relaxed));
        let ue = side::address(self.is_v6.load(Ordering::Relaxed), bits);
        summary(head.get(ETHERNET_LEN..).unwrap_or_default(), 0).is_some_and(|inner| inner.destination == ue)
    }
}

fn inner(class: &Class, head: &[u8]) -> Option<Inner> {
    match *class {
        Class::User { arrival: Arrival::EndMarker { .. }, .. } => None,
        Class::User { at, len, .. } => summary(head.get(usize::from(at)..)?, len),
        Class::Drop(_) => summary(head.get(ETHERNET_LEN..)?, 0),
        _ => None,
    }
}

/// What the first bytes of a packet say, as far as they do; `len` is what there is of it, 0 if that is not known.
fn summary(packet: &[u8], len: u16) -> Option<Inner> {
    match ip::is_v6(packet)? {
        false => summary_of::<false>(packet, len),
        true => summary_of::<true>(packet, len),
    }
}

fn summary_of<const V6: bool>(bytes: &[u8], len: u16) -> Option<Inner> {
    let available = if len == 0 { usize::from(u16::MAX) } else { len.into() };
    let packet = ip::Packet::<V6>::parse(bytes, available).ok()?;
    let upper = packet.upper();
    Some(Inner {
        source: side::address(V6, packet.source()),
        destination: side::address(V6, packet.destination()),
        protocol: upper.protocol,
        ports: upper.ports(),
        len: packet.len() as u16,
    })
}
