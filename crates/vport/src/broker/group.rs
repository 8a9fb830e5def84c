//! A trust group's arena as the broker sees it: the stock of free buffers, and ids for the ends of generations. The broker
//! reads and writes the holder table alone; it never maps the buffers.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use super::link::Lease;
use crate::arena::{Arena, BUFFER_BYTES, BUFFERS_MAX, HolderId, View, segment_bytes};
use crate::mapping::Mapping;
use crate::segment::{HUGE_PAGE, Segment, SegmentError};

/// Nobody: the broker's stock.
const FREE: HolderId = 0;
/// Buffers are added so many at a time: whole huge pages of them.
const GROW_BY: u32 = 2_048;

/// The arena of one trust group.
pub(super) struct Group {
    pub(super) frames: Segment,
    pub(super) holders: Segment,
    table: View,
    free: BTreeSet<u32>,
    /// Buffers that are there.
    present: u32,
    pub(super) huge: bool,
    /// First of the two ids of each generation that lives.
    living: BTreeSet<HolderId>,
    next: HolderId,
    /// Ids under which a former broker gave buffers out, and which are no adopted generation's.
    orphans: BTreeSet<HolderId>,
    pub(super) adopted: Option<Instant>,
    /// By name, links that are no more and of which somebody may have buffers. Another one of the name goes on with that.
    pub(super) removed: BTreeMap<String, Removed>,
}

/// A link that was removed.
pub(super) struct Removed {
    /// Its last one.
    pub(super) generation: u64,
    pub(super) leases: Vec<Lease>,
    /// Who was at its ends. Nobody: it is not known who has what.
    pub(super) processes: [Vec<i32>; 2],
}

impl Removed {
    /// Takes out the leases that nobody living uses.
    fn ended_leases(&mut self) -> Vec<Lease> {
        for (end, processes) in self.processes.iter().enumerate() {
            if !processes.is_empty() && !processes.iter().any(|pid| is_alive(*pid)) {
                self.leases.iter_mut().for_each(|lease| lease.used[end] = false);
            }
        }
        self.leases.extract_if(.., |lease| lease.used == [false; 2]).collect()
    }
}

/// Whether there may be such a process: one that cannot be seen may be.
fn is_alive(pid: i32) -> bool {
    let gone = |pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH);
    !rustix::process::Pid::from_raw(pid).is_some_and(gone)
}

impl Group {
    /// An arena without buffers; they come as they are asked for. In huge pages, if these are asked for and to be had; if
    /// not, the second value says why.
    pub(super) fn create(name: &str, huge: bool) -> Result<(Self, Option<String>), SegmentError> {
        if huge {
            match Self::of_pages(true) {
                Ok(group) => return Ok((group, None)),
                Err(error) => {
                    let reason = format!("no free huge pages for the arena of {name}: {error}");
                    return Ok((Self::of_pages(false)?, Some(reason)));
                }
            }
        }
        Ok((Self::of_pages(false)?, None))
    }

    fn of_pages(huge: bool) -> Result<Self, SegmentError> {
        let (frames_bytes, holders_bytes) = segment_bytes(BUFFERS_MAX);
        let frames = Segment::create_shared("kaista-arena", frames_bytes, huge)?;
        let holders = Segment::create_shared("kaista-holders", holders_bytes, false)?;
        holders.allocate(0, holders_bytes)?;
        let mut group = Self::new(frames, holders, huge)?;
        group.grow()?;
        Ok(group)
    }

    fn new(frames: Segment, holders: Segment, huge: bool) -> Result<Self, SegmentError> {
        let mapping = Mapping::writable(holders.as_fd(), holders.len())?;
        let table = Arc::new(Arena::of_holders(mapping, BUFFERS_MAX));
        Ok(Self {
            frames,
            holders,
            table: table.view(table.clone()),
            free: BTreeSet::new(),
            present: 0,
            huge,
            living: BTreeSet::new(),
            next: 2,
            orphans: BTreeSet::new(),
            adopted: None,
            removed: BTreeMap::new(),
        })
    }

