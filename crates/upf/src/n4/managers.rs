//! Session managers that this UPF asks for an association (TS 29.244, 6.2.6.3), again and again until they accept.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::association::Pace;

/// The longest pause before a manager that does not answer, or that rejects, is asked again.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The managers, by number.
#[derive(Debug)]
pub(super) struct Managers {
    first_pause: Duration,
    all: Vec<Manager>,
}

#[derive(Debug)]
struct Manager {
    address: SocketAddr,
    state: State,
    /// Before it is asked again.
    pause: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is to be asked then; at once where there is no time.
    Due(Option<Instant>),
    /// It was asked.
    Asked,
    /// There is an association with it.
    Associated,
    /// It is not asked any more.
    Left,
}

impl Managers {
    pub fn new(addresses: &[SocketAddr], pace: Pace) -> Self {
        let manager = |&address| Manager { address, state: State::Due(None), pause: pace.t1 };
        Self { first_pause: pace.t1, all: addresses.iter().map(manager).collect() }
    }

    /// Those that are to be asked at `now`, and count as asked then: numbers and addresses.
    pub fn take_due(&mut self, now: Instant) -> Vec<(usize, SocketAddr)> {
        let is_due = |state| matches!(state, State::Due(at) if at.is_none_or(|at| at <= now));
        let due = self.all.iter_mut().enumerate().filter(|(_, manager)| is_due(manager.state));
        let ask = |(number, manager): (usize, &mut Manager)| {
            manager.state = State::Asked;
            (number, manager.address)
        };
        due.map(ask).collect()
    }

    /// When [`Managers::take_due`] has something. What is due at once was taken when the node began.
    pub fn due(&self) -> Option<Instant> {
        let at = |manager: &Manager| if let State::Due(at) = manager.state { at } else { None };
        self.all.iter().filter_map(at).min()
    }

    /// The manager does not answer, or rejects: it is asked again after a pause, longer each time.
    pub fn failed(&mut self, number: usize, now: Instant) {
        let manager = &mut self.all[number];
        if manager.state == State::Asked {
            let again_s = manager.pause.as_secs_f64();
            tracing::warn!(peer = %manager.address, again_s, "no association yet; it is asked again");
            manager.state = State::Due(Some(now + manager.pause));
            manager.pause = (2 * manager.pause).min(LONGEST_PAUSE);
        }
    }

    /// There is an association with whoever is at `address`, whoever asked for it: numbers of those who were asked.
    pub fn associated(&mut self, address: IpAddr) -> Vec<usize> {
        let first_pause = self.first_pause;
        let there = self.all.iter_mut().enumerate().filter(|(_, manager)| manager.address.ip() == address);
        let associated = there.filter(|(_, manager)| manager.state != State::Left).map(|(number, manager)| {
            manager.pause = first_pause;
            (number, std::mem::replace(&mut manager.state, State::Associated))
        });
        associated.filter(|&(_, former)| former == State::Asked).map(|(number, _)| number).collect()
    }

    /// The association with whoever is at `address` has ended.
    pub fn lost(&mut self, address: IpAddr, now: Instant) {
        let there = self.all.iter_mut().filter(|manager| manager.address.ip() == address);
        there.filter(|manager| manager.state == State::Associated).for_each(|manager| {
            manager.state = State::Due(Some(now + manager.pause));
        });
    }

    /// Nobody is asked any more.
    pub fn leave(&mut self) {
        self.all.iter_mut().for_each(|manager| manager.state = State::Left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_asked_less_and_less_often_until_it_accepts() {
        let (now, t1) = (Instant::now(), Duration::from_secs(1));
        let address: SocketAddr = "192.0.2.1:8805".parse().unwrap();
        let mut managers = Managers::new(&[address], Pace { t1, n1: 3 });
        assert_eq!(managers.take_due(now), [(0, address)]);
        assert_eq!((managers.take_due(now), managers.due()), (vec![], None));
        let mut pauses = vec![];
        for _ in 0..8 {
            managers.failed(0, now);
            let due = managers.due().unwrap();
            assert_eq!((managers.take_due(due - t1 / 2), managers.take_due(due).len()), (vec![], 1));
            pauses.push((due - now).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(managers.associated(address.ip()), [0]);
        managers.lost(address.ip(), now);
        assert_eq!(managers.due(), Some(now + t1));
        managers.leave();
        assert_eq!(managers.take_due(now + t1), []);
    }
}
