//! What a process of a campaign has done, in a file that outlives it: whoever kills it reads there how far it came.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::Result;

use crate::checker::Flow;
use crate::memory::Words;
use crate::outcome::Tally;

/// Bytes of a journal.
const BYTES: usize = 64 << 10;
/// Flows that a journal has room for.
pub const FLOWS_MAX: usize = 128;
/// Incarnations of a peer whose packets are counted apart.
const INCARNATIONS: usize = 64;
/// Kinds of packets of a peer that are numbered apart.
const KINDS: usize = 2;

/// Single words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Field {
    /// When the process was about to connect for the first time, in nanoseconds of the monotonic clock.
    ConnectingNs,
    /// When the first packet came of the peer's incarnation that came last, or the first at all.
    FirstNs,
    /// That incarnation.
    PeerIncarnation,
    /// The longest time without a packet, as of late.
    SilenceNs,
    /// Counts rounds.
    Rounds,
    /// Packets of all kinds that came.
    Received,
    /// The point at which the process shall stop itself; taken back by it.
    StopAt,
    /// Not 0: send nothing more.
    Finish,
    /// Not 0: nothing more is sent.
    Finished,
    /// Changes of owners that were begun.
    Changes,
    /// Frames dropped for a queue that does not own their bucket, or for a broken rule.
    Invalid,
    /// Packets that were on their way to a process that is dead.
    Held,
    /// Buckets that came to members of a pool.
    Arrived,
    /// Buckets that a member has.
    Owned,
    /// What the books of its buckets say: packets entered.
    Entered,
    /// And how often they have changed hands.
    Hops,
    /// As in [`Tally`].
    Lost,
    /// As in [`Tally`].
    Reordered,
    /// As in [`Tally`].
    Duplicated,
    /// As in [`Tally`].
    Corrupted,
}

const ACCEPTED: usize = 64 * 8;
const COUNTED: usize = 128 * 8;
const BASES: usize = COUNTED + INCARNATIONS * KINDS * 8;
const FLOWS: usize = BASES + INCARNATIONS * KINDS * 8;
const TIMES: usize = FLOWS + FLOWS_MAX * 16;
/// Times that a journal has room for.
const TIMES_MAX: u64 = 1_024;
const _: () = assert!(TIMES + TIMES_MAX as usize * 8 <= BYTES);

/// A mapped journal.
#[derive(Debug)]
pub struct Journal(Words);

