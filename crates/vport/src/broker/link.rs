//! A link's segments, and where it stands between "both ends known" and "both ends hold a generation".

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::observer::Tap;
use super::seat::{Party, Seat};
use super::{LinkKind, LinkSpec, PortName};
use crate::arena::HolderId;
use crate::counters::{RxCounters, TxCounters};
use crate::handover::GENERATIONS_MAX;
use crate::latency::Latency;
use crate::layout::{Exchange, Index, TABLE_BYTES, records_bytes};
use crate::mapping::Mapping;
use crate::segment::{HUGE_PAGE, PAGE, Segment, SegmentError};
use crate::wire::Reply;

/// Generations of a link that are over and that somebody keeps, beside the current one, at most. Ends that are as they should be
/// never have so many: a queue has up to [`GENERATIONS_MAX`] that it has not begun and as many that it has not done with.
const PAST_MAX: usize = 3 * GENERATIONS_MAX;
/// The same of generations whose buffers an end does not give back: others of the group have less.
const LEASES_MAX: usize = 2 * GENERATIONS_MAX;
/// Between two looks at what is kept.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How far the current generation has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// There is none, or it is over.
    Down,
    /// Writers map: who has not yet.
    Mapping(Vec<Seat>),
    /// Readers map the records of their peers for writing: who has not yet.
    Sharing(Vec<Seat>),
    /// Readers map: who has not yet.
    Joining(Vec<Seat>),
    /// All who are present hold it.
    Up,
    /// It was up under a former broker: who has not come back.
    Adopted(Vec<Seat>),
}

/// A link and what is known of its ends.
pub(super) struct Link {
    pub(super) spec: LinkSpec,
    pub(super) stage: Stage,
    pub(super) generation: u64,
    /// Who sits at which end.
    pub(super) parties: [Vec<Party>; 2],
    /// Seats that have the current generation.
    pub(super) present: Vec<Seat>,
    /// The seat whose heir gets the current generation in place of the client that it has, until all have it; and the
    /// generation before.
    pub(super) passing: Option<(Seat, u64)>,
    /// Who is shown the peer's segments of the current generation once those who are shown them first have taken them over.
    pub(super) untold: Vec<Seat>,
    /// Members of a pool that were not given the current generation.
    pub(super) absent: Vec<Seat>,
    pub(super) segments: Option<Segments>,
    /// Segments of generations that are over, as long as somebody has them: of each generation those. Oldest first.
    pub(super) past: Vec<Vec<Segment>>,
    /// When to look again whether somebody does.
    pub(super) look_at: Option<Instant>,
    /// Of a pool's link: generations before the current one, of which the other end may not have read everything. Oldest first.
    pub(super) former: Vec<Former>,
    /// The tables of a pool's ends: of the last generation that was up, those since that were shown to readers, and the current one.
    pub(super) tables: Vec<Arc<Mapping>>,
    /// How many of them are of generations that their readers were shown: all, or all but the last.
    pub(super) shown_tables: usize,
    /// Senders may steer by a table of a former broker, which cannot be written any more.
    pub(super) has_closed_table: bool,
    /// The epoch that a pool's table has in the current generation.
    pub(super) table_epoch: u64,
    pub(super) quarantined: Option<String>,
    /// A new generation is due then: it was asked for too soon, or memory was short.
    pub(super) due: Option<Instant>,
    pub(super) not_before: Instant,
    /// When an adopted link gives up waiting for its ends.
    pub(super) adopted_until: Instant,
    pub(super) tap: Arc<Tap>,
    pub(super) told_of_pages: bool,
    /// Segments that readers could write, too, could not be closed: until an end is attached anew, nobody but the writer can.
    pub(super) unshared: bool,
    /// Generations whose buffers are not all back, in order. Of direct links, none.
    pub(super) leases: Vec<Lease>,
}

/// The buffers of one generation of a zero-copy link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) generation: u64,
    /// Id of end 0; that of end 1 is the next.
    pub(super) ids: HolderId,
    /// Which ends may still use them.
    pub(super) used: [bool; 2],
}

