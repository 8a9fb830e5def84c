//! Asks for what a burst's packets will need of their sessions, before any of them is looked at.
//!
//! Of many sessions little is in the caches. A packet that is classified and decided upon waits for four or five lines, one
//! after the other, and the processor does not look far enough ahead to have the next packet's lines come meanwhile. Three
//! short passes over the burst have the lines of all packets on their way together: where it says where the rules lie, the rules,
//! and what these point to. They believe what headers seem to say: whoever is mistaken has asked for a line in vain.

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
    let mut keys = [None; BURST_MAX];
    for (at, key) in keys.iter_mut().enumerate().take(burst.len()) {
        *key = key_of::<TUNNELS>(burst.get(at).head);
        match *key {
            Some(Key::Short(key)) if TUNNELS => tables.ask_teid(key),
            Some(Key::Short(key)) => from.ask_ue_v4(key),
            _ => {}
        }
    }
    for (list, key) in lists.iter_mut().zip(&keys) {
        *list = match *key {
            Some(Key::Short(key)) if TUNNELS => tables.by_teid(key).map(|rules| rules.list()),
            Some(Key::Short(key)) => from.ue(false, key.into()),
            Some(Key::Long(key)) => from.ue(true, key),
            None => None,
        };
        if let Some(list) = *list {
            tables.rules(list).ask();
        }
    }
    lists.iter().flatten().for_each(|list| tables.rules(*list).ask_behind(policers));
}

/// What a session is found by.
#[derive(Clone, Copy)]
enum Key {
    /// TEID, or IPv4 address.
    Short(u32),
    /// IPv6 address.
    Long(u128),
}

#[inline(always)]
fn key_of<const TUNNELS: bool>(head: &[u8]) -> Option<Key> {
    let is_v6 = match ethertype(head) {
        ETHERTYPE_IPV4 => false,
        ETHERTYPE_IPV6 => true,
        _ => return None,
    };
    let at = match (TUNNELS, is_v6) {
        (true, false) => TEID_V4,
        (true, true) => TEID_V6,
        (false, false) => DESTINATION_V4,
        (false, true) => {
            return head.get(DESTINATION_V6..)?.first_chunk().map(|octets| Key::Long(u128::from_be_bytes(*octets)));
        }
    };
    head.get(at..)?.first_chunk().map(|octets| Key::Short(u32::from_be_bytes(*octets)))
}

#[inline(always)]
fn ethertype(head: &[u8]) -> u16 {
    head.get(12..14).map_or(0, |octets| u16::from_be_bytes([octets[0], octets[1]]))
}
