//! Answers given, so that a request that comes again gets the same octets and is not carried out twice (TS 29.244, 6.4).

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use hashbrown::HashMap;
use pfcp::{Header, MessageType};
use serde::{Deserialize, Serialize};

use super::Limits;
use crate::clock::Clock;
use crate::store::{Change, Kind};

/// What tells one request of a peer from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    peer: SocketAddr,
    sequence: u32,
    message_type: MessageType,
}

/// An answer.
struct Answer {
    /// Digest of the request. A peer that has restarted may use a sequence number again for another one.
    request: u64,
    octets: Vec<u8>,
    serial: u64,
    at: Instant,
}

/// The answers of the last while, bounded in number, octets and age.
pub(super) struct Answers {
    limits: Limits,
    /// Key of the digests.
    digest: u64,
    kept: HashMap<Key, Answer>,
    /// Oldest first. An entry whose serial number is not its answer's is void.
    order: VecDeque<(Instant, Key, u64)>,
    octets: usize,
    serial: u64,
    /// Serial numbers of answers that have come or are gone, where somebody wants to know.
    touched: Option<Vec<(u64, Option<Key>)>>,
}

/// An answer as the store has it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KeptAnswer {
    peer: SocketAddr,
    sequence: u32,
    message_type: u8,
    request: u64,
    octets: Vec<u8>,
    at_ns: u64,
}

impl Answers {
    /// No answers. `digest` is the key of the digests of requests.
    pub fn new(limits: Limits, digest: u64) -> Self {
        let (kept, order) = (HashMap::new(), VecDeque::new());
        Self { limits, digest, kept, order, octets: 0, serial: 0, touched: None }
    }

    /// Key of the digests of requests.
    pub fn digest_key(&self) -> u64 {
        self.digest
    }

    /// From now on [`Answers::take_changes`] says what has changed.
    pub fn keep_changes(&mut self) {
        self.touched = Some(vec![]);
    }

    /// What has changed since the last call.
    pub fn take_changes(&mut self, clock: &Clock) -> Vec<Change> {
        let touched = self.touched.as_mut().map(std::mem::take).unwrap_or_default();
        let change = |(serial, key): (u64, Option<Key>)| Change {
            kind: Kind::Answer,
            key: serial,
            value: key.and_then(|key| self.kept_answer(serial, &key, clock)),
        };
        touched.into_iter().map(change).collect()
    }

    /// As if all answers had just come.
    pub fn touch_all(&mut self) {
        let all = self.kept.iter().map(|(key, answer)| (answer.serial, Some(*key))).collect();
        self.touched = self.touched.is_some().then_some(all);
    }

    fn kept_answer(&self, serial: u64, key: &Key, clock: &Clock) -> Option<Box<[u8]>> {
        let answer = self.kept.get(key).filter(|answer| answer.serial == serial)?;
        let kept = KeptAnswer {
            peer: key.peer,
            sequence: key.sequence,
            message_type: key.message_type.0,
            request: answer.request,
            octets: answer.octets.clone(),
            at_ns: clock.ns(answer.at),
        };
        Some(postcard::to_allocvec(&kept).expect("nothing in it is of unknown length").into())
    }

    /// Takes in what an earlier process kept under `serial`, in ascending order.
    pub fn take_in(&mut self, serial: u64, kept: KeptAnswer, clock: &Clock, now_ns: u64) {
        let at = clock.instant(kept.at_ns.min(now_ns));
        let KeptAnswer { peer, sequence, message_type, request, octets, .. } = kept;
        let key = Key { peer, sequence, message_type: MessageType(message_type) };
        self.serial = serial.saturating_sub(1);
        self.add(key, request, octets, at);
    }

