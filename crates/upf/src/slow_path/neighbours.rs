//! The neighbour table: who on a link has which Ethernet address, asked for, confirmed and given up in time.
//!
//! A state machine without clock or queue of its own: events go in with the time, and what is to be done comes out.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::side::PortId;

/// Between two questions.
const RETRY: Duration = Duration::from_secs(1);
/// Between the first questions for a neighbour, and between all while traffic waits for the answer.
const HASTY_RETRY: Duration = Duration::from_millis(100);
/// Questions without an answer before packets are given up, or an address is.
const TRIES: u32 = 3;
/// How long an answer counts before it is confirmed.
const REACHABLE: Duration = Duration::from_secs(30);
/// Most frames that wait for one neighbour.
const WAITING_MAX: usize = 16;
/// Most neighbours that only packets asked for and that have not answered.
const UNANSWERED_MAX: usize = 4_096;
/// With so many of them that have answered no others are asked for.
const ANSWERED_MAX: usize = 8_192;
/// Most that are confirmed. Others are forgotten when that is due: packets ask again for those that they still go to, and find room,
/// whoever asked for many.
const CONFIRMED_MAX: usize = ANSWERED_MAX / 2;

/// A neighbour.
pub type Key = (PortId, IpAddr);

/// What is to be done. `F` are frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<F> {
    /// Ask for the neighbour's Ethernet address: everyone, or the one who had it.
    Solicit(Key, Option<[u8; 6]>),
    /// Let workers use this address, or no address.
    Publish(Key, Option<[u8; 6]>),
    /// The neighbour has this address: send a frame that waited.
    Release(Key, [u8; 6], F),
    /// That many frames waited in vain.
    GiveUp(usize),
}

impl<F> Action<F> {
    /// The neighbour that has no address any more.
    pub fn lost(&self) -> Option<Key> {
        match *self {
            Self::Publish(key, None) => Some(key),
            _ => None,
        }
    }
}

/// The table.
#[derive(Debug)]
pub struct Neighbours<F> {
    entries: HashMap<Key, Entry<F>>,
    by_packets: ByPackets,
}

/// How many neighbours only packets ask for.
#[derive(Debug, Default, PartialEq, Eq)]
struct ByPackets {
    unanswered: usize,
    answered: usize,
}

#[derive(Debug)]
struct Entry<F> {
    /// Rules or routes lead to it, so it is asked for until it answers. Otherwise packets do, and it is forgotten if not.
    lasting: bool,
    /// Packets have asked for it while no rule did.
    wanted_by_packets: bool,
    mac: Option<[u8; 6]>,
    /// Questions since the last answer.
    tries: u32,
    /// When the last question was asked.
    asked: Instant,
    /// When the next one is due.
    due: Instant,
    waiting: VecDeque<F>,
}

impl<F> Default for Neighbours<F> {
    fn default() -> Self {
        Self { entries: HashMap::new(), by_packets: ByPackets::default() }
    }
}

impl ByPackets {
    fn has_room(&self) -> bool {
        self.unanswered < UNANSWERED_MAX && self.answered < ANSWERED_MAX
    }

    fn add<F>(&mut self, entry: &Entry<F>) {
        *self.like(entry) += usize::from(!entry.lasting);
    }

    fn remove<F>(&mut self, entry: &Entry<F>) {
        *self.like(entry) -= usize::from(!entry.lasting);
    }

    fn like<F>(&mut self, entry: &Entry<F>) -> &mut usize {
        if entry.mac.is_some() { &mut self.answered } else { &mut self.unanswered }
    }
}

impl<F> Neighbours<F> {
    /// Rules or routes lead to the neighbour.
    pub fn want(&mut self, key: Key, now: Instant) -> Vec<Action<F>> {
        let mut actions = Vec::new();
        match self.entries.get_mut(&key) {
            Some(entry) => {
                self.by_packets.remove(entry);
                entry.lasting = true;
                actions.push(match entry.mac {
                    // Whoever wants it anew does not know what is known already.
                    Some(mac) => Action::Publish(key, Some(mac)),
                    // It may have come back since it was last asked for.
                    None => Action::Solicit(key, None),
                });
            }
            None => {
                self.entries.insert(key, Entry::new(true, now));
                actions.push(Action::Solicit(key, None));
            }
        }
        actions
    }