impl Link {
    pub(super) fn new(spec: LinkSpec) -> Self {
        let now = Instant::now();
        let parties = [0, 1].map(|end: usize| spec.ends[end].functions.iter().map(|_| Party::new()).collect());
        Self {
            spec,
            stage: Stage::Down,
            generation: 0,
            parties,
            present: Vec::new(),
            passing: None,
            untold: Vec::new(),
            absent: Vec::new(),
            segments: None,
            past: Vec::new(),
            look_at: None,
            former: Vec::new(),
            tables: Vec::new(),
            shown_tables: 0,
            has_closed_table: false,
            table_epoch: 0,
            quarantined: None,
            due: None,
            not_before: now,
            adopted_until: now,
            tap: Arc::default(),
            told_of_pages: false,
            unshared: false,
            leases: Vec::new(),
        }
    }

    /// A seat has let go of those generations of which this is true.
    pub(super) fn let_go(&mut self, seat: Seat, of: impl Fn(u64) -> bool) {
        for lease in self.leases.iter_mut().filter(|lease| of(lease.generation)) {
            lease.used[seat.end] = false;
        }
        let earlier = &mut self.party_mut(seat).earlier;
        earlier.iter_mut().for_each(|earlier| earlier.retain(|generation| !of(*generation)));
    }

    /// Takes out the leases that nobody uses any more.
    pub(super) fn ended_leases(&mut self) -> Vec<Lease> {
        let (current, down) = (self.generation, self.stage == Stage::Down);
        let ended = |lease: &mut Lease| lease.used == [false; 2] && (lease.generation != current || down);
        self.leases.extract_if(.., ended).collect()
    }

    /// What the peer of a pool is told of a member that writes nothing (more) in the generations from `since` to the current.
    pub(super) fn gone(&self, seat: Seat, since: u64) -> Reply {
        let queues = self.queues_of(seat);
        let (first_queue, queues) = (queues.start as u16, queues.len() as u16);
        Reply::Gone { since, generation: self.generation, first_queue, queues }
    }

    pub(super) fn party(&self, seat: Seat) -> &Party {
        &self.parties[seat.end][seat.member]
    }

    pub(super) fn party_mut(&mut self, seat: Seat) -> &mut Party {
        &mut self.parties[seat.end][seat.member]
    }

    pub(super) fn seats(&self, end: usize) -> impl Iterator<Item = Seat> + use<> {
        (0..self.parties[end].len()).map(move |member| Seat { end, member })
    }

    pub(super) fn all_seats(&self) -> impl Iterator<Item = Seat> + use<> {
        self.seats(0).chain(self.seats(1))
    }

    /// Whoever is at an end.
    pub(super) fn clients(&self, end: usize) -> impl Iterator<Item = u64> {
        self.parties[end].iter().filter_map(|party| party.client)
    }

    /// Who takes part in the current generation at a seat.
    pub(super) fn sitter(&self, seat: Seat) -> Option<u64> {
        let party = self.party(seat);
        let heir = party.heir.filter(|_| self.passing.is_some_and(|(passing, _)| passing == seat));
        heir.map(|heir| heir.client).or(party.client)
    }

    /// The same for all seats of an end.
    pub(super) fn sitters(&self, end: usize) -> impl Iterator<Item = u64> {
        self.seats(end).filter_map(|seat| self.sitter(seat))
    }

    pub(super) fn port(&self, seat: Seat) -> PortName {
        let spec = &self.spec.ends[seat.end];
        PortName { function: spec.functions[seat.member].clone(), port: spec.port.name.clone() }
    }

    /// Queues of an end.
    pub(super) fn queues(&self, end: usize) -> usize {
        self.spec.ends[end].queues()
    }

    /// The queues of its end that belong to a seat.
    pub(super) fn queues_of(&self, seat: Seat) -> Range<usize> {
        let each = usize::from(self.spec.ends[seat.end].port.queues);
        seat.member * each..(seat.member + 1) * each
    }