    /// Takes over an arena of a former broker. What its holder table says is free is free; everything else waits until
    /// its generation is claimed or nobody uses it.
    pub(super) fn adopt(frames: OwnedFd, holders: OwnedFd, now: Instant) -> Result<Self, SegmentError> {
        const BLOCK: usize = 512;
        let (frames_bytes, holders_bytes) = segment_bytes(BUFFERS_MAX);
        let stat = rustix::fs::fstat(&frames)?;
        let (huge, allocated) = (stat.st_blksize as usize == HUGE_PAGE, stat.st_blocks as usize * BLOCK);
        let frames = Segment::adopt_shared(frames, frames_bytes)?;
        let mut group = Self::new(frames, Segment::adopt_shared(holders, holders_bytes)?, huge)?;
        while group.present < BUFFERS_MAX && bytes_of(group.present + GROW_BY) <= allocated {
            group.present += GROW_BY;
        }
        for buffer in 0..group.present {
            match group.table.buffers().holder(buffer) {
                FREE => drop(group.free.insert(buffer)),
                id => drop(group.orphans.insert(id & !1)),
            }
        }
        group.next = group.orphans.last().map_or(2, |last| last.wrapping_add(2)).max(2);
        group.adopted = Some(now);
        Ok(group)
    }

    /// Whether `frames` is this arena.
    pub(super) fn is(&self, frames: &OwnedFd) -> bool {
        let identity = |fd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
        match (identity(self.frames.as_fd()), identity(frames.as_fd())) {
            (Ok(own), Ok(other)) => own == other,
            _ => false,
        }
    }

    /// Buffers that the arena can have, that are there, and that are free.
    pub(super) fn counts(&self) -> (u32, u32, u32) {
        (BUFFERS_MAX, self.present, self.free.len() as u32)
    }

    /// Two ids for the ends of a generation. None while all are given out.
    pub(super) fn new_ids(&mut self) -> Option<HolderId> {
        for _ in 0..=HolderId::MAX / 2 {
            let ids = self.next;
            self.next = self.next.checked_add(2).unwrap_or(2);
            if !self.orphans.contains(&ids) && self.living.insert(ids) {
                return Some(ids);
            }
        }
        None
    }

    /// A generation of a former broker goes on. False if its ids are not in use, or claimed already.
    pub(super) fn claim(&mut self, ids: HolderId) -> bool {
        self.orphans.remove(&ids) && self.living.insert(ids)
    }

    /// Gives `count` free buffers to `holder`.
    pub(super) fn give(&mut self, count: usize, holder: HolderId) -> Result<Vec<u32>, SegmentError> {
        while self.free.len() < count {
            self.grow()?;
        }
        let given: Vec<u32> = self.free.iter().copied().take(count).collect();
        for buffer in &given {
            self.free.remove(buffer);
            self.table.buffers().set_holder(*buffer, holder);
        }
        Ok(given)
    }

    /// Takes all buffers of a generation back, whichever end has them.
    pub(super) fn reclaim(&mut self, ids: HolderId) {
        if self.living.remove(&ids) {
            self.free_all(|id| id & !1 == ids);
        }
    }

    /// Takes back what was given out on links that were removed and is used by nobody.
    pub(super) fn reclaim_removed(&mut self) {
        let ended: Vec<Lease> = self.removed.values_mut().flat_map(Removed::ended_leases).collect();
        ended.into_iter().for_each(|lease| self.reclaim(lease.ids));
        self.removed.retain(|_, removed| !removed.leases.is_empty());
    }

    /// Takes back what was given out by a former broker and is used by nobody.
    pub(super) fn reclaim_orphans(&mut self) {
        let orphans = std::mem::take(&mut self.orphans);
        self.free_all(|id| orphans.contains(&(id & !1)));
    }

    pub(super) fn has_orphans(&self) -> bool {
        !self.orphans.is_empty()
    }

    /// A member could write anything to the table: a buffer that is in the stock is not put there again.
    fn free_all(&mut self, which: impl Fn(HolderId) -> bool) {
        for buffer in 0..self.present {
            let id = self.table.buffers().holder(buffer);
            if id != FREE && which(id) {
                self.table.buffers().set_holder(buffer, FREE);
                self.free.insert(buffer);
            }
        }
    }

    fn grow(&mut self) -> Result<(), SegmentError> {
        let more = GROW_BY.min(BUFFERS_MAX - self.present);
        if more == 0 {
            return Err(SegmentError::Io(std::io::Error::other("the arena of the trust group is full")));
        }
        let (from, to) = (bytes_of(self.present), bytes_of(self.present + more));
        self.frames.allocate(from, to - from)?;
        (self.present..self.present + more).for_each(|buffer| self.table.buffers().set_holder(buffer, FREE));
        self.free.extend(self.present..self.present + more);
        self.present += more;
        Ok(())
    }
}

