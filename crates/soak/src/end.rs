//! A process at an end of a link: sends numbered packets as fast as they are taken, judges those that come, and writes down
//! how far it is. The end with several queues changes all the time which of them owns which bucket.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::{Signal, raise};
use vport::client::attach;
use vport::owner::{Buckets, Decider, Owner, group};
use vport::packet::PacketRef;
use vport::steering::BUCKETS;
use vport::{RxRing, TxRing};

use crate::checker::{Checker, first};
use crate::frames::{self, Stamp};
use crate::journal::{Field, Journal, now_ns};
use crate::outcome::Tally;
use crate::process::{die_with_parent, sleep};
use crate::random::Random;
use crate::rig::PATIENCE;

/// Flows of the end with one queue; its numbers go round them. Those of the other end are one a queue.
pub const FLOWS: u64 = 64;

/// Points at which an end stops itself, in the order in which a change of owners meets them. Before 1 there is none.
pub const POINTS: [&str; 3] = ["an epoch opened", "a bucket given", "a bucket arrived"];

/// Which process this is.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The function's socket.
    #[arg(long)]
    pub socket: PathBuf,
    /// This side's journal.
    #[arg(long)]
    pub journal: PathBuf,
    /// Higher than of any process before it on this side.
    #[arg(long)]
    pub incarnation: u32,
}

/// Opens the port, and goes on until everything that is to be sent is sent and somebody ends it.
pub fn run(options: &Options) -> Result<()> {
    die_with_parent();
    let journal = &Journal::open(&options.journal)?;
    journal.set(Field::ConnectingNs, now_ns());
    let port = attach(&options.socket, "p", PATIENCE, 192)?;
    let queues = port.queues.len();
    let mut workers = Workers::new(&port, journal)?;
    let (mut receivers, mut senders): (Vec<RxRing>, Vec<TxRing>) = port.queues.into_iter().unzip();
    let mut streams: Vec<Stream> = (0..queues).map(|queue| Stream::new(queue, queues, options.incarnation)).collect();
    let mut judge = Judge::new(journal, queues, options.incarnation);
    let mut random = Random::new(u64::from(options.incarnation) << 8 | queues as u64);
    loop {
        let mut busy = false;
        for (queue, rx) in receivers.iter_mut().enumerate() {
            busy |= judge.receive(rx) > 0;
            busy |= workers.settle(queue);
        }
        judge.note(receivers.iter().map(|rx| rx.counters().invalid).sum());
        let finish = journal.get(Field::Finish) != 0;
        for (kind, (stream, tx)) in streams.iter_mut().zip(&mut senders).enumerate() {
            if finish {
                tx.send(&[]);
            } else {
                journal.set_accepted(kind, stream.send(tx, &mut random));
            }
        }
        journal.set(Field::Finished, u64::from(finish));
        workers.change(&mut random, finish);
        journal.add(Field::Rounds, 1);
        if !busy {
            sleep(receivers.iter_mut());
        } else if random.once_in(16) {
            // Leaves some of two cores to the others.
            std::thread::sleep(Duration::from_micros(random.below(200) as u64));
        }
    }
}

/// What one queue sends.
struct Stream {
    incarnation: u32,
    next: u64,
    /// Its first flow and how many it has.
    flows: (u64, u64),
}

impl Stream {
    fn new(queue: usize, queues: usize, incarnation: u32) -> Self {
        let flows = if queues == 1 { (0, FLOWS) } else { (queue as u64, 1) };
        Self { incarnation, next: 0, flows }
    }

    /// Sends some packets; returns how many were accepted in all.
    fn send(&mut self, tx: &mut TxRing, random: &mut Random) -> u64 {
        let (base, flows) = self.flows;
        let burst: Vec<Vec<u8>> = (self.next..)
            .take(1 + random.below(16))
            .map(|number| {
                let flow = (base + number % flows) as u16;
                frames::frame(Stamp { flow, incarnation: self.incarnation, number }, frames::len_of(number))
            })
            .collect();
        let packets: Vec<PacketRef<'_>> = burst.iter().map(|frame| PacketRef::from_slice(frame)).collect();
        self.next += tx.send(&packets) as u64;
        self.next
    }
}

/// Judges what comes.
struct Judge<'a> {
    journal: &'a Journal,
    checker: Checker,
    /// What processes before this one had found.
    earlier: Tally,
    invalid: u64,
    stride: u64,
    room: Vec<u8>,
    /// When a packet came last.
    last_ns: Option<u64>,
}

impl<'a> Judge<'a> {
    fn new(journal: &'a Journal, queues: usize, incarnation: u32) -> Self {
        let (flows, stride) = if queues == 1 { (2, 1) } else { (FLOWS as usize, FLOWS) };
        journal.forget_all();
        journal.set(Field::FirstNs, 0);
        let checker = match incarnation {
            1 => Checker::new(flows, stride),
            _ => Checker::after((0..flows).map(|flow| journal.flow(flow)).collect(), stride),
        };
        let (earlier, invalid) = (journal.tally(), journal.get(Field::Invalid));
        Self { journal, checker, earlier, invalid, stride, room: Vec::new(), last_ns: None }
    }