    /// Whether an end can have several members.
    pub(super) fn is_pool(&self, end: usize) -> bool {
        self.spec.ends[end].functions.len() > 1
    }

    pub(super) fn has_pool(&self) -> bool {
        self.is_pool(0) || self.is_pool(1)
    }

    /// Whether other members than this one are at its end.
    pub(super) fn has_others(&self, seat: Seat) -> bool {
        self.seats(seat.end).any(|other| other != seat && self.party(other).client.is_some())
    }

    /// Whether somebody is at either end.
    pub(super) fn is_held(&self) -> bool {
        (0..2).all(|end| self.clients(end).next().is_some())
    }

    /// Whether it is a pool's, of a former broker that has left its table and no segments.
    pub(super) fn is_recalled(&self) -> bool {
        self.has_closed_table && self.segments.is_none()
    }

    /// Counters that a seat has published in its index segments.
    pub(super) fn counters(&self, seat: Seat) -> (Vec<RxCounters>, Vec<TxCounters>) {
        let Some(segments) = &self.segments else { return Default::default() };
        let layout = Index::new(self.queues(seat.across()));
        let indices = &segments.ends[seat.end].indices[self.queues_of(seat)];
        (
            indices.iter().map(|index| read_rx(layout, index)).collect(),
            indices.iter().map(|index| read_tx(layout, index)).collect(),
        )
    }

    /// A generation takes the place of the current one, whose readers go on with what is in it until `until`.
    pub(super) fn succeed_with(&mut self, segments: Segments, until: Instant) {
        let Some(former) = self.segments.replace(segments) else { return };
        let indices = self.retire(former);
        if self.has_pool() && self.stage != Stage::Down {
            self.former.push(Former { indices, until });
            self.former.drain(..self.former.len().saturating_sub(GENERATIONS_MAX));
        }
    }

    /// A new generation has this table of a pool. Nobody knows that of the one before if that was not shown; and of many that were shown,
    /// and did not come up, the oldest are over for sure.
    pub(super) fn add_table(&mut self, table: Arc<Mapping>) {
        self.tables.truncate(self.shown_tables);
        if self.tables.len() > GENERATIONS_MAX {
            self.tables.remove(1);
        }
        self.shown_tables = self.tables.len();
        self.tables.push(table);
    }

    /// A generation is over: whoever has its segments may keep them. Returns its index segments as mapped.
    pub(super) fn retire(&mut self, segments: Segments) -> [Vec<Arc<Mapping>>; 2] {
        let mut past = Vec::new();
        let indices = segments.ends.map(|end| {
            past.extend(end.index.into_iter().chain(end.records).chain([end.table]));
            end.indices
        });
        self.past.push(past);
        self.look_at_past();
        indices
    }

    /// Whether its ends keep so much of generations that are over that they get no more.
    pub(super) fn is_kept(&self) -> bool {
        let leased = |end: usize| self.leases.iter().filter(|lease| lease.used[end]).count();
        self.past.len() >= PAST_MAX || (0..2).any(|end| leased(end) >= LEASES_MAX)
    }

    /// Lets go of the segments that nobody else has any more.
    pub(super) fn look_at_past(&mut self) {
        self.past.iter_mut().for_each(|segments| segments.retain(Segment::is_lent));
        self.past.retain(|segments| !segments.is_empty());
        self.look_at = (!self.past.is_empty()).then(|| Instant::now() + LOOK_EVERY);
    }

    /// Whether the other end has not read all that a seat has sent.
    pub(super) fn has_unread(&self, seat: Seat) -> bool {
        let current = self.segments.iter().map(|segments| segments.ends.each_ref().map(|end| &end.indices[..]));
        let former = self.former.iter().map(|former| former.indices.each_ref().map(|indices| &indices[..]));
        let queues = self.queues_of(seat);
        current.chain(former).any(|indices| is_unread(indices[seat.end], indices[seat.across()], queues.clone()))
    }

