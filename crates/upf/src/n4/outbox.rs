//! Requests of the UPF's own that wait for a response: sent again with the same octets until it comes (TS 29.244, 6.4).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use pfcp::report::UsageReport;
use pfcp::{Header, MessageType, Request};
use serde::{Deserialize, Serialize};

use super::Datagram;
use super::association::{AssociationId, Pace};
use crate::store::{Change, Kind};

/// The requests.
#[derive(Debug)]
pub(super) struct Outbox {
    pace: Pace,
    most: usize,
    /// The last sequence number given to any request.
    sequence: u32,
    /// By sequence number.
    waiting: BTreeMap<u32, Waiting>,
    /// By the time at which they are due again.
    due: BTreeSet<(Instant, u32)>,
    /// By what they are about.
    about: BTreeSet<(About, u32)>,
    /// Those that have not answered all of them.
    peers: BTreeMap<IpAddr, Peer>,
    /// Sequence numbers of requests about sessions that have come or are gone, where somebody wants to know.
    touched: Option<BTreeSet<u32>>,
}

/// A request about a session as the store has it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KeptRequest {
    to: SocketAddr,
    message_type: u8,
    octets: Vec<u8>,
    up_seid: u64,
}

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum About {
    /// The session with this SEID of the UPF's.
    Session(u64),
    /// Usage of the session with this SEID of the UPF's, which has been deleted.
    Ended(u64),
    /// The association.
    Association(AssociationId),
    /// The association that there is to be with the manager of this number.
    Manager(usize),
}

#[derive(Debug)]
struct Waiting {
    to: SocketAddr,
    message_type: MessageType,
    octets: Vec<u8>,
    tries: u32,
    again: Instant,
    about: About,
    /// Whether it was sent often enough, so that it rests before it is sent again.
    rests: bool,
}

/// A peer that has not answered all requests.
#[derive(Debug, Default)]
struct Peer {
    /// How many wait.
    waiting: usize,
    /// How many of them rest.
    resting: usize,
    /// Whether nothing has come from it since one began to.
    is_silent: bool,
}

/// How long a report rests that was sent often enough.
const REST: Duration = Duration::from_secs(10);

/// The part of all that may wait which a peer may have that lives and leaves reports unanswered.
const PART: usize = 8;

/// The most that a sequence number can be: it has 24 bits.
const SEQUENCE_MAX: u32 = 0xff_ffff;

impl Outbox {
    /// At most `most` requests wait at a time.
    pub fn new(pace: Pace, most: usize) -> Self {
        let (due, about) = (BTreeSet::new(), BTreeSet::new());
        let (waiting, peers) = (BTreeMap::new(), BTreeMap::new());
        Self { pace, most, sequence: 0, waiting, due, about, peers, touched: None }
    }

    /// From now on [`Outbox::take_changes`] says what has changed.
    pub fn keep_changes(&mut self) {
        self.touched = Some(BTreeSet::new());
    }

