//! The generations of one receiving queue: the newest, and earlier ones until everything that was sent in them is taken.
//!
//! From each queue of the peer, records are taken in the order in which they were sent: those of a generation once the
//! channel of the one before has *ended*. A sender marks a channel as closed before it sends in the next generation. So a
//! channel has ended when it is closed, its sender is dead, or has sent in a later generation, and all its records are
//! taken. No clock is asked: one that was put aside in a burst loses nothing.
//!
//! Of more generations than [`GENERATIONS_MAX`] the oldest are given up, empty ones first. While there are so many with
//! records in them, no further one begins (see `client`).

use crate::handover::GENERATIONS_MAX;
use crate::info::QUEUES_MAX;
use crate::rx::RxHalf;

#[derive(Debug, Default)]
pub(crate) struct Generations {
    pub(crate) newest: Option<RxHalf>,
    /// Oldest first.
    older: Vec<RxHalf>,
}

impl Generations {
    /// Whether only the newest is left.
    #[inline(always)]
    pub(crate) fn is_single(&self) -> bool {
        self.older.is_empty()
    }

    /// The newest, where no other is left.
    #[inline(always)]
    pub(crate) fn only(&mut self) -> Option<&mut RxHalf> {
        if self.is_single() { self.newest.as_mut() } else { None }
    }

    /// How many hold records that were not taken, beside the newest.
    pub(crate) fn unread(&self) -> usize {
        self.older.iter().filter(|half| half.has_more()).count()
    }

    /// In the order in which they are read.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &RxHalf> {
        self.older.iter().chain(&self.newest)
    }

    /// In the order in which they are read.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut RxHalf> {
        self.older.iter_mut().chain(&mut self.newest)
    }

    /// Takes a new generation over.
    pub(crate) fn begin(&mut self, next: RxHalf) {
        self.older.extend(self.newest.replace(next));
    }

    /// Lets each channel have its turn when those before it have ended, and gives generations of which nothing is to come
    /// to `retire`. Slots that were taken must be free.
    pub(crate) fn advance(&mut self, mut retire: impl FnMut(RxHalf)) {
        let mut begun = [false; QUEUES_MAX];
        for half in self.older.iter_mut().chain(&mut self.newest).rev() {
            for (from, (channel, begun)) in half.channels.iter_mut().zip(&mut begun).enumerate() {
                let dead = half.generation.is_dead(from);
                // What was sent before the last word may have come after the last look, so the head is looked at behind it.
                let last_word = dead || *begun || channel.is_closed();
                channel.ended = last_word && channel.is_at_end();
                *begun |= channel.has_begun();
            }
        }
        let mut turn = [true; QUEUES_MAX];
        for half in self.older.iter_mut().chain(&mut self.newest) {
            for (channel, turn) in half.channels.iter_mut().zip(&mut turn) {
                channel.turn = *turn;
                *turn &= channel.ended;
            }
        }
        let ended = |half: &mut RxHalf| half.channels.iter().all(|channel| channel.ended);
        self.older.extract_if(.., ended).for_each(&mut retire);
        while self.older.len() > GENERATIONS_MAX {
            let empty = self.older.iter().position(|half| !half.has_more());
            retire(self.older.remove(empty.unwrap_or(0)));
        }
    }
}