    /// How long what a seat received was on its way, as it has published in its index segments.
    pub(super) fn latency(&self, seat: Seat) -> Latency {
        let Some(segments) = &self.segments else { return Latency::default() };
        let layout = Index::new(self.queues(seat.across()));
        let queues =
            segments.ends[seat.end].indices[self.queues_of(seat)].iter().map(|index| Latency::read(layout, index));
        queues.fold(Latency::default(), |sum, queue| sum.and(&queue))
    }
}

/// Whether somebody has not read all that these queues have sent, in a generation with these index segments.
fn is_unread(own: &[Arc<Mapping>], others: &[Arc<Mapping>], mut queues: Range<usize>) -> bool {
    let (sender, reader) = (Index::new(others.len()), Index::new(own.len()));
    let head = |queue: usize, other| sender.head(&own[queue], other).load(Ordering::Acquire);
    let tail = |queue, other: usize| reader.tail(&others[other], queue).load(Ordering::Acquire);
    queues.any(|queue| (0..others.len()).any(|other| head(queue, other) != tail(queue, other)))
}

fn read_rx(layout: Index, index: &Mapping) -> RxCounters {
    let read = |n: usize| layout.rx_counters(index)[n].load(Ordering::Relaxed);
    RxCounters {
        packets: read(0),
        bytes: read(1),
        polls: read(2),
        empty_polls: read(3),
        invalid: read(4),
        sleeps: read(5),
    }
}

fn read_tx(layout: Index, index: &Mapping) -> TxCounters {
    let read = |n: usize| layout.tx_counters(index)[n].load(Ordering::Relaxed);
    TxCounters {
        packets: read(0),
        bytes: read(1),
        refused: read(2),
        no_peer: read(3),
        doorbells: read(4),
        discarded: read(5),
    }
}

/// The index segments of a generation that is not the current one any more.
pub(super) struct Former {
    indices: [Vec<Arc<Mapping>>; 2],
    /// How long its readers are waited for.
    pub(super) until: Instant,
}

/// The segments of one generation.
pub(super) struct Segments {
    pub(super) ends: [EndSegments; 2],
    pub(super) huge: bool,
}

/// What one end writes.
pub(super) struct EndSegments {
    pub(super) index: Vec<Segment>,
    pub(super) records: Vec<Segment>,
    /// The bucket table.
    pub(super) table: Segment,
    pub(super) records_bytes: usize,
    /// Pipes on which this end is woken: reading and writing ends. Gone once they are handed out.
    pub(super) doorbells: Vec<(OwnedFd, OwnedFd)>,
    /// The index segments, to read counters from.
    pub(super) indices: Vec<Arc<Mapping>>,
}

impl Segments {
    /// Makes the segments of a generation. In huge pages, if these are asked for and to be had; if not, the second value
    /// says why.
    pub(super) fn create(spec: &LinkSpec, huge: bool) -> Result<(Self, Option<String>), SegmentError> {
        if huge && spec.kind.group().is_none() {
            match Self::of_pages(spec, true) {
                Ok(segments) => return Ok((segments, None)),
                Err(error) => {
                    let reason = format!("no free huge pages for {}: {error}", spec.name);
                    return Ok((Self::of_pages(spec, false)?, Some(reason)));
                }
            }
        }
        Ok((Self::of_pages(spec, false)?, None))
    }

    fn of_pages(spec: &LinkSpec, huge: bool) -> Result<Self, SegmentError> {
        let end = |end| EndSegments::create(spec, end, huge);
        Ok(Self { ends: [end(0)?, end(1)?], huge })
    }

    /// Takes over segments that a keeper held, in any order, by their labels.
    pub(super) fn adopt(spec: &LinkSpec, labelled: Vec<(String, OwnedFd)>) -> Option<(u64, Self)> {
        let generation = labelled.first()?.0.split('/').nth(1)?.parse().ok()?;
        let mut labelled = labelled;
        let mut end = |end| EndSegments::adopt(spec, end, generation, &mut labelled);
        let ends = [end(0)?, end(1)?];
        let huge = ends[0].records_bytes % HUGE_PAGE == 0;
        Some((generation, Self { ends, huge }))
    }

