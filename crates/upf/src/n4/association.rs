//! Associations with session managers, and the heartbeats that tell whether they are still there (TS 29.244, 6.2.2, 6.2.6).

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use pfcp::node::Heartbeat;
use pfcp::{NodeId, RecoveryTimeStamp, Request};
use serde::{Deserialize, Serialize};

/// Names an association, also after another has taken its node's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct AssociationId(pub u64);

/// An association.
#[derive(Debug)]
pub(super) struct Association {
    pub id: AssociationId,
    pub node_id: NodeId,
    /// Where the peer is asked whether it lives.
    pub peer: SocketAddr,
    /// Its start.
    pub recovery: RecoveryTimeStamp,
    /// What it was told that this UPF can do.
    pub told_features: Vec<u8>,
    pulse: Pulse,
}

/// How heartbeats are timed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub t1: Duration,
    pub n1: u32,
}

#[derive(Debug)]
enum Pulse {
    /// The next heartbeat is due.
    Due(Instant),
    /// A heartbeat is not answered yet.
    Sent { sequence: u32, octets: Vec<u8>, tries: u32, again: Instant },
}

/// What is to be done about an association now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Beat {
    /// Nothing.
    Wait,
    /// Send this.
    Send(Vec<u8>),
    /// The peer is gone.
    Lost,
}

impl Association {
    pub fn new(
        id: AssociationId,
        node_id: NodeId,
        peer: SocketAddr,
        recovery: RecoveryTimeStamp,
        first: Instant,
    ) -> Self {
        Self { id, node_id, peer, recovery, told_features: vec![], pulse: Pulse::Due(first) }
    }

    /// When [`Association::beat`] has something to do.
    pub fn due(&self) -> Instant {
        match self.pulse {
            Pulse::Due(at) => at,
            Pulse::Sent { again, .. } => again,
        }
    }

    /// Sends a heartbeat when one is due, and again what was not answered in time.
    pub fn beat(
        &mut self,
        own: RecoveryTimeStamp,
        mut next_sequence: impl FnMut() -> u32,
        pace: Pace,
        now: Instant,
    ) -> Beat {
        if now < self.due() {
            return Beat::Wait;
        }
        let again = now + pace.t1;
        match &mut self.pulse {
            Pulse::Due(_) => {
                let sequence = next_sequence();
                let octets = Request::Heartbeat(Heartbeat { recovery: own }).encode(0, sequence);
                self.pulse = Pulse::Sent { sequence, octets: octets.clone(), tries: 1, again };
                Beat::Send(octets)
            }
            Pulse::Sent { tries, .. } if *tries >= pace.n1 => Beat::Lost,
            Pulse::Sent { octets, tries, again: at, .. } => {
                *tries += 1;
                *at = again;
                Beat::Send(octets.clone())
            }
        }
    }

    /// Whether a heartbeat response with this sequence number, from `peer`, answers what was sent.
    pub fn is_answer(&self, from: IpAddr, number: u32) -> bool {
        matches!(self.pulse, Pulse::Sent { sequence, .. } if sequence == number) && self.peer.ip() == from
    }

    /// The heartbeat was answered.
    pub fn answered(&mut self, next: Instant) {
        self.pulse = Pulse::Due(next);
    }

    /// Whether `recovery` tells that the peer has started again. An earlier time is a message that was held up on its way.
    pub fn is_restart(&self, recovery: RecoveryTimeStamp) -> bool {
        recovery.is_after(self.recovery)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(10);
    const PACE: Pace = Pace { t1: Duration::from_secs(1), n1: 3 };

    fn association(now: Instant) -> Association {
        let node_id = NodeId::Fqdn("smf".into());
        Association::new(AssociationId(1), node_id, "192.0.2.1:8805".parse().unwrap(), RecoveryTimeStamp(100), now)
    }

    #[test]
    fn a_silent_peer_is_asked_n1_times_with_the_same_octets_and_then_lost() {
        let now = Instant::now();
        let mut peer = association(now);
        let beats: Vec<_> =
            (0..4).map(|s| peer.beat(RecoveryTimeStamp(1), || s + 1, PACE, now + PACE.t1 * s)).collect();
        assert!(matches!(&beats[0], Beat::Send(octets) if beats[1] == Beat::Send(octets.clone())));
        assert_eq!((&beats[1], &beats[3]), (&beats[2], &Beat::Lost));
    }

    #[test]
    fn an_answer_ends_the_wait_if_it_is_one() {
        let now = Instant::now();
        let mut peer = association(now);
        assert!(matches!(peer.beat(RecoveryTimeStamp(1), || 7, PACE, now), Beat::Send(_)));
        assert!(!peer.is_answer("192.0.2.2".parse().unwrap(), 7));
        assert!(!peer.is_answer("192.0.2.1".parse().unwrap(), 6));
        assert!(peer.is_answer("192.0.2.1".parse().unwrap(), 7));
        peer.answered(now + EVERY);
        assert_eq!(peer.beat(RecoveryTimeStamp(1), || 8, PACE, now + PACE.t1 * 5), Beat::Wait);
        assert!(matches!(peer.beat(RecoveryTimeStamp(1), || 8, PACE, now + EVERY), Beat::Send(_)));
    }

    #[test]
    fn only_a_later_start_is_a_restart() {
        let peer = association(Instant::now());
        assert!(peer.is_restart(RecoveryTimeStamp(101)));
        assert!(!peer.is_restart(RecoveryTimeStamp(100)));
        assert!(!peer.is_restart(RecoveryTimeStamp(99)));
    }
}