    /// A frame for the neighbour waits to be sent.
    pub fn wait(&mut self, key: Key, frame: F, now: Instant) -> Vec<Action<F>> {
        let mut actions = Vec::new();
        if !self.entries.contains_key(&key) {
            if !self.by_packets.has_room() {
                return vec![Action::GiveUp(1)];
            }
            let entry = Entry::new(false, now);
            self.by_packets.add(&entry);
            self.entries.insert(key, entry);
            actions.push(Action::Solicit(key, None));
        }
        let entry = self.entries.get_mut(&key).expect("just put in");
        entry.wanted_by_packets |= !entry.lasting;
        match entry.mac {
            Some(mac) => actions.push(Action::Release(key, mac, frame)),
            None if entry.waiting.len() < WAITING_MAX => entry.hold(frame),
            None => actions.push(Action::GiveUp(1)),
        }
        actions
    }

    /// The neighbour's address was heard. Nothing comes of it if nobody asked.
    pub fn heard(&mut self, key: Key, mac: [u8; 6], now: Instant) -> Vec<Action<F>> {
        let Some(entry) = self.entries.get_mut(&key) else { return vec![] };
        let mut actions = Vec::new();
        if entry.mac != Some(mac) {
            actions.push(Action::Publish(key, Some(mac)));
        }
        self.by_packets.remove(entry);
        entry.mac = Some(mac);
        self.by_packets.add(entry);
        entry.tries = 0;
        entry.due = now + REACHABLE;
        actions.extend(entry.waiting.drain(..).map(|frame| Action::Release(key, mac, frame)));
        actions
    }

    /// The same of an address that is not to take the place of another one. Nothing comes of it where another one is known.
    pub fn heard_beside(&mut self, key: Key, mac: [u8; 6], now: Instant) -> Vec<Action<F>> {
        let known = self.entries.get(&key).and_then(|entry| entry.mac);
        if known.is_some_and(|known| known != mac) { vec![] } else { self.heard(key, mac, now) }
    }

    /// A process before this one knew the neighbour by this address, and packets may go there. It is used at once, and given up
    /// if nobody confirms it soon.
    pub fn know(&mut self, key: Key, mac: [u8; 6], now: Instant) -> Vec<Action<F>> {
        let mut actions = self.want(key, now);
        actions.extend(self.heard(key, mac, now));
        if let Some(entry) = self.entries.get_mut(&key) {
            (entry.wanted_by_packets, entry.tries, entry.due) = (true, 1, now + RETRY);
        }
        actions
    }

    /// Whether it is asked for, or known.
    pub fn has(&self, key: Key) -> bool {
        self.entries.contains_key(&key)
    }

    /// Does what is due. Rules and routes lead to a neighbour that was wanted as long as it `is_needed`.
    pub fn tick(&mut self, now: Instant, is_needed: impl Fn(Key) -> bool) -> Vec<Action<F>> {
        let mut actions = Vec::new();
        let by_packets = &mut self.by_packets;
        self.entries.retain(|&key, entry| {
            if entry.due > now {
                return true;
            }
            by_packets.remove(entry);
            entry.lasting = entry.lasting && is_needed(key);
            entry.wanted_by_packets &= !entry.lasting;
            // Rules have led to it once, and nobody else asks.
            let is_unwanted = !entry.wanted_by_packets && entry.waiting.is_empty();
            let is_one_of_many = entry.mac.is_some() && by_packets.answered >= CONFIRMED_MAX;
            if !entry.lasting && (is_unwanted || is_one_of_many) {
                actions.extend(entry.mac.map(|_| Action::Publish(key, None)));
                return false;
            }
            if entry.tries >= TRIES {
                if !entry.waiting.is_empty() {
                    actions.push(Action::GiveUp(entry.waiting.len()));
                    entry.waiting.clear();
                }
                actions.extend(entry.mac.take().map(|_| Action::Publish(key, None)));
                if !entry.lasting {
                    return false;
                }
            }
            actions.push(Action::Solicit(key, entry.mac));
            entry.tries = entry.tries.saturating_add(1);
            entry.asked = now;
            entry.due = now + if entry.is_urgent() { HASTY_RETRY } else { RETRY };
            by_packets.add(entry);
            true
        });
        actions
    }

