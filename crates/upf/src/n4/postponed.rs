//! Sessions of which something is to be reported that cannot be sent yet, since too much is not answered.

use std::collections::{BTreeSet, VecDeque};

/// How long each waits before it is looked at again.
const POSTPONED_NS: u64 = 1_000_000_000;

/// The sessions, by the UPF's SEID.
#[derive(Debug, Default)]
pub(super) struct Postponed {
    /// When each is looked at again, in that order.
    queue: VecDeque<(u64, u64)>,
    /// Those in the queue.
    all: BTreeSet<u64>,
}

impl Postponed {
    /// The session waits from now on, unless it does already.
    pub fn add(&mut self, up_seid: u64, now_ns: u64) {
        if self.all.insert(up_seid) {
            self.queue.push_back((now_ns + POSTPONED_NS, up_seid));
        }
    }

    /// The next one that has waited long enough. It may have ended meanwhile.
    pub fn take(&mut self, now_ns: u64) -> Option<u64> {
        let &(_, up_seid) = self.queue.front().filter(|(at_ns, _)| *at_ns <= now_ns)?;
        self.queue.pop_front();
        self.all.remove(&up_seid);
        Some(up_seid)
    }

    /// When [`Postponed::take`] has one.
    pub fn due_ns(&self) -> Option<u64> {
        self.queue.front().map(|&(at_ns, _)| at_ns)
    }
}