    /// What has changed since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        let touched = self.touched.as_mut().map(std::mem::take).unwrap_or_default();
        let kept = |sequence: u32| {
            let Waiting { to, message_type, octets, about, .. } = self.waiting.get(&sequence)?;
            let About::Session(up_seid) = *about else { return None };
            let kept = KeptRequest { to: *to, message_type: message_type.0, octets: octets.clone(), up_seid };
            Some(postcard::to_allocvec(&kept).expect("nothing in it is of unknown length").into())
        };
        let change = |sequence| Change { kind: Kind::Report, key: u64::from(sequence), value: kept(sequence) };
        touched.into_iter().map(change).collect()
    }

    /// As if all requests had just come.
    pub fn touch_all(&mut self) {
        let is_kept = |waiting: &Waiting| matches!(waiting.about, About::Session(_));
        let all = self.waiting.iter().filter(|(_, waiting)| is_kept(waiting)).map(|(&sequence, _)| sequence).collect();
        self.touched = self.touched.is_some().then_some(all);
    }

    /// Takes in a request that an earlier process sent, to send it again at once.
    pub fn take_in(&mut self, sequence: u32, kept: KeptRequest, now: Instant) {
        let KeptRequest { to, message_type, octets, up_seid } = kept;
        let (message_type, about) = (MessageType(message_type), About::Session(up_seid));
        self.add(sequence, Waiting { to, message_type, octets, tries: 0, again: now, about, rests: false });
    }

    /// The sequence number last given to a request.
    pub fn last_sequence(&self) -> u32 {
        self.sequence
    }

    /// Gives sequence numbers beyond `last` from now on.
    pub fn go_on_from(&mut self, last: u32) {
        self.sequence = last & SEQUENCE_MAX;
    }

    fn add(&mut self, sequence: u32, waiting: Waiting) {
        self.due.insert((waiting.again, sequence));
        self.about.insert((waiting.about, sequence));
        self.touch(sequence, waiting.about);
        self.peers.entry(waiting.to.ip()).or_default().waiting += 1;
        self.waiting.insert(sequence, waiting);
    }

    fn touch(&mut self, sequence: u32, about: About) {
        if let (Some(touched), About::Session(_)) = (&mut self.touched, about) {
            touched.insert(sequence);
        }
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no more reports about the session can wait for an answer of this peer: it has as many as there is room left
    /// for; or it is silent; or it leaves reports unanswered, and has too many, or one about the session rests. So whoever does
    /// not answer does not take the place of others' reports.
    pub fn is_full(&self, up_seid: u64, peer: IpAddr) -> bool {
        let Some(peer) = self.peers.get(&peer) else { return self.waiting.len() >= self.most };
        if peer.is_silent || peer.waiting >= self.most.saturating_sub(self.waiting.len()) {
            return true;
        }
        let rests = |sequence: u32| self.waiting.get(&sequence).is_some_and(|waiting| waiting.rests);
        peer.resting > 0 && (peer.waiting >= self.most / PART || self.sequences(About::Session(up_seid)).any(rests))
    }

    /// Of the requests about it.
    fn sequences(&self, about: About) -> impl Iterator<Item = u32> {
        self.about.range((about, 0)..=(about, u32::MAX)).map(|&(_, sequence)| sequence)
    }

    /// Something came from the peer. One request that it does not answer says nothing of others then (6.4).
    pub fn hear(&mut self, peer: IpAddr) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.is_silent = false;
        }
    }

    /// The sequence number for another request: none that a request which waits has.
    pub fn next_sequence(&mut self) -> u32 {
        let next = |sequence: u32| (sequence + 1) & SEQUENCE_MAX;
        self.sequence = next(self.sequence);
        while self.waiting.contains_key(&self.sequence) {
            self.sequence = next(self.sequence);
        }
        self.sequence
    }

    /// A request about `about` to `to`, which knows the session, if it is about one, as `cp_seid`.
    pub fn send(&mut self, request: &Request, about: About, cp_seid: u64, to: SocketAddr, now: Instant) -> Datagram {
        let sequence = self.next_sequence();
        let octets = request.encode(cp_seid, sequence);
        let (again, message_type) = (now + self.pace.t1, request.message_type());
        self.add(sequence, Waiting { to, message_type, octets: octets.clone(), tries: 1, again, about, rests: false });
        Datagram { to, octets }
    }

    /// A response with this type and sequence number came from `from`: what it is about.
    pub fn answered(&mut self, from: IpAddr, response: MessageType, sequence: u32) -> Option<About> {
        let is_it = |waiting: &&Waiting| waiting.to.ip() == from && waiting.message_type.0 + 1 == response.0;
        self.waiting.get(&sequence).filter(is_it)?;
        self.remove(sequence).map(|waiting| waiting.about)
    }

    /// What is to be sent again at `now`, and what the requests were about that were sent often enough. Of these, reports
    /// about sessions rest, and are then sent again; the others are given up.
    pub fn tick(&mut self, now: Instant) -> (Vec<Datagram>, Vec<About>) {
        let (mut datagrams, mut given_up) = (vec![], vec![]);
        while let Some(&(at, sequence)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, sequence));
            let Some(waiting) = self.waiting.get_mut(&sequence) else { continue };
            if waiting.tries >= self.pace.n1 {
                let about = waiting.about;
                if !matches!(about, About::Session(_)) {
                    self.remove(sequence);
                    given_up.push(about);
                    continue;
                }
                if !std::mem::replace(&mut waiting.rests, true) {
                    given_up.push(about);
                    let peer = self.peers.entry(waiting.to.ip()).or_default();
                    peer.resting += 1;
                    peer.is_silent = true;
                }
                (waiting.tries, waiting.again) = (0, now + REST);
                self.due.insert((waiting.again, sequence));
                continue;
            }
            waiting.tries += 1;
            waiting.again = now + self.pace.t1;
            self.due.insert((waiting.again, sequence));
            datagrams.push(Datagram { to: waiting.to, octets: waiting.octets.clone() });
        }
        (datagrams, given_up)
    }

    /// When [`Outbox::tick`] has something to do.
    pub fn due(&self) -> Option<Instant> {
        self.due.first().map(|&(at, _)| at)
    }

    /// The session's manager is at `to` now, and knows the session as `cp_seid`: what it has not answered is sent there, as if
    /// it had not been sent yet.
    pub fn redirect(&mut self, up_seid: u64, cp_seid: u64, to: SocketAddr, now: Instant) {
        let sequences: Vec<_> = self.sequences(About::Session(up_seid)).collect();
        for sequence in sequences {
            let Some(waiting) = self.remove(sequence) else { continue };
            let octets = waiting.request().map(|request| request.encode(cp_seid, sequence));
            let octets = octets.unwrap_or(waiting.octets);
            self.add(sequence, Waiting { to, octets, tries: 0, again: now, rests: false, ..waiting });
        }
    }

    /// The session has been deleted. What was told of its usage and is not answered is to be told in the response, and not here
    /// any more: `most` reports of usage at most, the oldest first. What has no room there is sent on. All else about the
    /// session is forgotten.
    pub fn end(&mut self, up_seid: u64, most: usize, now: Instant) -> Vec<UsageReport> {
        let sequences: Vec<_> = self.sequences(About::Session(up_seid)).collect();
        let mut untold = vec![];
        for sequence in sequences {
            let Some(waiting) = self.remove(sequence) else { continue };
            let usage = waiting.usage();
            if usage.len() <= most - untold.len() {
                untold.extend(usage);
            } else {
                let about = About::Ended(up_seid);
                self.add(sequence, Waiting { tries: 0, again: now, about, rests: false, ..waiting });
            }
        }
        untold
    }

    /// Forgets requests about it.
    pub fn forget(&mut self, about: About) {
        let sequences: Vec<_> = self.sequences(about).collect();
        sequences.into_iter().for_each(|sequence| drop(self.remove(sequence)));
    }

    fn remove(&mut self, sequence: u32) -> Option<Waiting> {
        let waiting = self.waiting.remove(&sequence)?;
        self.due.remove(&(waiting.again, sequence));
        self.about.remove(&(waiting.about, sequence));
        self.touch(sequence, waiting.about);
        if let Entry::Occupied(mut entry) = self.peers.entry(waiting.to.ip()) {
            let peer = entry.get_mut();
            peer.waiting -= 1;
            peer.resting -= usize::from(waiting.rests);
            peer.is_silent &= peer.resting > 0;
            if peer.waiting == 0 {
                entry.remove();
            }
        }
        Some(waiting)
    }
}

