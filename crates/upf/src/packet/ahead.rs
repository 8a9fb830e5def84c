//! Asks for what a burst's packets will need of their sessions, before any of them is looked at.
//!
//! Of many sessions little is in the caches. A packet that is classified and decided upon waits for four or five lines, one
//! after the other, and the processor does not look far enough ahead to have the next packet's lines come meanwhile. Three
//! short passes over the burst have the lines of all packets on their way together: where the rules lie, the rules, and
//! what these point to. They believe what headers seem to say: whoever is mistaken has asked for a line in vain.

use port::{BURST_MAX, Burst};

use super::ETHERNET_LEN;
use crate::ip::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use crate::policer::Policers;
use crate::tables::{Network, Version};

/// Where the TEID is behind an outer IPv4 header without options, or an IPv6 header without extensions, UDP and the first four
/// octets of GTP-U.
const TEID_V4: usize = ETHERNET_LEN + 20 + 8 + 4;
const TEID_V6: usize = ETHERNET_LEN + 40 + 8 + 4;
/// Where destination addresses are.
const DESTINATION_V4: usize = ETHERNET_LEN + 16;
const DESTINATION_V6: usize = ETHERNET_LEN + 24;

/// The lists of rules of a burst's packets, as far as they were looked for and found.
pub(crate) type Lists = [Option<u32>; BURST_MAX];

/// Asks for the lines of all sessions that the burst is of.
#[inline(always)]
pub(crate) fn ask<const TUNNELS: bool>(
    tables: &Version,
    from: &Network,
    policers: &Policers,
    burst: &Burst<'_>,
    lists: &mut Lists,
) {
    if tables.is_large() && burst.len() > 1 {
        ask_all::<TUNNELS>(tables, from, policers, burst, lists);
    }
}

#[inline(never)]
fn ask_all<const TUNNELS: bool>(
    tables: &Version,
    from: &Network,
    policers: &Policers,
    burst: &Burst<'_>,
    lists: &mut Lists,
) {
    for (at, list) in lists.iter_mut().enumerate().take(burst.len()) {
        let head = burst.get(at).head;
        *list = if TUNNELS { tunnelled(tables, head) } else { plain(from, head) };
    }
    let found = || lists.iter().flatten();
    found().for_each(|list| tables.rules(*list).ask());
    found().for_each(|list| tables.rules(*list).ask_behind(policers));
}

#[inline(always)]
fn tunnelled(tables: &Version, head: &[u8]) -> Option<u32> {
    let at = if ethertype(head) == ETHERTYPE_IPV6 { TEID_V6 } else { TEID_V4 };
    let teid = head.get(at..)?.first_chunk().map(|octets| u32::from_be_bytes(*octets))?;
    tables.by_teid(teid).map(|rules| rules.list())
}

#[inline(always)]
fn plain(from: &Network, head: &[u8]) -> Option<u32> {
    match ethertype(head) {
        ETHERTYPE_IPV4 => {
            let octets = head.get(DESTINATION_V4..)?.first_chunk()?;
            from.ue(false, u32::from_be_bytes(*octets).into())
        }
        ETHERTYPE_IPV6 => {
            let octets = head.get(DESTINATION_V6..)?.first_chunk()?;
            from.ue(true, u128::from_be_bytes(*octets))
        }
        _ => None,
    }
}

#[inline(always)]
fn ethertype(head: &[u8]) -> u16 {
    head.get(12..14).map_or(0, |octets| u16::from_be_bytes([octets[0], octets[1]]))
}
