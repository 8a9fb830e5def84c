//! The victim of a hostile peer: one loop that serves all of its ports, those towards the peer and one towards an honest
//! function, whose packets it sends back.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use vport::broker::LinkKind;
use vport::client::{Attachment, attach};
use vport::layout::{VERSION, VERSION_SHARED, VERSION_ZERO_COPY};
use vport::owner::{Buckets, Decider, Owner, group};
use vport::packet::{FRAME_MAX, HEAD_MAX, PacketRef};
use vport::relay::{RelayRx, RelayTx, relay};
use vport::steering::{BUCKETS, BucketCounts, BucketTable, Steering};
use vport::{RxRing, TxRing};

use crate::frames::{self, Stamp};
use crate::journal::{Field, Journal};
use crate::process::{die_with_parent, sleep};
use crate::random::Random;
use crate::rig::PATIENCE;

/// Queues of the peer's ports and of the victim's, for each link between them.
pub const SHAPES: [[u16; 2]; 8] = [[1, 1], [1, 4], [3, 4], [2, 1], [1, 1], [2, 3], [1, 1], [2, 3]];
/// How frames that are taken from where they lie are spread.
const STEERING: Steering = Steering::FiveTuple;
/// From here on the liar can write the records that it reads.
const SHARED_RECORDS: usize = 4;
/// The links from here on are zero-copy links.
const ZERO_COPY: usize = 6;

/// The name of the victim's port, and of the peer's, on link `n`.
pub fn port(n: usize) -> String {
    format!("p{n}")
}

/// Whether link `n` is a zero-copy link.
pub fn is_zero_copy(n: usize) -> bool {
    n >= ZERO_COPY
}

/// What kind of link it is.
pub fn kind(n: usize) -> LinkKind {
    match n {
        ..SHARED_RECORDS => LinkKind::Direct,
        SHARED_RECORDS..ZERO_COPY => LinkKind::SharedRecords,
        _ => LinkKind::ZeroCopy { group: "liars".into() },
    }
}

/// What an end of link `n` must speak.
pub fn version(n: usize) -> u16 {
    match kind(n) {
        LinkKind::Direct => VERSION,
        LinkKind::SharedRecords => VERSION_SHARED,
        LinkKind::ZeroCopy { .. } => VERSION_ZERO_COPY,
    }
}

/// Which process this is.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The function's socket.
    #[arg(long)]
    pub socket: PathBuf,
    /// Its journal.
    #[arg(long)]
    pub journal: PathBuf,
}

/// Goes on until it is ended. Any panic ends it too, and so the campaign.
pub fn run(options: &Options) -> Result<()> {
    die_with_parent();
    let journal = &Journal::open(&options.journal)?;
    let mut honest = attach(&options.socket, "honest", PATIENCE, 192)?;
    let exposed = (0..SHAPES.len()).map(|n| Exposed::new(attach(&options.socket, &port(n), PATIENCE, 192)?));
    let mut exposed = exposed.collect::<Result<Vec<_>>>()?;
    let (mut random, mut inspector) = (Random::new(3), Inspector::new(journal));
    let mut turned = Instant::now();
    loop {
        let mut busy = echo(&mut honest, journal);
        for port in &mut exposed {
            busy |= port.turn(&mut inspector, &mut random);
        }
        journal.set(Field::Invalid, exposed.iter().map(Exposed::invalid).sum());
        journal.add(Field::Rounds, 1);
        journal.set(Field::Held, journal.get(Field::Held).max(turned.elapsed().as_micros() as u64));
        turned = Instant::now();
        if !busy {
            // Else a port keeps what it last received of an earlier generation, or does not, as it happens.
            exposed.iter_mut().flat_map(|port| &mut port.ways).for_each(|way| way.to.let_go());
            let ports = exposed.iter_mut().flat_map(|port| &mut port.queues);
            sleep(honest.queues.iter_mut().chain(ports).map(|(rx, _)| rx));
            turned = Instant::now();
        }
    }
}

/// Sends back what came, all of it.
fn echo(honest: &mut Attachment, journal: &Journal) -> bool {
    let (rx, tx) = &mut honest.queues[0];
    let burst = rx.recv();
    let packets: Vec<PacketRef<'_>> = (0..burst.len()).map(|i| burst.get(i)).collect();
    let mut sent = tx.send(&packets);
    while sent < packets.len() {
        std::thread::yield_now();
        sent += tx.send(&packets[sent..]);
    }
    journal.add(Field::Finished, sent as u64);
    sent > 0
}

/// A port towards the hostile peer.
struct Exposed {
    queues: Vec<(RxRing, TxRing)>,
    decider: Option<Decider>,
    owners: Vec<Owner<()>>,
    holding: Vec<Holding>,
    /// Of each queue.
    ways: Vec<Way>,
}

/// The way of frames that are taken from where they lie, as between two threads.
struct Way {
    to: RelayTx,
    from: RelayRx,
    /// Position behind what was received this way.
    end: u64,
}

impl Way {
    fn new() -> Result<Self> {
        const BYTES: u64 = 64 << 10;
        let (to, from) = relay(BYTES, 192)?;
        Ok(Self { to, from, end: 0 })
    }

    /// Receives, and tells the other end. None where nothing can be held.
    fn receive(&mut self, rx: &mut RxRing, inspector: &mut Inspector<'_>) -> Option<bool> {
        let held = rx.recv_held(STEERING)?;
        inspector.look_at((0..held.len()).map(|at| held.get(at)));
        let mut left = (0..held.len()).fold(0, |all, at| all | 1 << at);
        for (_, share) in held.shares(STEERING, &BucketTable::fixed(2), &BucketCounts::default()) {
            left ^= share;
            // What there is no room for is dropped.
            self.to.send_share(&held, share);
        }
        if left != 0 {
            inspector.journal.add(Field::Corrupted, 1);
        }
        self.end = held.end();
        Some(!held.is_empty())
    }