impl Waiting {
    fn request(&self) -> Option<Request> {
        let (header, body) = Header::parse(&self.octets).ok()?;
        Request::parse(&header, body).ok()
    }

    /// The usage that it tells of.
    fn usage(&self) -> Vec<UsageReport> {
        match self.request() {
            Some(Request::SessionReport(report)) => report.usage,
            _ => vec![],
        }
    }
}

#[cfg(test)]
mod tests {
    use pfcp::report::SessionReport;

    use super::*;

    const PACE: Pace = Pace { t1: Duration::from_secs(1), n1: 3 };

    #[test]
    fn a_peer_that_lives_and_answers_no_reports_does_not_take_the_place_of_others() {
        let mut now = Instant::now();
        let mut outbox = Outbox::new(PACE, 4 * PART);
        let peers: [SocketAddr; 2] = ["192.0.2.1:8805".parse().unwrap(), "192.0.2.2:8805".parse().unwrap()];
        let [deaf, other] = peers.map(|peer| peer.ip());
        let report = Request::SessionReport(SessionReport::default());
        for session in 1..=4 {
            assert!(!outbox.is_full(session, deaf));
            outbox.send(&report, About::Session(session), 9, peers[0], now);
            for _ in 0..3 {
                now += PACE.t1;
                outbox.tick(now);
            }
            assert!(outbox.is_full(session + 1, deaf), "it is silent");
            outbox.hear(deaf);
            assert!(outbox.is_full(session, deaf), "what it did not answer is about this session");
        }
        assert!(outbox.is_full(5, deaf) && !outbox.is_full(5, other));
        // That one of them goes on resting is no news of the peer.
        outbox.forget(About::Session(4));
        now += REST + 3 * PACE.t1;
        outbox.tick(now);
        assert!(!outbox.is_full(5, deaf) && outbox.is_full(1, deaf));
        (1..=3).for_each(|session| outbox.forget(About::Session(session)));
        assert!(!outbox.is_full(1, deaf) && outbox.peers.is_empty());
    }

