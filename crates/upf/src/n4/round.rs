//! A look at all sessions, some at a time.

use crate::seids::BySeid;

/// The sessions that are still to be looked at.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// The UPF's SEID from which on it are all.
    next: Option<u64>,
    /// Whether another round is to follow this one.
    again: bool,
}

impl Round {
    /// Every session is to be looked at from now on, also those that this round has passed.
    pub fn begin(&mut self) {
        self.again |= self.next.is_some_and(|next| next > 0);
        self.next.get_or_insert(0);
    }

    /// The next ones, `most` at most.
    pub fn take<V>(&mut self, sessions: &BySeid<V>, most: usize) -> Vec<u64> {
        let Some(first) = self.next else { return vec![] };
        let seids: Vec<_> = sessions.from(first).map(|(up_seid, _)| up_seid).take(most).collect();
        let has_more = seids.last().filter(|_| seids.len() == most).map(|last| last + 1);
        self.next = has_more.or_else(|| std::mem::take(&mut self.again).then_some(0));
        seids
    }

    /// When [`Round::take`] has some.
    pub fn due_ns(&self) -> Option<u64> {
        self.next.map(|_| 0)
    }
}