impl Journal {
    /// A new one, which any user may write.
    pub fn create(path: &Path) -> Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        file.set_len(BYTES as u64)?;
        file.set_permissions(std::fs::Permissions::from_mode(0o666))?;
        Ok(Self(Words::map(&file, BYTES, true)?))
    }

    /// One that is there.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Self(Words::map(&file, BYTES, true)?))
    }

    /// A word.
    pub fn get(&self, field: Field) -> u64 {
        self.0.load(field as usize * 8)
    }

    /// Writes a word. Each is written by one process at a time.
    pub fn set(&self, field: Field, value: u64) {
        self.0.word(field as usize * 8).store(value, Ordering::Release);
    }

    /// Writes a word, if it is less.
    pub fn raise(&self, field: Field, value: u64) {
        self.0.word(field as usize * 8).fetch_max(value, Ordering::AcqRel);
    }

    /// A word, which is 0 then.
    pub fn take(&self, field: Field) -> u64 {
        self.0.word(field as usize * 8).swap(0, Ordering::AcqRel)
    }

    /// Adds to a word.
    pub fn add(&self, field: Field, value: u64) {
        self.set(field, self.get(field).wrapping_add(value));
    }

    /// How many packets of a kind the port has accepted from this incarnation.
    pub fn accepted(&self, kind: usize) -> u64 {
        self.0.load(ACCEPTED + kind * 8)
    }

    /// Notes that.
    pub fn set_accepted(&self, kind: usize, count: u64) {
        self.0.word(ACCEPTED + kind * 8).store(count, Ordering::Release);
    }

    /// Notes a packet of a kind of a peer's incarnation.
    pub fn count(&self, incarnation: u32, kind: usize, number: u64) {
        let at = (incarnation as usize % INCARNATIONS * KINDS + kind) * 8;
        let (count, base) = (self.0.word(COUNTED + at), self.0.word(BASES + at));
        let before = count.load(Ordering::Relaxed);
        if before == 0 || number < base.load(Ordering::Relaxed) {
            base.store(number, Ordering::Relaxed);
        }
        count.store(before + 1, Ordering::Release);
    }

    /// Up to which number all packets of a kind of a peer's incarnation have come, if none is missing from the first that
    /// came on: none if there is none.
    pub fn arrived(&self, incarnation: u32, kind: usize) -> Option<u64> {
        let at = (incarnation as usize % INCARNATIONS * KINDS + kind) * 8;
        let count = self.0.load(COUNTED + at);
        (count > 0).then(|| count + self.0.load(BASES + at))
    }

    /// Makes room for the packets of a new incarnation of the peer.
    pub fn forget(&self, incarnation: u32) {
        for kind in 0..KINDS {
            let at = (incarnation as usize % INCARNATIONS * KINDS + kind) * 8;
            self.0.word(COUNTED + at).store(0, Ordering::Release);
        }
    }

    /// Makes room for what a new process of this side counts.
    pub fn forget_all(&self) {
        (0..INCARNATIONS as u32).for_each(|incarnation| self.forget(incarnation));
    }

    /// Notes that a bucket came, after so long.
    pub fn add_arrival(&self, ns: u64) {
        let place = self.get(Field::Arrived) % TIMES_MAX;
        self.0.word(TIMES + place as usize * 8).store(ns, Ordering::Release);
        self.add(Field::Arrived, 1);
    }

    /// How long the buckets took that came after the first `seen`; all of them, if these are not too many.
    pub fn arrivals_since(&self, seen: u64) -> Vec<u64> {
        let arrived = self.get(Field::Arrived);
        let kept = seen.max(arrived.saturating_sub(TIMES_MAX))..arrived;
        kept.map(|n| self.0.load(TIMES + (n % TIMES_MAX) as usize * 8)).collect()
    }

    /// A flow as it was left.
    pub fn flow(&self, flow: usize) -> Flow {
        let incarnation = self.0.load(FLOWS + flow * 16) as u32;
        Flow { incarnation, next: self.0.load(FLOWS + flow * 16 + 8), joins: false }
    }

    /// Notes a flow.
    pub fn set_flow(&self, flow: usize, state: Flow) {
        self.0.word(FLOWS + flow * 16).store(u64::from(state.incarnation), Ordering::Release);
        self.0.word(FLOWS + flow * 16 + 8).store(state.next, Ordering::Release);
    }

    /// What all processes of this side have found.
    pub fn tally(&self) -> Tally {
        let [lost, reordered, duplicated, corrupted] =
            [Field::Lost, Field::Reordered, Field::Duplicated, Field::Corrupted].map(|field| self.get(field));
        Tally { lost, reordered, duplicated, corrupted, leaked: 0 }
    }

    /// Notes what was found.
    pub fn set_tally(&self, tally: Tally) {
        let Tally { lost, reordered, duplicated, corrupted, .. } = tally;
        self.set(Field::Lost, lost);
        self.set(Field::Reordered, reordered);
        self.set(Field::Duplicated, duplicated);
        self.set(Field::Corrupted, corrupted);
    }
}

/// Now, on the clock that all processes share.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_notes_another_reads() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (one, other) = (Journal::create(file.path()).unwrap(), Journal::open(file.path()).unwrap());
        one.add(Field::Received, 3);
        one.set_accepted(1, 7);
        let flow = Flow { incarnation: 2, next: 65, joins: false };
        one.set_flow(FLOWS_MAX - 1, flow);
        one.set_tally(Tally { lost: 1, corrupted: 2, ..Tally::default() });
        assert_eq!((other.get(Field::Received), other.accepted(1), other.accepted(0)), (3, 7, 0));
        assert_eq!((other.flow(FLOWS_MAX - 1), other.flow(0)), (flow, Flow::default()));
        assert_eq!(other.tally(), Tally { lost: 1, corrupted: 2, ..Tally::default() });
        [5, 9, 7].into_iter().for_each(|ns| one.raise(Field::SilenceNs, ns));
        assert_eq!((other.take(Field::SilenceNs), one.get(Field::SilenceNs)), (9, 0));
    }

    #[test]
    fn times_of_arrivals_are_there_until_there_are_too_many() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let journal = Journal::create(file.path()).unwrap();
        (0..3).for_each(|ns| journal.add_arrival(ns));
        assert_eq!((journal.arrivals_since(0), journal.arrivals_since(2)), (vec![0, 1, 2], vec![2]));
        (3..2 * TIMES_MAX).for_each(|ns| journal.add_arrival(ns));
        assert_eq!(journal.arrivals_since(0), (TIMES_MAX..2 * TIMES_MAX).collect::<Vec<_>>());
        assert_eq!(journal.get(Field::Arrived), 2 * TIMES_MAX);
    }

    #[test]
    fn packets_have_arrived_up_to_the_first_of_them_and_their_number() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let journal = Journal::create(file.path()).unwrap();
        assert_eq!(journal.arrived(1, 0), None);
        [12, 10, 11].into_iter().for_each(|number| journal.count(1, 0, number));
        assert_eq!((journal.arrived(1, 0), journal.arrived(1, 1), journal.arrived(2, 0)), (Some(13), None, None));
        journal.forget(1);
        assert_eq!(journal.arrived(1, 0), None);
    }
}
