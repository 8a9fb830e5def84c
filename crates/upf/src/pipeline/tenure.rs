//! What the dispatcher holds of a port: packets that workers take from where they lie, until they have dealt with them.

use port::RxQueue;
use port::relay::RelayTx;

/// Every how many rounds it looks how far the workers are: each look takes a line away from a worker that writes it.
const LOOK_EVERY: u32 = 16;

/// Of one queue.
pub(super) struct Tenure {
    /// Position behind what was received last, where that was not given back.
    end: Option<u64>,
    /// Where the workers have to come to before what lies before a position can be given back.
    due: Option<u64>,
    /// Of each worker's ring.
    marks: Vec<u64>,
    rounds: u32,
}

impl Tenure {
    pub(super) fn new(workers: usize) -> Self {
        Self { end: None, due: None, marks: vec![0; workers], rounds: 0 }
    }

    /// What lies before this position is held.
    #[inline]
    pub(super) fn received(&mut self, end: u64) {
        self.end = Some(end);
    }

    /// Whether anything is held.
    pub(super) fn is_holding(&self) -> bool {
        self.end.is_some()
    }

    /// Once in several rounds, gives back what workers have dealt with, which get what is held by these rings.
    #[inline]
    pub(super) fn look(&mut self, queue: &mut dyn RxQueue, rings: &[RelayTx]) {
        self.rounds = self.rounds.wrapping_add(1);
        if self.is_holding() && self.rounds.is_multiple_of(LOOK_EVERY) {
            self.look_at_workers(queue, rings);
        }
    }

    #[inline(never)]
    fn look_at_workers(&mut self, queue: &mut dyn RxQueue, rings: &[RelayTx]) {
        let are_done = || rings.iter().zip(&self.marks).all(|(ring, mark)| ring.is_done(*mark));
        if let Some(position) = self.due
            && are_done()
        {
            queue.give_back(position);
            self.due = None;
            self.end = self.end.filter(|end| *end != position);
        }
        if self.due.is_none() && self.end.is_some() {
            self.marks.iter_mut().zip(rings).for_each(|(mark, ring)| *mark = ring.position());
            self.due = self.end;
        }
    }
}
