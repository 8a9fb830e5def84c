//! A process at an end of a link that speaks the handshake by hand, and stops itself between two steps of it, or of a burst
//! with a new table. Whoever started it kills it there, or lets it go on.

use std::path::PathBuf;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, raise};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use vport::layout::{VERSION, VERSION_SHARED, VERSION_ZERO_COPY};
use vport::wire::{Reply, Request};

use crate::end::FLOWS;
use crate::frames::{self, LEN_MIN, Stamp};
use crate::journal::Journal;
use crate::memory::Words;
use crate::outlet::Outlet;
use crate::process::die_with_parent;
use crate::raw::{Lent, Raw};
use crate::site::Kind;

/// The points, in order. The end with two queues has those of the handshake only.
pub const POINTS: [&str; 18] = [
    "connected",
    "greeted",
    "welcomed",
    "own segments received",
    "own segments mapped",
    "mapping told",
    "peer's records received",
    "peer's records mapped",
    "peer's segments received",
    "peer's segments mapped",
    "readiness told",
    "a burst begun",
    "marks written",
    "an epoch begun",
    "records written",
    "heads published",
    "the burst ended",
    "channels closed",
];
/// How many of them belong to the handshake.
pub const OF_HANDSHAKE: usize = 11;

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
    /// Queues of the port.
    #[arg(long)]
    pub queues: usize,
    /// The number of the point to stop at, from 0.
    #[arg(long)]
    pub point: usize,
    /// What kind of link it is.
    #[arg(long)]
    pub kind: Kind,
}

/// Stops at its point, and ends when it has gone all the way, or was sent away.
pub fn run(options: &Options) -> Result<()> {
    die_with_parent();
    let mut hand = Hand { point: Some(options.point), journal: Journal::open(&options.journal)? };
    let Some(link) = hand.shake(options)? else { return Ok(()) };
    if options.queues == 1 {
        hand.burst(options.incarnation, &link)?;
    }
    Ok(())
}

struct Hand {
    /// Where to stop, until it has.
    point: Option<usize>,
    journal: Journal,
}

/// What the handshake ended with, of the end with one queue: its own index and what it sends with, its peer's table.
struct Link {
    _raw: Raw,
    index: Words,
    outlet: Outlet,
    table: Words,
}

impl Hand {
    fn at(&mut self, point: &str) {
        if self.point.is_some_and(|stop| POINTS[stop] == point) {
            self.point = None;
            let _ = raise(Signal::SIGSTOP);
        }
    }

    /// Up to readiness; none if the broker went away.
    fn shake(&mut self, options: &Options) -> Result<Option<Link>> {
        let version = match options.kind {
            Kind::Direct => VERSION,
            Kind::SharedRecords => VERSION_SHARED,
            Kind::ZeroCopy => VERSION_ZERO_COPY,
        };
        let (raw, ring) = loop {
            let raw = connected(options)?;
            self.at("connected");
            raw.say(&Request::Hello { oldest: version, newest: version, port: "p".into(), resume: 0 });
            if options.kind == Kind::ZeroCopy {
                raw.say(&Request::Holds(Vec::new()));
            }
            self.at("greeted");
            match raw.receive() {
                Some((Reply::Welcome { ring_bytes, .. }, _)) => break (raw, ring_bytes as usize),
                Some((Reply::Refused { try_again: true, .. }, _)) => std::thread::sleep(Duration::from_millis(2)),
                Some((other, _)) => bail!("the broker answers {other:?}"),
                None => return Ok(None),
            }
        };
        self.at("welcomed");
        let (mut lent, mut own, mut shared) = (None, None, Vec::new());
        loop {
            match raw.receive() {
                Some((Reply::Arena { generation, buffers, present, own, peer }, fds)) => {
                    lent = Some(Lent { generation, buffers, present, own, peer, fds });
                }
                Some((Reply::Own { generation, records_bytes }, fds)) => {
                    self.at("own segments received");
                    let index = Words::map(&fds[0], 4096, true)?;
                    let records = Words::map(&fds[1], records_bytes as usize, true)?;
                    own = Some((index, records));
                    self.at("own segments mapped");
                    raw.say(&Request::Mapped { generation });
                    self.at("mapping told");
                }
                Some((Reply::Records { generation, records_bytes }, fds)) => {
                    self.at("peer's records received");
                    shared =
                        fds.iter().map(|fd| Words::map(fd, records_bytes as usize, true)).collect::<Result<_, _>>()?;
                    self.at("peer's records mapped");
                    raw.say(&Request::Mapped { generation });
                }
                Some((Reply::Peer { generation, records_bytes, .. }, fds)) => {
                    self.at("peer's segments received");
                    let table = Words::map(fds.last().context("a table")?, 4096, false)?;
                    // Of each queue index, records and doorbell.
                    let records = fds.iter().skip(1).step_by(3).map(|fd| Words::map(fd, records_bytes as usize, false));
                    let peer = if shared.is_empty() { records.collect::<Result<_, _>>()? } else { shared };
                    self.at("peer's segments mapped");
                    raw.say(&Request::Ready { generation });
                    self.at("readiness told");
                    let Some((index, records)) = own.take() else { bail!("a peer's segments before one's own") };
                    let outlet = Outlet::new(records, peer, ring, lent)?;
                    return Ok(Some(Link { _raw: raw, index, outlet, table }));
                }
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// One frame of each flow, in one burst that begins an epoch.
    fn burst(&mut self, incarnation: u32, link: &Link) -> Result<()> {
        /// Queues of the peer.
        const PEERS: usize = 2;
        let head = |queue: usize| (3 + queue) * 128;
        let (burst, epoch) = ((3 + 2 * PEERS) * 128, (3 + 2 * PEERS) * 128 + 8);
        let Link { index, outlet, table, .. } = link;
        index.word(burst).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.at("a burst begun");
        let begun = table.load(0);
        if begun == 0 {
            return Ok(());
        }
        (0..PEERS).for_each(|queue| index.word(head(queue) + 16).store(0, Ordering::Relaxed));
        self.at("marks written");
        index.word(epoch).store(begun, Ordering::Release);
        self.at("an epoch begun");
        let mut heads = [0_usize; PEERS];
        for number in 0..FLOWS {
            let frame = frames::frame(Stamp { flow: number as u16, incarnation, number }, LEN_MIN);
            let bucket = usize::from(frames::bucket_of_head(&frame));
            let owners = table.load(128 + (begun % 2) as usize * 128 + bucket / 8 * 8);
            let queue = usize::from(owners.to_le_bytes()[bucket % 8]) % PEERS;
            heads[queue] = outlet.put(queue, heads[queue], &frame);
        }
        self.at("records written");
        self.journal.set_accepted(0, FLOWS);
        (0..PEERS).for_each(|queue| index.word(head(queue)).store(heads[queue] as u64, Ordering::Release));
        self.at("heads published");
        index.word(burst).store(2, Ordering::Release);
        self.at("the burst ended");
        (0..PEERS).for_each(|queue| index.word(head(queue) + 8).store(heads[queue].max(1) as u64, Ordering::Release));
        self.at("channels closed");
        Ok(())
    }
}

fn connected(options: &Options) -> Result<Raw> {
    let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    connect(&socket, &SocketAddrUnix::new(&options.socket)?)?;
    Ok(Raw { socket })
}