    fn receive(&mut self, rx: &mut RxRing) -> usize {
        let burst = rx.recv();
        if !burst.is_empty() {
            let now = now_ns();
            let before = self.last_ns.replace(now).unwrap_or(now);
            self.journal.raise(Field::SilenceNs, now.saturating_sub(before));
        }
        for i in 0..burst.len() {
            match frames::check(&burst.get(i), &mut self.room) {
                Some(stamp) => self.take(stamp),
                None => self.checker.corrupted(),
            }
        }
        burst.len()
    }

    fn take(&mut self, stamp: Stamp) {
        let journal = self.journal;
        let is_new = u64::from(stamp.incarnation) > journal.get(Field::PeerIncarnation);
        if is_new || journal.get(Field::FirstNs) == 0 {
            journal.set(Field::FirstNs, now_ns());
        }
        if is_new {
            journal.forget(stamp.incarnation);
            // Whoever sees this takes the time for that of this packet.
            journal.set(Field::PeerIncarnation, stamp.incarnation.into());
        }
        if let Some(before) = self.checker.take(stamp).filter(|before| before.joins) {
            let began =
                if before.incarnation == stamp.incarnation { before.next } else { first(stamp.flow, self.stride) };
            journal.add(Field::Held, (stamp.number.saturating_sub(began)) / self.stride);
        }
        let flow = usize::from(stamp.flow);
        // Of the end with two queues each flow is a kind of its own.
        journal.count(stamp.incarnation, if self.stride == 1 { flow } else { 0 }, stamp.number);
        journal.set_flow(flow, self.checker.flow(stamp.flow));
        journal.add(Field::Received, 1);
    }

    fn note(&self, invalid: u64) {
        let mut tally = self.earlier;
        tally.add(self.checker.tally());
        self.journal.set_tally(tally);
        self.journal.set(Field::Invalid, self.invalid + invalid);
    }
}

/// The workers of the end with several queues, and who decides over them.
struct Workers<'a> {
    decider: Option<Decider>,
    owners: Vec<Owner<u64>>,
    holdings: Vec<Holding<'a>>,
    journal: &'a Journal,
}

impl<'a> Workers<'a> {
    fn new(port: &vport::client::Attachment, journal: &'a Journal) -> Result<Self> {
        if port.queues.len() == 1 {
            return Ok(Self { decider: None, owners: Vec::new(), holdings: Vec::new(), journal });
        }
        let (decider, owners) = group::<u64>(std::slice::from_ref(&port.steering), &[])?;
        let holding = |owner: &Owner<u64>| Holding {
            journal,
            held: (0..BUCKETS as u8).map(|bucket| owner.owns(bucket).then_some(0)).collect(),
        };
        let holdings = owners.iter().map(holding).collect();
        Ok(Self { decider: Some(decider), owners, holdings, journal })
    }

    fn settle(&mut self, queue: usize) -> bool {
        match (self.owners.get_mut(queue), self.holdings.get_mut(queue)) {
            (Some(owner), Some(holding)) => owner.settle(holding),
            _ => false,
        }
    }

    /// Opens an epoch now and then.
    fn change(&mut self, random: &mut Random, finish: bool) {
        let Some(decider) = self.decider.as_mut().filter(|decider| !finish && !decider.is_open()) else { return };
        if !random.once_in(20) {
            return;
        }
        let mut owners = *decider.owners();
        (0..1 + random.below(BUCKETS)).for_each(|_| owners[random.below(BUCKETS)] = random.below(2) as u8);
        if decider.set_owners(&owners).is_ok() {
            self.journal.add(Field::Changes, 1);
            stop_at(self.journal, 1);
        }
    }
}

/// The buckets of one worker: how often each has moved.
struct Holding<'a> {
    journal: &'a Journal,
    held: Vec<Option<u64>>,
}

impl Buckets for Holding<'_> {
    type State = u64;

    fn leave(&mut self, bucket: u8, _to: usize) -> u64 {
        stop_at(self.journal, 2);
        self.held[usize::from(bucket)].take().expect("a bucket leaves once")
    }

    fn arrive(&mut self, bucket: u8, _from: usize, hops: u64) {
        stop_at(self.journal, 3);
        let before = self.held[usize::from(bucket)].replace(hops + 1);
        assert!(before.is_none(), "a bucket arrives where it is not");
    }
}

/// Stops this process if it is asked to stop at this point.
fn stop_at(journal: &Journal, point: u64) {
    if journal.get(Field::StopAt) == point {
        journal.set(Field::StopAt, 0);
        let _ = raise(Signal::SIGSTOP);
    }
}
