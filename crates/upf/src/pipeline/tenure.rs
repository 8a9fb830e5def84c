//! What the dispatcher holds of a port: packets that workers take from where they lie, until they have dealt with them.

use port::RxQueue;
use port::relay::RelayTx;

/// Every how many rounds it looks how far the workers are: each look takes a line away from a worker that writes it.
const LOOK_EVERY: u32 = 16;
/// So many bytes are much of a port's ring: its peer may need the room. Positions are bytes there.
const MUCH: u64 = 128 << 10;

/// Of one queue.
pub(super) struct Tenure {
    /// Position behind what was received last, where that was not given back.
    end: Option<u64>,
    /// Where the workers have to come to before what lies before a position can be given back.
    due: Option<u64>,
    /// Of each worker's ring.
    marks: Vec<u64>,
    rounds: u32,
    /// Position behind what was given back last.
    given_back: u64,
}

impl Tenure {
    pub(super) fn new(workers: usize) -> Self {
        Self { end: None, due: None, marks: Vec::with_capacity(workers), rounds: 0, given_back: 0 }
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

    /// Once in several rounds, or where much is held, gives back what workers have dealt with, which get what is held by these rings.
    #[inline]
    pub(super) fn look(&mut self, queue: &mut dyn RxQueue, rings: &mut [RelayTx]) {
        self.rounds = self.rounds.wrapping_add(1);
        let Some(end) = self.end else { return };
        if self.rounds.is_multiple_of(LOOK_EVERY) || end.wrapping_sub(self.given_back) > MUCH {
            self.look_at_workers(queue, rings);
        }
    }

    #[inline(never)]
    fn look_at_workers(&mut self, queue: &mut dyn RxQueue, rings: &mut [RelayTx]) {
        let are_done = || rings.iter().zip(&self.marks).all(|(ring, mark)| ring.is_done(*mark));
        if let Some(position) = self.due
            && are_done()
        {
            queue.give_back(position);
            (self.given_back, self.due) = (position, None);
            self.end = self.end.filter(|end| *end != position);
            if self.end.is_none() {
                rings.iter_mut().for_each(RelayTx::let_go);
            }
        }
        if self.due.is_none() && self.end.is_some() {
            self.marks.clear();
            self.marks.extend(rings.iter().map(RelayTx::position));
            self.due = self.end;
        }
    }
}

#[cfg(test)]
mod tests {
    use port::Steering;
    use port::relay::{RelayRx, relay};
    use port::synthetic::Synthetic;

    use super::*;

    /// A queue with frames, and the ring to a worker.
    fn rig() -> (Box<dyn RxQueue>, RelayTx, RelayRx) {
        let queue = Synthetic::new(vec![vec![1; 100]; 64]).open().queues.remove(0).rx;
        let (tx, rx) = relay(64 << 10, 64).expect("memory");
        (queue, tx, rx)
    }

    /// A round that brings a burst, which goes to the worker.
    fn busy(tenure: &mut Tenure, queue: &mut Box<dyn RxQueue>, tx: &mut RelayTx) {
        let held = queue.recv_held(Steering::None).expect("packets are held");
        assert!(tx.send_held(&held) > 0);
        tenure.received(held.end());
        tenure.look(&mut **queue, std::slice::from_mut(tx));
    }

    /// Rounds that bring nothing until nothing is held.
    fn idle(tenure: &mut Tenure, queue: &mut Box<dyn RxQueue>, tx: &mut RelayTx) -> u32 {
        let rounds = (0..10_000).take_while(|_| {
            tenure.look(&mut **queue, std::slice::from_mut(tx));
            tenure.is_holding()
        });
        rounds.count() as u32
    }

    #[test]
    fn what_a_worker_has_dealt_with_is_given_back_though_nothing_more_comes() {
        let ((mut queue, mut tx, mut rx), mut tenure) = (rig(), Tenure::new(1));
        busy(&mut tenure, &mut queue, &mut tx);
        assert_eq!(idle(&mut tenure, &mut queue, &mut tx), 10_000, "the worker has not seen it");
        assert_ne!(rx.recv().len(), 0);
        assert_eq!(rx.recv().len(), 0);
        let took = idle(&mut tenure, &mut queue, &mut tx);
        assert!(took <= 2 * LOOK_EVERY, "{took} rounds");
    }

    #[test]
    fn what_a_worker_has_dealt_with_is_given_back_while_more_comes() {
        let ((mut queue, mut tx, mut rx), mut tenure) = (rig(), Tenure::new(1));
        for _ in 0..10 * LOOK_EVERY {
            busy(&mut tenure, &mut queue, &mut tx);
            while !rx.recv().is_empty() {}
        }
        assert_ne!(tenure.given_back, 0);
    }
}