/// Bytes of an arena with so many buffers.
fn bytes_of(buffers: u32) -> usize {
    (buffers as usize * BUFFER_BYTES).next_multiple_of(HUGE_PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group() -> Group {
        Group::create("test", false).unwrap().0
    }

    #[test]
    fn buffers_are_given_once_and_come_back_by_their_holder() {
        let mut group = group();
        let [a, b] = [group.new_ids().unwrap(), group.new_ids().unwrap()];
        let first = group.give(GROW_BY as usize, a).unwrap();
        let second = group.give(100, b + 1).unwrap();
        assert!(first.iter().all(|buffer| !second.contains(buffer)));
        assert_eq!(group.counts(), (BUFFERS_MAX, 2 * GROW_BY, GROW_BY - 100));
        // On the way buffers change hands.
        group.table.buffers().set_holder(first[0], b);
        group.table.buffers().set_holder(second[0], a + 1);
        group.reclaim(a);
        assert_eq!(group.counts().2, 2 * GROW_BY - 100);
        assert!(!group.free.contains(&first[0]) && group.free.contains(&second[0]));
        group.reclaim(b);
        assert_eq!(group.counts().2, 2 * GROW_BY);
    }

    #[test]
    fn an_arena_that_is_used_up_says_so() {
        let mut group = group();
        let id = group.new_ids().unwrap();
        group.present = BUFFERS_MAX;
        assert!(group.give(GROW_BY as usize + 1, id).unwrap_err().to_string().contains("full"));
    }

    #[test]
    fn a_table_that_a_member_scribbled_over_frees_no_buffer_twice() {
        let mut group = group();
        let ids = group.new_ids().unwrap();
        let given = group.give(10, ids).unwrap();
        (0..GROW_BY).for_each(|buffer| group.table.buffers().set_holder(buffer, ids));
        group.reclaim(ids);
        assert_eq!(group.counts().2, GROW_BY);
        let again = group.give(GROW_BY as usize, 9).unwrap();
        assert!(again.windows(2).all(|pair| pair[0] < pair[1]) && again.contains(&given[0]));
    }

    #[test]
    fn what_the_dead_had_on_a_link_that_was_removed_comes_back() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let (dead, own) = (child.id() as i32, std::process::id() as i32);
        child.wait().unwrap();
        // Nobody was at an end: somebody may be who was away.
        for (processes, comes_back) in [
            ([vec![dead], vec![dead, dead]], true),
            ([vec![dead], vec![dead, own]], false),
            ([vec![dead], vec![0]], false),
            ([vec![dead], vec![]], false),
        ] {
            let mut group = group();
            let ids = group.new_ids().unwrap();
            group.give(10, ids).unwrap();
            let lease = Lease { generation: 3, ids, used: [true; 2] };
            group.removed.insert("link".into(), Removed { generation: 3, leases: vec![lease], processes });
            group.reclaim_removed();
            assert_eq!((group.counts().2 == GROW_BY, group.removed.is_empty()), (comes_back, comes_back));
        }
    }

    #[test]
    fn an_adopted_arena_knows_what_is_free_and_gives_no_id_twice() {
        let mut before = group();
        let [a, b] = [before.new_ids().unwrap(), before.new_ids().unwrap()];
        before.give(10, a).unwrap();
        before.give(20, b + 1).unwrap();
        let [frames, holders] = [&before.frames, &before.holders].map(|segment| segment.try_clone().unwrap());
        let mut group = Group::adopt(frames, holders, Instant::now()).unwrap();
        assert!(group.is(&before.frames.try_clone().unwrap()) && !group.is(&before.holders.try_clone().unwrap()));
        assert_eq!(group.counts().2, GROW_BY - 30);
        assert!(group.claim(b) && !group.claim(b) && !group.claim(b + 2));
        let next = group.new_ids().unwrap();
        assert!(next != a && next != b);
        group.reclaim_orphans();
        assert_eq!(group.counts().2, GROW_BY - 20);
        group.reclaim(b);
        assert_eq!(group.counts().2, GROW_BY);
    }
}
