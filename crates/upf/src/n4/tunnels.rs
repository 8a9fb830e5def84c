//! Which sessions lead into which tunnels of peers. There are as many as sessions and more, so of each there are only a
//! digest and the session, which knows the rest.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

/// The tunnels.
#[derive(Debug, Default)]
pub(super) struct Tunnels {
    /// Digest of address and TEID, and the two halves of the UPF's SEID, which so need no padding.
    sessions: BTreeSet<(u32, [u32; 2])>,
    /// How many lead to each peer.
    peers: BTreeMap<IpAddr, usize>,
    digest: RandomState,
}

impl Tunnels {
    /// The session leads into these tunnels.
    pub fn list(&mut self, up_seid: u64, tunnels: &BTreeSet<(IpAddr, u32)>) {
        for &(address, teid) in tunnels {
            self.sessions.insert((self.digest(address, teid), halves(up_seid)));
            *self.peers.entry(address).or_default() += 1;
        }
    }

    /// The session does not lead into these tunnels any more, which it did.
    pub fn unlist(&mut self, up_seid: u64, tunnels: &BTreeSet<(IpAddr, u32)>) {
        for &(address, teid) in tunnels {
            self.sessions.remove(&(self.digest(address, teid), halves(up_seid)));
            let count = self.peers.entry(address).or_default();
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.peers.remove(&address);
            }
        }
    }

    /// Whether any session leads to the peer.
    pub fn lead_to(&self, peer: IpAddr) -> bool {
        self.peers.contains_key(&peer)
    }

    /// Sessions that may lead into the tunnel: all that do, and hardly any other.
    pub fn sessions(&self, address: IpAddr, teid: u32) -> impl Iterator<Item = u64> {
        let digest = self.digest(address, teid);
        let range = self.sessions.range((digest, [0; 2])..=(digest, [u32::MAX; 2]));
        range.map(|&(_, [high, low])| u64::from(high) << 32 | u64::from(low))
    }

    fn digest(&self, address: IpAddr, teid: u32) -> u32 {
        self.digest.hash_one((address, teid)) as u32
    }
}

/// How long after a tunnel's peer did not know it that may be told again.
const TOLD_AGAIN_NS: u64 = 10_000_000_000;

/// Tunnels that their peers do not know, of which session managers were told not long ago.
#[derive(Debug, Default)]
pub(super) struct Told {
    at_ns: BTreeMap<(IpAddr, u32), u64>,
    /// In the order in which they were told.
    order: VecDeque<(IpAddr, u32)>,
}

impl Told {
    /// Whether that would be news of the tunnel.
    pub fn is_news(&self, tunnel: (IpAddr, u32), now_ns: u64) -> bool {
        self.at_ns.get(&tunnel).is_none_or(|&told_ns| told_ns + TOLD_AGAIN_NS <= now_ns)
    }

    /// It is told.
    pub fn tell(&mut self, tunnel: (IpAddr, u32), now_ns: u64) {
        while let Some(&old) = self.order.front().filter(|old| self.is_news(**old, now_ns)) {
            self.order.pop_front();
            self.at_ns.remove(&old);
        }
        self.order.push_back(tunnel);
        self.at_ns.insert(tunnel, now_ns);
    }
}

fn halves(up_seid: u64) -> [u32; 2] {
    [(up_seid >> 32) as u32, up_seid as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_tunnels_that_are_told_none_is_kept_for_longer_than_it_matters() {
        let mut told = Told::default();
        let tunnel = |teid| (IpAddr::from([10, 3, 0, 1]), teid);
        for teid in 0..100 {
            let now_ns = u64::from(teid) * 1_000_000_000;
            assert!(told.is_news(tunnel(teid % 20), now_ns));
            told.tell(tunnel(teid % 20), now_ns);
            assert!(!told.is_news(tunnel(teid % 20), now_ns + TOLD_AGAIN_NS - 1));
        }
        assert_eq!((told.order.len(), told.at_ns.len()), (10, 10));
    }

    #[test]
    fn a_tunnel_leads_to_all_its_sessions_and_a_peer_is_known_while_any_does() {
        let [one, other]: [IpAddr; 2] = ["10.3.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        let mut tunnels = Tunnels::default();
        let (shared, both) = (BTreeSet::from([(one, 7)]), BTreeSet::from([(one, 7), (other, 7)]));
        tunnels.list(u64::MAX, &shared);
        tunnels.list(5 << 32 | 3, &both);
        let found = |tunnels: &Tunnels, address, teid| tunnels.sessions(address, teid).collect::<Vec<_>>();
        assert_eq!(found(&tunnels, one, 7), [5 << 32 | 3, u64::MAX]);
        assert_eq!(found(&tunnels, other, 7), [5 << 32 | 3]);
        assert!(found(&tunnels, other, 8).is_empty());
        tunnels.unlist(5 << 32 | 3, &both);
        assert_eq!(found(&tunnels, one, 7), [u64::MAX]);
        assert!(tunnels.lead_to(one) && !tunnels.lead_to(other));
        tunnels.unlist(u64::MAX, &shared);
        assert!(!tunnels.lead_to(one) && tunnels.sessions.is_empty() && tunnels.peers.is_empty());
    }
}