    #[test]
    fn whoever_answers_no_reports_leaves_room_for_others_from_the_first_on() {
        let now = Instant::now();
        let most = 16 * PART;
        let mut outbox = Outbox::new(PACE, most);
        let peers: [SocketAddr; 3] = [1, 2, 3].map(|host| SocketAddr::from(([192, 0, 2, host], 8805)));
        let report = Request::SessionReport(SessionReport::default());
        let mut session = 0;
        let shares = peers.map(|peer| {
            let mut share = 0;
            while !outbox.is_full(session, peer.ip()) {
                session += 1;
                share += 1;
                outbox.send(&report, About::Session(session), 9, peer, now);
            }
            share
        });
        assert_eq!(shares, [most / 2, most / 4, most / 8]);
        // Those of its reports that do not rest yet count, too, once one does.
        let mut outbox = Outbox::new(PACE, most);
        let mut now = now;
        outbox.send(&report, About::Session(1), 9, peers[0], now);
        for _ in 0..3 {
            now += PACE.t1;
            outbox.tick(now);
        }
        outbox.hear(peers[0].ip());
        for session in 2..=PART as u64 * 2 {
            assert!(!outbox.is_full(session, peers[0].ip()));
            outbox.send(&report, About::Session(session), 9, peers[0], now);
        }
        assert!(outbox.is_full(u64::MAX, peers[0].ip()) && !outbox.is_full(u64::MAX, peers[1].ip()));
    }

    #[test]
    fn a_number_that_waits_is_not_given_again_when_they_begin_anew() {
        let now = Instant::now();
        let mut outbox = Outbox::new(PACE, 10);
        let to: SocketAddr = "192.0.2.1:8805".parse().unwrap();
        let report = Request::SessionReport(SessionReport::default());
        outbox.sequence = SEQUENCE_MAX - 1;
        (0..2).for_each(|_| drop(outbox.send(&report, About::Session(1), 9, to, now)));
        assert_eq!(outbox.waiting.keys().copied().collect::<Vec<_>>(), [0, SEQUENCE_MAX]);
        outbox.sequence = SEQUENCE_MAX - 1;
        assert_eq!(outbox.next_sequence(), 1);
        // Only a response to what was asked, from whom it was asked, is an answer.
        let response = MessageType::SESSION_REPORT_RESPONSE;
        assert_eq!(outbox.answered("192.0.2.2".parse().unwrap(), response, 0), None);
        assert_eq!(outbox.answered(to.ip(), MessageType::NODE_REPORT_RESPONSE, 0), None);
        assert_eq!(outbox.answered(to.ip(), response, 0), Some(About::Session(1)));
        assert_eq!(outbox.answered(to.ip(), response, 0), None);
    }

    #[test]
    fn usage_that_has_no_room_in_the_response_to_a_deletion_is_sent_on_for_a_while() {
        let mut now = Instant::now();
        let mut outbox = Outbox::new(PACE, 10);
        let to: SocketAddr = "192.0.2.1:8805".parse().unwrap();
        let mut send = |session: u64, sequences: std::ops::Range<u32>| {
            let usage = sequences.map(|sequence| UsageReport { sequence, ..UsageReport::default() }).collect();
            let report = Request::SessionReport(SessionReport { usage, ..SessionReport::default() });
            outbox.send(&report, About::Session(session), 9, to, now)
        };
        send(1, 0..2);
        let long = send(1, 2..5);
        send(1, 5..6);
        let other = send(2, 0..1);
        let told: Vec<_> = outbox.end(1, 4, now).iter().map(|report| report.sequence).collect();
        assert_eq!(told, [0, 1, 5]);
        assert!(!outbox.is_full(1, to.ip()) && outbox.len() == 2);
        let mut sent = 0;
        for _ in 0..=PACE.n1 {
            let (datagrams, given_up) = outbox.tick(now);
            sent += datagrams.iter().filter(|datagram| datagram.octets == long.octets).count();
            assert!(datagrams.iter().all(|datagram| [&long, &other].contains(&datagram)));
            assert!(given_up.is_empty() || !outbox.waiting.values().any(|waiting| waiting.about == About::Ended(1)));
            now += PACE.t1;
        }
        assert_eq!((sent, outbox.len()), (3, 1));
        assert_eq!(outbox.end(2, 0, now), [], "no room at all");
        assert_eq!(outbox.len(), 1);
    }
}
