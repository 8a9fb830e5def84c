//! A member of a pool: passes on what comes, and keeps books of its buckets, which go to other members and come from them.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use vport::client::{Attachment, attach};
use vport::owner::Buckets;
use vport::packet::PacketRef;
use vport::pool::{JoinError, Member, join};
use vport::{RxRing, TxRing};

use crate::books::{Book, Books};
use crate::frames::Stamp;
use crate::journal::{Field, Journal};
use crate::ledger::Ledger;
use crate::load::send_all;
use crate::process::{die_with_parent, nap, sleep};
use crate::rig::PATIENCE;

/// What [`Field::Finish`] asks for: the sums of all books.
pub const SUM_UP: u64 = 1;
/// What it asks for: the end.
pub const END: u64 = 2;

/// Which process this is.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The function's socket.
    #[arg(long)]
    pub socket: PathBuf,
    /// The journal of all processes of this function.
    #[arg(long)]
    pub journal: PathBuf,
    /// The ledger of all members.
    #[arg(long)]
    pub ledger: PathBuf,
}

/// Takes its place in the pool, and goes on until it is told to end.
pub fn run(options: &Options) -> Result<()> {
    die_with_parent();
    let journal = &Journal::open(&options.journal)?;
    let ledger = &Ledger::open(&options.ledger)?;
    let ([mut incoming, mut outgoing], members) = take_place(&options.socket)?;
    let mut workers: Vec<Worker<'_>> = members.into_iter().map(|member| Worker::new(member, journal, ledger)).collect();
    let invalid = journal.get(Field::Invalid);
    loop {
        let mut busy = false;
        for ((worker, into), out) in workers.iter_mut().zip(&mut incoming.queues).zip(&mut outgoing.queues) {
            busy |= worker.turn(into, out);
        }
        let all = || incoming.queues.iter().chain(&outgoing.queues);
        journal.set(Field::Invalid, invalid + all().map(|(rx, _)| rx.counters().invalid).sum::<u64>());
        journal.set(Field::Owned, workers.iter().map(|worker| worker.books.iter().count() as u64).sum());
        match journal.get(Field::Finish) {
            END => return Ok(()),
            SUM_UP if journal.get(Field::Finished) == 0 => sum_up(&workers, journal),
            _ => {}
        }
        if !busy {
            sleep(incoming.queues.iter_mut().chain(&mut outgoing.queues).map(|(rx, _)| rx));
        }
    }
}

/// Opens both ports and joins the pool; again, where the pool was changed in between.
fn take_place(socket: &Path) -> Result<([Attachment; 2], Vec<Member>)> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let ports = [attach(socket, "in", PATIENCE, 192)?, attach(socket, "out", PATIENCE, 192)?];
        match join(socket, &ports.each_ref().map(|port| port.steering.clone()), &[], PATIENCE) {
            Ok(members) => return Ok((ports, members)),
            Err(JoinError::Changed) if Instant::now() < give_up => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn sum_up(workers: &[Worker<'_>], journal: &Journal) {
    let sum = |of: fn(&Book) -> u64| {
        workers.iter().flat_map(|worker| worker.books.iter()).map(|(_, book)| of(book)).fold(0, u64::wrapping_add)
    };
    journal.set(Field::Entered, sum(|book| book.packets));
    journal.set(Field::Hops, sum(|book| book.hops));
    journal.set(Field::Finished, 1);
}

/// Who works on one queue of both ports.
struct Worker<'a> {
    member: Member,
    books: Books,
    journal: &'a Journal,
    ledger: &'a Ledger,
}

impl<'a> Worker<'a> {
    /// Who comes has no book of the buckets that are its own: there was nobody, or somebody who died.
    fn new(member: Member, journal: &'a Journal, ledger: &'a Ledger) -> Self {
        let books = Books::new(|bucket| member.owns(bucket).then(Book::after_death));
        Self { member, books, journal, ledger }
    }

    /// One round; whether there was something to do.
    fn turn(&mut self, (rx, back): &mut (RxRing, TxRing), (forth, tx): &mut (RxRing, TxRing)) -> bool {
        let wrong = self.books.wrong;
        let passed = self.pass_on(rx, tx);
        self.journal.add(Field::Received, passed);
        self.journal.add(Field::Reordered, self.books.wrong - wrong);
        // Nothing comes that way; what is of generations that are over is let go.
        forth.recv();
        back.send(&[]);
        self.member.settle(&mut Handed { books: &mut self.books, journal: self.journal }) || passed > 0
    }

    fn pass_on(&mut self, rx: &mut RxRing, tx: &mut TxRing) -> u64 {
        let burst = rx.recv();
        let packets: Vec<PacketRef<'_>> = (0..burst.len()).map(|i| burst.get(i)).collect();
        let stamps: Vec<Stamp> = packets.iter().map(|packet| self.books.enter(packet.head)).collect();
        self.books.joined.drain(..).for_each(|first| self.ledger.set_begun(first.flow, first.number));
        let mut noted = 0;
        send_all(tx, &packets, nap, |sent| {
            stamps[noted..sent].iter().for_each(|stamp| self.ledger.set_sent(stamp.flow, stamp.number + 1));
            noted = sent;
            true
        });
        packets.len() as u64
    }
}

/// Books that go between processes, as bytes.
struct Handed<'a> {
    books: &'a mut Books,
    journal: &'a Journal,
}

impl Buckets for Handed<'_> {
    type State = Vec<u8>;

    fn leave(&mut self, bucket: u8, to: usize) -> Vec<u8> {
        self.books.leave(bucket, to).to_words().into_iter().flat_map(u64::to_le_bytes).collect()
    }

    fn arrive(&mut self, bucket: u8, from: usize, state: Vec<u8>) {
        let words: Vec<u64> = state.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let before = self.books.handed.len();
        self.books.arrive(bucket, from, Book::from_words(&words));
        if let Some(time) = self.books.handed.last().filter(|_| self.books.handed.len() > before) {
            self.journal.add_arrival(time.as_nanos() as u64);
        }
    }
}
