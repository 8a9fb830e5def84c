//! What a worker keeps of its buckets, and what goes with a bucket that moves: within a process as it is, between processes
//! as bytes.

use std::collections::HashMap;
use std::time::Duration;

use vport::owner::Buckets;
use vport::steering::BUCKETS;

use crate::frames::{self, Stamp};
use crate::journal::now_ns;
use crate::outcome::Times;

/// For every bucket that is a worker's own, the next number of each of its flows.
pub struct Books {
    buckets: Vec<Option<Book>>,
    /// Buckets that came from others.
    pub arrived: u64,
    /// How long those took from hand to hand that came with their state.
    pub handed: Times,
    /// The first packets of flows that began anywhere, for their state had died with its worker, until somebody takes them.
    pub joined: Vec<Stamp>,
    /// Packets without their state, and packets that are not the next of their flow.
    pub wrong: u64,
}

/// What is kept of one bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Book {
    next: HashMap<u16, u64>,
    /// Packets that were entered.
    pub packets: u64,
    /// How often it has changed hands.
    pub hops: u64,
    /// Whether what there was before is lost: a flow that is not known may begin at any number.
    joins: bool,
    /// When it left its worker; 0 if there was none.
    left_ns: u64,
}

impl Book {
    /// Of a bucket whose worker died.
    pub fn after_death() -> Self {
        Self { joins: true, ..Self::default() }
    }

    fn enter(&mut self, flow: u16, number: u64) -> bool {
        self.packets += 1;
        let begins = if self.joins { number } else { 0 };
        let expected = self.next.insert(flow, number + 1).unwrap_or(begins);
        number == expected
    }

    /// As words: what goes between processes.
    pub fn to_words(&self) -> Vec<u64> {
        let flows = self.next.iter().flat_map(|(flow, next)| [u64::from(*flow), *next]);
        [self.packets, self.hops, u64::from(self.joins), self.left_ns].into_iter().chain(flows).collect()
    }

    /// The opposite; nothing is a bucket whose worker died.
    pub fn from_words(words: &[u64]) -> Self {
        let [packets, hops, joins, left_ns, flows @ ..] = words else { return Self::after_death() };
        let next = flows.as_chunks().0.iter().map(|[flow, next]| (*flow as u16, *next)).collect();
        Self { next, packets: *packets, hops: *hops, joins: *joins != 0, left_ns: *left_ns }
    }
}

impl Books {
    /// With a book for each bucket that is the worker's own.
    pub fn new(book: impl Fn(u8) -> Option<Book>) -> Self {
        Self {
            buckets: (0..BUCKETS as u8).map(book).collect(),
            arrived: 0,
            handed: Times::default(),
            joined: Vec::new(),
            wrong: 0,
        }
    }

    /// Notes a packet, which must be the next of its flow. Returns what it carries.
    pub fn enter(&mut self, head: &[u8]) -> Stamp {
        let Some(stamp) = frames::stamp(head) else {
            self.wrong += 1;
            return Stamp::default();
        };
        let book = &mut self.buckets[usize::from(frames::bucket_of_head(head))];
        let joins = book.as_ref().is_some_and(|book| book.joins && !book.next.contains_key(&stamp.flow));
        self.joined.extend(joins.then_some(stamp));
        let fits = book.as_mut().is_some_and(|book| book.enter(stamp.flow, stamp.number));
        self.wrong += u64::from(!fits);
        stamp
    }

    /// Those that are here, with their buckets.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Book)> {
        self.buckets.iter().enumerate().filter_map(|(bucket, book)| Some((bucket, book.as_ref()?)))
    }
}

impl Buckets for Books {
    type State = Book;

    fn leave(&mut self, bucket: u8, _to: usize) -> Book {
        let book = self.buckets[usize::from(bucket)].take().expect("a bucket leaves once");
        Book { left_ns: now_ns(), ..book }
    }

    fn arrive(&mut self, bucket: u8, _from: usize, state: Book) {
        self.arrived += 1;
        if state.left_ns > 0 {
            self.handed.add(Duration::from_nanos(now_ns().saturating_sub(state.left_ns)));
        }
        let before = self.buckets[usize::from(bucket)].replace(Book { hops: state.hops + 1, ..state });
        assert!(before.is_none(), "a bucket arrives where it is not");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_book_is_the_same_behind_the_words() {
        let mut book = Book { hops: 3, ..Book::default() };
        assert!((0..5).all(|number| book.enter(7, number)) && book.enter(9, 0));
        assert_eq!(Book::from_words(&book.to_words()), book);
        assert_eq!((book.packets, book.enter(7, 6)), (6, false));
    }

    #[test]
    fn after_a_death_a_flow_begins_anywhere_and_then_goes_on() {
        let mut book = Book::from_words(&[]);
        assert!(book.enter(7, 40) && book.enter(7, 41) && !book.enter(7, 43));
        assert!(!Book::default().enter(7, 1), "where nobody died it begins at its beginning");
    }
}
