//! Who sits at a link: each end has one seat, or as many as a pool can have members.

use crate::allowance::Allowance;

/// A place at a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seat {
    pub(super) end: usize,
    /// Of a pool, which member; 0 elsewhere.
    pub(super) member: usize,
}

impl Seat {
    /// The end across the link.
    pub(super) fn across(self) -> usize {
        1 - self.end
    }
}

/// How often a seat may be taken a second, on average and at once: a process that ends and is started again whenever it can be
/// takes longer.
const OPENINGS: (u32, u32) = (50, 200);

/// What is known of whoever sits in one seat.
#[derive(Debug)]
pub(super) struct Party {
    /// The client that holds it.
    pub(super) client: Option<u64>,
    /// One that is to take it over.
    pub(super) heir: Option<Heir>,
    /// The client that had it before, which still works off what it has of an earlier generation.
    pub(super) leaving: Option<Leaving>,
    /// A process may be there that had it under a former broker: nobody has come yet.
    pub(super) awaited: bool,
    /// Another process came instead: that one is dead.
    pub(super) succeeded: bool,
    /// The newest generation whose process is known to be dead, and with it those of all before.
    pub(super) dead_until: u64,
    pub(super) report: Vec<(String, u64)>,
    /// How often it may be taken.
    pub(super) openings: Allowance,
    /// Generations from before its connection, and of no lease, that it still uses; None where it has not said.
    pub(super) earlier: Option<Vec<u64>>,
}

/// A client that is to take a seat over from the one that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heir {
    pub(super) client: u64,
    /// It is ready to.
    pub(super) is_ready: bool,
}

/// A client that has handed its seat over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaving {
    pub(super) client: u64,
    /// The last generation that it has.
    pub(super) generation: u64,
}

impl Party {
    pub(super) fn new() -> Self {
        Self {
            client: None,
            heir: None,
            leaving: None,
            awaited: true,
            succeeded: false,
            dead_until: 0,
            report: Vec::new(),
            openings: Allowance::new(OPENINGS.0, OPENINGS.1),
            earlier: None,
        }
    }

    /// Its heir has it from now on. Whoever had it, and has `former` as its last generation, works that off.
    pub(super) fn pass_on(&mut self, former: u64) {
        let Some(heir) = self.heir.take() else { return };
        let leaving = self.client.replace(heir.client);
        self.leaving = leaving.map(|client| Leaving { client, generation: former });
    }
}
