//! Answers given, so that a request that comes again gets the same octets and is not carried out twice (TS 29.244, 6.4).

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use hashbrown::HashMap;
use pfcp::{Header, MessageType};

use super::Limits;

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
}

/// The answers of the last while, bounded in number, octets and age.
pub(super) struct Answers {
    limits: Limits,
    digest: RandomState,
    kept: HashMap<Key, Answer>,
    /// Oldest first. An entry whose serial number is not its answer's is void.
    order: VecDeque<(Instant, Key, u64)>,
    octets: usize,
    serial: u64,
}

impl Answers {
    pub fn new(limits: Limits) -> Self {
        Self { limits, digest: RandomState::new(), kept: HashMap::new(), order: VecDeque::new(), octets: 0, serial: 0 }
    }

    /// The answer that `request` got when it came before.
    pub fn find(&mut self, peer: SocketAddr, header: &Header, request: &[u8], now: Instant) -> Option<Vec<u8>> {
        self.forget_old(now);
        let answer = self.kept.get(&key(peer, header))?;
        (answer.request == self.digest.hash_one(request)).then(|| answer.octets.clone())
    }

    /// Keeps the answer to `request`.
    pub fn keep(&mut self, peer: SocketAddr, header: &Header, request: &[u8], octets: &[u8], now: Instant) {
        let key = key(peer, header);
        self.remove(&key);
        self.serial += 1;
        let answer = Answer { request: self.digest.hash_one(request), octets: octets.to_vec(), serial: self.serial };
        self.octets += octets.len();
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
        let (mut answers, now) = (Answers::new(Limits::default()), Instant::now());
        answers.keep(peer(), &header(1), b"request", b"answer", now);
        assert_eq!(answers.find(peer(), &header(1), b"request", now), Some(b"answer".to_vec()));
        assert_eq!(answers.find(peer(), &header(1), b"another", now), None);
        assert_eq!(answers.find(peer(), &header(2), b"request", now), None);
        assert_eq!(answers.find("192.0.2.1:8806".parse().unwrap(), &header(1), b"request", now), None);
    }

    #[test]
    fn an_answer_is_forgotten_with_time_and_with_its_peer() {
        let (mut answers, now) = (Answers::new(Limits::default()), Instant::now());
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
        let (mut answers, now) = (Answers::new(limits), Instant::now());
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