    /// Number of neighbours asked for or known.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl<F> Entry<F> {
    /// A neighbour for whom the first question is out.
    fn new(lasting: bool, now: Instant) -> Self {
        let due = now + HASTY_RETRY;
        Self { lasting, wanted_by_packets: !lasting, mac: None, tries: 1, asked: now, due, waiting: VecDeque::new() }
    }

    fn is_urgent(&self) -> bool {
        self.mac.is_none() && (self.tries < TRIES || !self.waiting.is_empty())
    }

    /// A frame waits. Its neighbour may have come back since it was last asked for, and has all its tries again.
    fn hold(&mut self, frame: F) {
        if self.waiting.is_empty() && self.tries >= TRIES {
            self.tries = 0;
            self.due = self.due.min(self.asked + HASTY_RETRY);
        }
        self.waiting.push_back(frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn key() -> Key {
        (PortId::N6, "10.6.0.9".parse().unwrap())
    }

    /// Ticks every 50 ms for `time`, while rules lead to those that were ever wanted.
    fn pass(neighbours: &mut Neighbours<Vec<u8>>, now: &mut Instant, time: Duration) -> Vec<Action<Vec<u8>>> {
        let lasting: Vec<_> =
            neighbours.entries.iter().filter(|(_, entry)| entry.lasting).map(|(key, _)| *key).collect();
        pass_with(neighbours, now, time, |key| lasting.contains(&key))
    }

    fn pass_with(
        neighbours: &mut Neighbours<Vec<u8>>,
        now: &mut Instant,
        time: Duration,
        is_needed: impl Fn(Key) -> bool,
    ) -> Vec<Action<Vec<u8>>> {
        let end = *now + time;
        let mut actions = vec![];
        while *now < end {
            *now += Duration::from_millis(50);
            actions.extend(neighbours.tick(*now, &is_needed));
        }
        actions
    }

    #[test]
    fn a_neighbour_that_no_rule_leads_to_any_more_is_not_asked_any_more() {
        let (mut neighbours, mut now) = (Neighbours::<Vec<u8>>::default(), Instant::now());
        neighbours.want(key(), now);
        pass(&mut neighbours, &mut now, Duration::from_secs(5));
        assert_eq!(pass_with(&mut neighbours, &mut now, Duration::from_secs(60), |_| false), []);
        assert!(neighbours.is_empty() && neighbours.by_packets == ByPackets::default());
        // One that has answered is forgotten when it would be asked again.
        neighbours.want(key(), now);
        neighbours.wait(key(), vec![1], now);
        neighbours.heard(key(), MAC, now);
        let actions = pass_with(&mut neighbours, &mut now, 2 * REACHABLE, |_| false);
        assert_eq!(actions, [Action::Publish(key(), None)]);
        assert!(neighbours.is_empty() && neighbours.by_packets == ByPackets::default());
    }

    #[test]
    fn a_neighbour_that_packets_ask_for_stays_while_it_answers_and_frames_that_wait_are_not_forgotten() {
        let (mut neighbours, mut now) = (Neighbours::<Vec<u8>>::default(), Instant::now());
        neighbours.know(key(), MAC, now);
        let ask = Action::Solicit(key(), Some(MAC));
        assert_eq!(pass_with(&mut neighbours, &mut now, RETRY + RETRY / 2, |_| false), [ask]);
        neighbours.heard(key(), MAC, now);
        assert_eq!(pass_with(&mut neighbours, &mut now, REACHABLE - RETRY, |_| false), []);
        let other = (PortId::N3, "10.3.0.9".parse().unwrap());
        neighbours.want(other, now);
        neighbours.wait(other, vec![1], now);
        let actions = pass_with(&mut neighbours, &mut now, RETRY / 2, |_| false);
        assert!(actions.contains(&Action::GiveUp(1)) && !neighbours.has(other), "{actions:?}");
        assert_eq!(neighbours.by_packets.unanswered, 0);
    }

    #[test]
    fn a_neighbour_known_from_before_that_nobody_confirms_is_given_up_soon() {
        let (mut neighbours, mut now) = (Neighbours::<Vec<u8>>::default(), Instant::now());
        assert!(neighbours.know(key(), MAC, now).contains(&Action::Publish(key(), Some(MAC))));
        let actions = pass_with(&mut neighbours, &mut now, 4 * RETRY, |_| true);
        let ask = || Action::Solicit(key(), Some(MAC));
        let lost = [ask(), ask(), Action::Publish(key(), None), Action::Solicit(key(), None)];
        assert_eq!(actions[..4], lost);
    }

    #[test]
    fn a_waiting_frame_leaves_once_the_neighbour_answers() {
        let (mut neighbours, now) = (Neighbours::<Vec<u8>>::default(), Instant::now());
        assert_eq!(neighbours.wait(key(), vec![1], now), [Action::Solicit(key(), None)]);
        assert_eq!(neighbours.wait(key(), vec![2], now), []);
        let release = |frame| Action::Release(key(), MAC, frame);
        let expected = [Action::Publish(key(), Some(MAC)), release(vec![1]), release(vec![2])];
        assert_eq!(neighbours.heard(key(), MAC, now), expected);
        assert_eq!(neighbours.wait(key(), vec![3], now), [release(vec![3])]);
        assert_eq!(neighbours.by_packets.unanswered, 0);
    }

    #[test]
    fn a_neighbour_that_never_answers_is_asked_three_times_and_forgotten() {
        let (mut neighbours, mut now) = (Neighbours::<Vec<u8>>::default(), Instant::now());
        neighbours.wait(key(), vec![1], now);
        let actions = pass(&mut neighbours, &mut now, Duration::from_secs(5));
        let ask = Action::Solicit(key(), None);
        assert_eq!(actions, [ask.clone(), ask, Action::GiveUp(1)]);
        assert!(neighbours.is_empty() && neighbours.by_packets == ByPackets::default());
    }

    #[test]
    fn a_wanted_neighbour_is_asked_until_it_answers() {
        let (mut neighbours, mut now) = (Neighbours::<Vec<u8>>::default(), Instant::now());
        neighbours.want(key(), now);
        assert!(pass(&mut neighbours, &mut now, Duration::from_secs(20)).len() > 15);
        assert_eq!(neighbours.heard(key(), MAC, now), [Action::Publish(key(), Some(MAC))]);
    }

    #[test]
    fn a_silent_gateway_is_asked_in_haste_while_frames_wait() {
        let (mut neighbours, mut now) = (Neighbours::<Vec<u8>>::default(), Instant::now());
        neighbours.want(key(), now);
        pass(&mut neighbours, &mut now, Duration::from_secs(20));
        assert_eq!(neighbours.wait(key(), vec![1], now), []);
        let asked = |actions: &[Action<Vec<u8>>]| {
            actions.iter().filter(|action| **action == Action::Solicit(key(), None)).count()
        };
        let actions = pass(&mut neighbours, &mut now, Duration::from_millis(450));
        assert!(asked(&actions) >= 3 && actions.contains(&Action::GiveUp(1)), "{actions:?}");
        assert!(asked(&pass(&mut neighbours, &mut now, Duration::from_secs(3))) <= 3, "nobody waits any more");
    }

    #[test]
    fn an_address_is_confirmed_with_its_owner_and_given_up_if_that_is_silent() {
        let (mut neighbours, mut now) = (Neighbours::<Vec<u8>>::default(), Instant::now());
        neighbours.want(key(), now);
        neighbours.heard(key(), MAC, now);
        assert_eq!(pass(&mut neighbours, &mut now, REACHABLE - RETRY), []);
        let actions = pass(&mut neighbours, &mut now, RETRY * 4 + RETRY / 2);
        let ask = Action::Solicit(key(), Some(MAC));
        let expected = [ask.clone(), ask.clone(), ask, Action::Publish(key(), None), Action::Solicit(key(), None)];
        assert_eq!(actions, expected);
    }

    #[test]
    fn an_answer_in_time_keeps_the_address_and_another_address_replaces_it() {
        let (mut neighbours, mut now) = (Neighbours::<Vec<u8>>::default(), Instant::now());
        neighbours.want(key(), now);
        neighbours.heard(key(), MAC, now);
        pass(&mut neighbours, &mut now, REACHABLE + RETRY);
        assert_eq!(neighbours.heard(key(), MAC, now), []);
        assert_eq!(pass(&mut neighbours, &mut now, REACHABLE - RETRY), []);
        assert_eq!(neighbours.heard(key(), [4; 6], now), [Action::Publish(key(), Some([4; 6]))]);
    }

    #[test]
    fn an_address_that_overrides_none_is_confirmed_and_waits_until_another_one_is_given_up() {
        let (mut neighbours, mut now) = (Neighbours::<Vec<u8>>::default(), Instant::now());
        neighbours.want(key(), now);
        let publish = |mac| [Action::Publish(key(), mac)];
        assert_eq!(neighbours.heard_beside(key(), MAC, now), publish(Some(MAC)));
        pass(&mut neighbours, &mut now, REACHABLE + RETRY);
        assert_eq!(neighbours.heard_beside(key(), MAC, now), []);
        assert_eq!(pass(&mut neighbours, &mut now, REACHABLE - RETRY), []);
        assert_eq!(neighbours.heard_beside(key(), [4; 6], now), []);
        assert!(pass(&mut neighbours, &mut now, 5 * RETRY).contains(&publish(None)[0]));
        assert_eq!(neighbours.heard_beside(key(), [4; 6], now), publish(Some([4; 6])));
    }

    #[test]
    fn nobody_is_learned_that_nobody_asked_for() {
        let mut neighbours = Neighbours::<Vec<u8>>::default();
        assert!(neighbours.heard(key(), MAC, Instant::now()).is_empty() && neighbours.is_empty());
    }

    #[test]
    fn frames_for_a_silent_neighbour_and_silent_neighbours_are_bounded() {
        let (mut neighbours, now) = (Neighbours::<Vec<u8>>::default(), Instant::now());
        for _ in 0..WAITING_MAX {
            assert_ne!(neighbours.wait(key(), vec![], now), [Action::GiveUp(1)]);
        }
        assert_eq!(neighbours.wait(key(), vec![], now), [Action::GiveUp(1)]);
        for host in 0..2 * UNANSWERED_MAX as u32 {
            neighbours.wait((PortId::N6, IpAddr::V4((0x0b00_0000 + host).into())), vec![], now);
        }
        assert_eq!(neighbours.len(), UNANSWERED_MAX);
    }

    fn host(number: usize) -> Key {
        (PortId::N6, IpAddr::V4((0x0b00_0000 + number as u32).into()))
    }

    #[test]
    fn of_very_many_neighbours_that_packets_ask_for_and_that_answer_some_are_forgotten_and_no_more_are_asked_for() {
        let (mut neighbours, now) = (Neighbours::<Vec<u8>>::default(), Instant::now());
        for number in 0..8_192 {
            neighbours.wait(host(number), vec![], now);
            neighbours.heard(host(number), MAC, now);
        }
        assert_eq!(neighbours.wait(host(8_192), vec![], now), [Action::GiveUp(1)]);
        assert_eq!(neighbours.want(key(), now), [Action::Solicit(key(), None)]);
        neighbours.heard(key(), MAC, now);
        let actions = neighbours.tick(now + REACHABLE, |_| true);
        assert_eq!(actions.iter().filter_map(Action::lost).count(), 4_096);
        assert!(actions.contains(&Action::Solicit(key(), Some(MAC))));
        assert_eq!(neighbours.wait(host(8_192), vec![], now), [Action::Solicit(host(8_192), None)]);
    }
}
