//! Paths to the GTP-U nodes that tunnels lead to: asked now and then whether they are alive (TS 29.281, 7.2.1, TS 23.007,
//! 20.3.1).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How paths are supervised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathTerms {
    /// Time between two echo requests to a peer that answers; zero if paths are not supervised.
    pub period: Duration,
    /// How long to wait for a response before the request is sent again (T3-RESPONSE).
    pub t3: Duration,
    /// How often a request is sent in all before the path counts as failed (N3-REQUESTS).
    pub n3: u32,
}

/// An echo request to send, or one that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo {
    /// The other GTP-U node.
    pub peer: IpAddr,
    /// Sequence number.
    pub sequence: u16,
}

/// All paths.
#[derive(Debug)]
pub(super) struct Paths {
    terms: PathTerms,
    peers: BTreeMap<IpAddr, Path>,
    /// When each is to be asked.
    due: BTreeSet<(Instant, IpAddr)>,
    /// Those that nobody has asked yet.
    fresh: Vec<IpAddr>,
    sequence: u16,
}

#[derive(Debug, Default)]
struct Path {
    due: Option<Instant>,
    /// Sequence number of the request that is not answered, and how often it was sent.
    asked: Option<(u16, u32)>,
    failed: bool,
}

impl Paths {
    pub fn new(terms: PathTerms) -> Self {
        Self { terms, peers: BTreeMap::new(), due: BTreeSet::new(), fresh: vec![], sequence: 0 }
    }

    /// A tunnel leads to `peer`.
    pub fn want(&mut self, peer: IpAddr) {
        if !self.terms.period.is_zero() && !self.peers.contains_key(&peer) {
            self.peers.insert(peer, Path::default());
            self.fresh.push(peer);
        }
    }

    /// What is to be sent at `now`, and peers that have failed. Of peers that are not `used` any more nobody asks.
    pub fn tick(&mut self, now: Instant, is_used: impl Fn(IpAddr) -> bool) -> (Vec<Echo>, Vec<IpAddr>) {
        let (mut echoes, mut failed) = (vec![], vec![]);
        for peer in std::mem::take(&mut self.fresh) {
            echoes.extend(self.ask(peer, now, &mut failed));
        }
        while let Some(&(at, peer)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, peer));
            if is_used(peer) {
                echoes.extend(self.ask(peer, now, &mut failed));
            } else {
                self.peers.remove(&peer);
            }
        }
        (echoes, failed)
    }

    /// When [`Paths::tick`] has something to do. What is fresh is asked for in the next round anyway.
    pub fn due(&self) -> Option<Instant> {
        self.due.first().map(|&(at, _)| at)
    }

    /// Asks anew, or again; not if that was often enough.
    fn ask(&mut self, peer: IpAddr, now: Instant, failed: &mut Vec<IpAddr>) -> Option<Echo> {
        let path = self.peers.get_mut(&peer)?;
        let (echo, due) = match &mut path.asked {
            Some((_, tries)) if *tries >= self.terms.n3 => {
                path.asked = None;
                if !std::mem::replace(&mut path.failed, true) {
                    failed.push(peer);
                }
                // It may come back; a path is never asked more often than this anew.
                (None, now + self.terms.period)
            }
            Some((sequence, tries)) => {
                *tries += 1;
                (Some(Echo { peer, sequence: *sequence }), now + self.terms.t3)
            }
            None => {
                self.sequence = self.sequence.wrapping_add(1);
                path.asked = Some((self.sequence, 1));
                (Some(Echo { peer, sequence: self.sequence }), now + self.terms.t3)
            }
        };
        path.due = Some(due);
        self.due.insert((due, peer));
        echo
    }

    /// A response came: whether the path had failed, and is there again.
    pub fn answered(&mut self, echo: Echo, now: Instant) -> bool {
        let Some(path) = self.peers.get_mut(&echo.peer) else { return false };
        if path.asked.take_if(|(sequence, _)| *sequence == echo.sequence).is_none() {
            return false;
        }
        let next = now + self.terms.period;
        if let Some(due) = path.due.replace(next) {
            self.due.remove(&(due, echo.peer));
        }
        self.due.insert((next, echo.peer));
        std::mem::take(&mut path.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: PathTerms = PathTerms { period: Duration::from_secs(60), t3: Duration::from_secs(3), n3: 3 };
    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 3, 0, 2));

    /// The seconds of each echo request, and of failures.
    fn run(paths: &mut Paths, start: Instant, seconds: u64) -> (Vec<(u64, u16)>, Vec<u64>) {
        let (mut asked, mut failures) = (vec![], vec![]);
        for second in 0..seconds {
            let (echoes, failed) = paths.tick(start + Duration::from_secs(second), |_| true);
            asked.extend(echoes.iter().map(|echo| (second, echo.sequence)));
            failures.extend(failed.iter().map(|_| second));
        }
        (asked, failures)
    }

    #[test]
    fn a_silent_peer_fails_once_and_is_asked_on() {
        let (mut paths, start) = (Paths::new(TERMS), Instant::now());
        paths.want(PEER);
        let (asked, failures) = run(&mut paths, start, 78);
        assert_eq!(asked, [(0, 1), (3, 1), (6, 1), (69, 2), (72, 2), (75, 2)]);
        assert_eq!(failures, [9]);
        assert!(!paths.answered(Echo { peer: PEER, sequence: 1 }, start), "that is an old one");
        assert!(paths.answered(Echo { peer: PEER, sequence: 2 }, start + Duration::from_secs(78)), "it is back");
        assert!(!paths.answered(Echo { peer: PEER, sequence: 2 }, start), "which is said once");
        assert_eq!(paths.due(), Some(start + Duration::from_secs(138)));
    }

    #[test]
    fn a_peer_without_tunnels_is_left_alone() {
        let (mut paths, start) = (Paths::new(TERMS), Instant::now());
        paths.want(PEER);
        paths.want(PEER);
        assert_eq!(paths.tick(start, |_| true).0.len(), 1);
        assert!(!paths.answered(Echo { peer: PEER, sequence: 1 }, start));
        assert_eq!(paths.tick(start + TERMS.period, |_| false), (vec![], vec![]));
        assert!(paths.peers.is_empty() && paths.due().is_none());
        let mut unsupervised = Paths::new(PathTerms { period: Duration::ZERO, ..TERMS });
        unsupervised.want(PEER);
        assert_eq!(unsupervised.tick(start, |_| true), (vec![], vec![]));
    }
}