    /// Writes the buffers that an end's queue has empty for each queue of its peer to where the peer returns buffers. Nobody
    /// has the segments yet.
    pub(super) fn stock(
        &self,
        spec: &LinkSpec,
        mut buffers: impl FnMut(usize, usize) -> Result<Vec<u32>, SegmentError>,
    ) -> Result<(), SegmentError> {
        for (receiver, end) in self.ends.iter().enumerate() {
            let (_, senders) = queues(spec, receiver);
            let layout = Exchange::new(spec.ring_bytes as usize, senders);
            for records in &end.records {
                let mapping = Mapping::writable(records.as_fd(), records.len())?;
                for sender in 0..senders {
                    let given = buffers(1 - receiver, layout.buffers)?;
                    for (pair, n) in given.chunks_exact(2).zip(0..) {
                        let word = mapping.word(layout.returns(sender) + n * 8);
                        word.store(u64::from(pair[0]) | u64::from(pair[1]) << 32, Ordering::Relaxed);
                    }
                }
            }
        }
        Ok(())
    }

    /// Nobody can open them for writing from here on, and readers may have them. On failure, says whose cannot be closed.
    pub(super) fn close_to_writers(&self) -> Result<(), (usize, SegmentError)> {
        for (end, segments) in self.ends.iter().enumerate() {
            let mut all = segments.index.iter().chain(&segments.records).chain([&segments.table]);
            all.try_for_each(Segment::close_to_writers).map_err(|error| (end, error))?;
        }
        Ok(())
    }

    /// Copies of all descriptors, with labels.
    pub(super) fn labelled(&self, generation: u64) -> io::Result<Vec<(String, OwnedFd)>> {
        let mut labelled = Vec::new();
        for (end, segments) in self.ends.iter().enumerate() {
            for (queue, (index, records)) in segments.index.iter().zip(&segments.records).enumerate() {
                labelled.push((label(generation, end, queue, INDEX), index.try_clone()?));
                labelled.push((label(generation, end, queue, RECORDS), records.try_clone()?));
            }
            labelled.push((table_label(generation, end), segments.table.try_clone()?));
        }
        Ok(labelled)
    }
}

const INDEX: &str = "index";
const RECORDS: &str = "records";

fn label(generation: u64, end: usize, queue: usize, kind: &str) -> String {
    format!("vport/{generation}/{end}/{queue}/{kind}")
}

fn table_label(generation: u64, end: usize) -> String {
    format!("vport/{generation}/{end}/table")
}

impl EndSegments {
    fn create(spec: &LinkSpec, end: usize, huge: bool) -> Result<Self, SegmentError> {
        let (queues, peer_queues) = queues(spec, end);
        let records_bytes = size_of_records(spec, peer_queues, if huge { HUGE_PAGE } else { PAGE });
        let index_bytes = Index::new(peer_queues).bytes();
        let each =
            |kind, bytes, huge| (0..queues).map(|_| Segment::create(kind, bytes, huge)).collect::<Result<Vec<_>, _>>();
        let index = each("kaista-index", index_bytes, false)?;
        let records = each("kaista-records", records_bytes, huge)?;
        let table = Segment::create("kaista-table", TABLE_BYTES, false)?;
        let doorbells = (0..queues).map(|_| doorbell()).collect::<io::Result<_>>()?;
        let indices = mapped(&index)?;
        Ok(Self { index, records, table, records_bytes, doorbells, indices })
    }