    /// The other end takes frames, and what it has dealt with is given back.
    fn take(&mut self, rx: &mut RxRing, inspector: &mut Inspector<'_>) -> bool {
        let burst = self.from.recv();
        let took = !burst.is_empty();
        inspector.look_at((0..burst.len()).map(|at| burst.get(at)));
        if self.to.is_done(self.to.position()) {
            rx.give_back(self.end);
        }
        took
    }
}

/// Which buckets a worker has.
struct Holding(u128);

impl Buckets for Holding {
    type State = ();

    fn leave(&mut self, bucket: u8, _to: usize) {
        assert!(self.0 >> bucket & 1 == 1, "a bucket leaves that is not here");
        self.0 &= !(1 << bucket);
    }

    fn arrive(&mut self, bucket: u8, _from: usize, (): ()) {
        assert!(self.0 >> bucket & 1 == 0, "a bucket arrives where it is");
        self.0 |= 1 << bucket;
    }
}

impl Exposed {
    fn new(port: Attachment) -> Result<Self> {
        let (decider, owners) = if port.queues.len() > 1 {
            let (decider, owners) = group::<()>(std::slice::from_ref(&port.steering), &[])?;
            (Some(decider), owners)
        } else {
            (None, Vec::new())
        };
        let held = |owner: &Owner<()>| (0..BUCKETS as u8).filter(|b| owner.owns(*b)).fold(0, |set, b| set | 1 << b);
        let holding = owners.iter().map(|owner| Holding(held(owner))).collect();
        let ways = port.queues.iter().map(|_| Way::new()).collect::<Result<_>>()?;
        Ok(Self { queues: port.queues, decider, owners, holding, ways })
    }

    fn turn(&mut self, inspector: &mut Inspector<'_>, random: &mut Random) -> bool {
        let mut busy = false;
        for (queue, (rx, tx)) in self.queues.iter_mut().enumerate() {
            let way = &mut self.ways[queue];
            let came = random.once_in(2).then(|| way.receive(rx, inspector)).flatten();
            busy |= came.unwrap_or_else(|| {
                let burst = rx.recv();
                inspector.look_at((0..burst.len()).map(|at| burst.get(at)));
                if random.once_in(4) {
                    // As it came: of a zero-copy link, in buffers that the peer can write still.
                    tx.send_burst(&burst, 0);
                }
                !burst.is_empty()
            });
            if random.once_in(2) {
                busy |= way.take(rx, inspector);
            }
            if let Some(owner) = self.owners.get_mut(queue) {
                busy |= owner.settle(&mut self.holding[queue]);
            }
            if random.once_in(4) {
                let stamp = Stamp { flow: random.below(1 << 16) as u16, incarnation: 0, number: 0 };
                let frame = frames::frame(stamp, frames::len_of(random.below(1 << 12) as u64));
                tx.send(&[PacketRef::from_slice(&frame); 3]);
            }
        }
        if let Some(decider) = self.decider.as_mut().filter(|decider| !decider.is_open() && random.once_in(8)) {
            let owners = std::array::from_fn(|_| random.below(self.owners.len()) as u8);
            let _ = decider.set_owners(&owners);
        }
        busy
    }

    fn invalid(&self) -> u64 {
        self.queues.iter().map(|(rx, _)| rx.counters().invalid).sum()
    }
}

/// Looks at what a hostile peer has sent: whether it is what a port may deliver.
struct Inspector<'a> {
    journal: &'a Journal,
    /// Where records and arenas are mapped, as far as it is known.
    records: Vec<std::ops::Range<usize>>,
    room: Vec<u8>,
}

impl<'a> Inspector<'a> {
    fn new(journal: &'a Journal) -> Self {
        Self { journal, records: Vec::new(), room: vec![0; FRAME_MAX] }
    }

    fn look_at<'p>(&mut self, packets: impl Iterator<Item = PacketRef<'p>>) {
        let mut received = 0;
        for packet in packets {
            if !self.is_lawful(&packet) {
                self.journal.add(Field::Corrupted, 1);
            }
            received += 1;
        }
        self.journal.add(Field::Received, received);
    }

    /// Whether a frame has a length that frames have, a private head, and a rest within a ring or an arena, which can be copied.
    fn is_lawful(&mut self, packet: &PacketRef<'_>) -> bool {
        if !(1..=FRAME_MAX).contains(&packet.len()) || packet.head.len() > HEAD_MAX {
            return false;
        }
        packet.copy_to(&mut self.room);
        let start = packet.rest.as_ptr() as usize;
        packet.rest.is_empty() || self.is_of_records(start..start + packet.rest.len())
    }

    fn is_of_records(&mut self, bytes: std::ops::Range<usize>) -> bool {
        let within = |records: &[std::ops::Range<usize>]| {
            records.iter().any(|record| record.start <= bytes.start && bytes.end <= record.end)
        };
        if !within(&self.records) {
            self.records = mapped_records();
        }
        within(&self.records)
    }
}

/// Where this process has mapped records and arenas.
fn mapped_records() -> Vec<std::ops::Range<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let lines =
        maps.lines().filter(|line| ["/memfd:kaista-records", "/memfd:kaista-arena"].iter().any(|of| line.contains(of)));
    let range = |line: &str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        Some(usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?)
    };
    lines.filter_map(range).collect()
}