    fn digest_of(&self, request: &[u8]) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.digest);
        hasher.write(request);
        hasher.finish()
    }

    /// The answer that `request` got when it came before.
    pub fn find(&mut self, peer: SocketAddr, header: &Header, request: &[u8], now: Instant) -> Option<Vec<u8>> {
        self.forget_old(now);
        let answer = self.kept.get(&key(peer, header))?;
        (answer.request == self.digest_of(request)).then(|| answer.octets.clone())
    }

    /// Keeps the answer to `request`.
    pub fn keep(&mut self, peer: SocketAddr, header: &Header, request: &[u8], octets: &[u8], now: Instant) {
        self.add(key(peer, header), self.digest_of(request), octets.to_vec(), now);
    }

    fn add(&mut self, key: Key, request: u64, octets: Vec<u8>, now: Instant) {
        self.remove(&key);
        self.serial += 1;
        self.touch(self.serial, Some(key));
        self.octets += octets.len();
        let answer = Answer { request, octets, serial: self.serial, at: now };
        self.kept.insert(key, answer);
        self.order.push_back((now, key, self.serial));
        while self.kept.len() > self.limits.answers
            || self.octets > self.limits.answer_octets
            || self.order.len() > 2 * self.limits.answers
        {
            self.forget_first();
        }
    }

    /// Forgets everything told to `peer`: what it asks from now on it asks anew.
    pub fn forget_peer(&mut self, peer: IpAddr) {
        let keys: Vec<_> = self.kept.keys().filter(|key| key.peer.ip() == peer).copied().collect();
        keys.iter().for_each(|key| self.remove(key));
    }

    fn forget_old(&mut self, now: Instant) {
        let most = self.limits.answer_age;
        let is_old = |at: Instant| now.saturating_duration_since(at) > most;
        while self.order.front().is_some_and(|&(at, ..)| is_old(at)) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some((_, key, serial)) = self.order.pop_front()
            && self.kept.get(&key).is_some_and(|answer| answer.serial == serial)
        {
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(answer) = self.kept.remove(key) {
            self.octets -= answer.octets.len();
            self.touch(answer.serial, None);
        }
    }

    fn touch(&mut self, serial: u64, key: Option<Key>) {
        if let Some(touched) = &mut self.touched {
            touched.push((serial, key));
        }
    }
}

fn key(peer: SocketAddr, header: &Header) -> Key {
    Key { peer, sequence: header.sequence, message_type: header.message_type }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn header(sequence: u32) -> Header {
        Header { message_type: MessageType::SESSION_DELETION_REQUEST, seid: Some(1), sequence }
    }

    fn peer() -> SocketAddr {
        "192.0.2.1:8805".parse().unwrap()
    }

    #[test]
    fn an_answer_is_found_for_the_same_request_only() {
        let (mut answers, now) = (Answers::new(Limits::default(), 7), Instant::now());
        answers.keep(peer(), &header(1), b"request", b"answer", now);
        assert_eq!(answers.find(peer(), &header(1), b"request", now), Some(b"answer".to_vec()));
        assert_eq!(answers.find(peer(), &header(1), b"another", now), None);
        assert_eq!(answers.find(peer(), &header(2), b"request", now), None);
        assert_eq!(answers.find("192.0.2.1:8806".parse().unwrap(), &header(1), b"request", now), None);
    }

    #[test]
    fn an_answer_is_forgotten_with_time_and_with_its_peer() {
        let (mut answers, now) = (Answers::new(Limits::default(), 7), Instant::now());
        answers.keep(peer(), &header(1), b"request", b"answer", now);
        answers.keep(peer(), &header(2), b"request", b"answer", now + Duration::from_secs(20));
        let later = now + Duration::from_secs(31);
        assert_eq!(answers.find(peer(), &header(1), b"request", later), None);
        assert!(answers.find(peer(), &header(2), b"request", later).is_some());
        answers.forget_peer(peer().ip());
        assert_eq!(answers.find(peer(), &header(2), b"request", later), None);
        assert_eq!((answers.octets, answers.kept.len()), (0, 0));
    }

    #[test]
    fn number_and_octets_are_bounded() {
        let limits = Limits { answers: 10, answer_octets: 50, ..Limits::default() };
        let (mut answers, now) = (Answers::new(limits, 7), Instant::now());
        for sequence in 0..1_000 {
            // Every sequence number twice, so that void entries are met too.
            answers.keep(peer(), &header(sequence / 2), &sequence.to_be_bytes(), &[0; 4], now);
            assert!(answers.kept.len() <= 10 && answers.order.len() <= 20);
        }
        answers.keep(peer(), &header(5_000), b"request", &[0; 40], now);
        assert!(answers.octets <= 50 && answers.kept.len() < 10);
        assert!(answers.find(peer(), &header(5_000), b"request", now).is_some());
    }
}
