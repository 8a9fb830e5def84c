//! Requests of the UPF's own that wait for a response: sent again with the same octets until it comes (TS 29.244, 6.4).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use pfcp::Request;

use super::Datagram;
use super::association::Pace;

/// The requests.
#[derive(Debug)]
pub(super) struct Outbox {
    pace: Pace,
    most: usize,
    /// By sequence number.
    waiting: BTreeMap<u32, Waiting>,
    /// By the time at which they are due again.
    due: BTreeSet<(Instant, u32)>,
    /// By the UPF's SEID of the session.
    about: BTreeSet<(u64, u32)>,
}

#[derive(Debug)]
struct Waiting {
    to: SocketAddr,
    octets: Vec<u8>,
    tries: u32,
    again: Instant,
    /// The UPF's SEID of the session that it is about.
    up_seid: u64,
}

impl Outbox {
    /// At most `most` requests wait at a time.
    pub fn new(pace: Pace, most: usize) -> Self {
        Self { pace, most, waiting: BTreeMap::new(), due: BTreeSet::new(), about: BTreeSet::new() }
    }

    /// Whether no more requests can wait.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= self.most
    }

    /// A request about the session `up_seid`, which its peer at `to` knows as `cp_seid`. `sequence` is the last sequence
    /// number given to any request.
    pub fn send(
        &mut self,
        request: &Request,
        (up_seid, cp_seid): (u64, u64),
        to: SocketAddr,
        sequence: &mut u32,
        now: Instant,
    ) -> Datagram {
        let next = |sequence: u32| (sequence + 1) & 0xff_ffff;
        *sequence = next(*sequence);
        while self.waiting.contains_key(sequence) {
            *sequence = next(*sequence);
        }
        let octets = request.encode(cp_seid, *sequence);
        let again = now + self.pace.t1;
        self.due.insert((again, *sequence));
        self.about.insert((up_seid, *sequence));
        self.waiting.insert(*sequence, Waiting { to, octets: octets.clone(), tries: 1, again, up_seid });
        Datagram { to, octets }
    }

    /// A response with this sequence number came from `from`: the session that it is about.
    pub fn answered(&mut self, from: IpAddr, sequence: u32) -> Option<u64> {
        self.waiting.get(&sequence).filter(|waiting| waiting.to.ip() == from)?;
        self.remove(sequence).map(|waiting| waiting.up_seid)
    }

    /// What is to be sent again at `now`. Requests that were sent often enough are given up.
    pub fn tick(&mut self, now: Instant) -> Vec<Datagram> {
        let mut datagrams = vec![];
        while let Some(&(at, sequence)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, sequence));
            let Some(waiting) = self.waiting.get_mut(&sequence) else { continue };
            if waiting.tries >= self.pace.n1 {
                tracing::warn!("{} does not answer a report about session {:#x}", waiting.to, waiting.up_seid);
                self.remove(sequence);
                continue;
            }
            waiting.tries += 1;
            waiting.again = now + self.pace.t1;
            self.due.insert((waiting.again, sequence));
            datagrams.push(Datagram { to: waiting.to, octets: waiting.octets.clone() });
        }
        datagrams
    }

    /// When [`Outbox::tick`] has something to do.
    pub fn due(&self) -> Option<Instant> {
        self.due.first().map(|&(at, _)| at)
    }

    /// Forgets requests about the session.
    pub fn forget(&mut self, up_seid: u64) {
        while let Some(&(_, sequence)) = self.about.range((up_seid, 0)..=(up_seid, u32::MAX)).next() {
            self.remove(sequence);
        }
    }

    fn remove(&mut self, sequence: u32) -> Option<Waiting> {
        let waiting = self.waiting.remove(&sequence)?;
        self.due.remove(&(waiting.again, sequence));
        self.about.remove(&(waiting.up_seid, sequence));
        Some(waiting)
    }
}