    fn adopt(spec: &LinkSpec, end: usize, generation: u64, labelled: &mut Vec<(String, OwnedFd)>) -> Option<Self> {
        let (queues, peer_queues) = queues(spec, end);
        let mut take = |wanted: String| {
            let at = labelled.iter().position(|(label, _)| *label == wanted)?;
            Some(labelled.swap_remove(at).1)
        };
        let mut of_queue = |queue, kind| take(label(generation, end, queue, kind));
        let fds: Vec<(OwnedFd, OwnedFd)> = (0..queues)
            .map(|queue| Some((of_queue(queue, INDEX)?, of_queue(queue, RECORDS)?)))
            .collect::<Option<_>>()?;
        let table = Segment::adopt(take(table_label(generation, end))?, TABLE_BYTES).ok()?;
        let [ordinary, huge] = [PAGE, HUGE_PAGE].map(|page| size_of_records(spec, peer_queues, page));
        let found = rustix::fs::fstat(&fds.first()?.1).ok()?.st_size as usize;
        let bytes = if found == huge { huge } else { ordinary };
        let (mut index, mut records) = (Vec::new(), Vec::new());
        for (index_fd, records_fd) in fds {
            index.push(Segment::adopt(index_fd, Index::new(peer_queues).bytes()).ok()?);
            records.push(Segment::adopt(records_fd, bytes).ok()?);
        }
        let indices = mapped(&index).ok()?;
        Some(Self { index, records, table, records_bytes: bytes, doorbells: Vec::new(), indices })
    }

    /// To write the bucket table: only before it is closed to writers.
    pub(super) fn map_table(&self) -> io::Result<Mapping> {
        Mapping::writable(self.table.as_fd(), TABLE_BYTES)
    }

    /// To look at the bucket table.
    pub(super) fn read_table(&self) -> io::Result<Mapping> {
        Mapping::read_only(self.table.as_fd(), TABLE_BYTES)
    }

    /// What the writer of these queues gets: of each index, records and the end of the pipe on which it is woken; the table,
    /// unless the end is a pool, whose table the broker writes.
    pub(super) fn for_writer(&self, queues: Range<usize>) -> io::Result<Vec<OwnedFd>> {
        let table = (queues.len() == self.index.len()).then(|| self.table.lend());
        self.lent(queues, |(reading, _)| reading).chain(table).collect()
    }

    /// What the reader gets to map for writing before the segments are closed: the records of each queue.
    pub(super) fn to_share(&self) -> io::Result<Vec<OwnedFd>> {
        self.records.iter().map(Segment::lend).collect()
    }

    /// What the reader gets: per queue index, records and the end of the pipe by which it wakes the writer; its table.
    pub(super) fn for_reader(&self) -> io::Result<Vec<OwnedFd>> {
        self.lent(0..self.index.len(), |(_, writing)| writing).chain([self.table.lend()]).collect()
    }

    fn lent(
        &self,
        queues: Range<usize>,
        pipe: impl Fn(&(OwnedFd, OwnedFd)) -> &OwnedFd,
    ) -> impl Iterator<Item = io::Result<OwnedFd>> {
        queues.flat_map(move |queue| {
            [self.index[queue].lend(), self.records[queue].lend(), pipe(&self.doorbells[queue]).try_clone()]
        })
    }
}

fn size_of_records(spec: &LinkSpec, peer_queues: usize, page: usize) -> usize {
    let ring_bytes = spec.ring_bytes as usize;
    match spec.kind {
        LinkKind::Direct | LinkKind::SharedRecords => records_bytes(ring_bytes, peer_queues, page),
        LinkKind::ZeroCopy { .. } => Exchange::new(ring_bytes, peer_queues).bytes(),
    }
}

fn queues(spec: &LinkSpec, end: usize) -> (usize, usize) {
    (spec.ends[end].queues(), spec.ends[1 - end].queues())
}

fn mapped(segments: &[Segment]) -> io::Result<Vec<Arc<Mapping>>> {
    segments.iter().map(|segment| Mapping::read_only(segment.as_fd(), segment.len()).map(Arc::new)).collect()
}

/// A pipe of one page, so that a peer cannot make us hold more.
fn doorbell() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reading, writing) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
    fcntl_setpipe_size(&writing, PAGE)?;
    Ok((reading, writing))
}
