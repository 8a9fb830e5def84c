//! Which sessions lead into which tunnels of peers. There are as many as sessions and more, so of each there are only a
//! digest and the session, which knows the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use super::contents::Contents;

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
    pub fn list(&mut self, up_seid: u64, contents: &Contents) {
        for (address, teid) in contents.tunnels() {
            self.sessions.insert((self.digest(address, teid), halves(up_seid)));
            *self.peers.entry(address).or_default() += 1;
        }
    }

    /// The session does not lead into these tunnels any more, which it did.
    pub fn unlist(&mut self, up_seid: u64, contents: &Contents) {
        for (address, teid) in contents.tunnels() {
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

fn halves(up_seid: u64) -> [u32; 2] {
    [(up_seid >> 32) as u32, up_seid as u32]
}
