//! Finds the sessions of a whole burst, and has what its packets will need of them on the way before any of them is decided upon.
//!
//! Of many sessions little is in the caches. A packet that is classified and decided upon waits for four or five lines, one
//! after the other, and the processor does not look far enough ahead to have the next packet's lines come meanwhile. So the lines
//! of many packets are asked for together, in loops that do little else: where it says where the rules lie, the rules, and what
//! these point to. While rules are on their way the headers of their packets are looked at closely. What is asked for first
//! believes what headers seem to say: whoever is mistaken has asked for a line in vain.

use port::{BURST_MAX, Burst};

use super::classify::classify_to;
use super::{Class, ETHERNET_LEN};
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
/// Packets whose rules are asked for at a time: a core waits for two dozen lines at most, and those of what the rules of the
/// packets before point to are on their way as well.
pub const CHUNK: usize = 16;

/// The lists of rules of so many packets, as far as they were looked for and found.
type Lists = [Option<u32>; CHUNK];

/// Classifies the packets of a burst from a network, with all that they will need asked for.
#[inline(never)]
pub(super) fn classify_ahead<const TUNNELS: bool>(
    tables: &Version,
    from: &Network,
    policers: &Policers,
    burst: &Burst<'_>,
    classes: &mut [Class],
) {
    let mut keys = [None; BURST_MAX];
    for (at, key) in keys.iter_mut().enumerate().take(classes.len()) {
        *key = key_of::<TUNNELS>(burst.get(at).head);
        match *key {
            Some(Key::Short(key)) if TUNNELS => tables.ask_teid(key),
            Some(Key::Short(key)) => from.ask_ue_v4(key),
            _ => {}
        }
    }
    let mut asked = [None; CHUNK];
    for (number, (classes, keys)) in classes.chunks_mut(CHUNK).zip(keys.chunks(CHUNK)).enumerate() {
        let packets = (0..classes.len()).map(|at| burst.get(number * CHUNK + at));
        let mut lists = [None; CHUNK];
        for ((list, key), packet) in lists.iter_mut().zip(keys).zip(packets.clone()) {
            *list = key.and_then(|key| find::<TUNNELS>(tables, from, key, packet.head));
            list.iter().for_each(|list| tables.rules(*list).ask());
        }
        ask_behind(tables, policers, &asked);
        for ((class, list), packet) in classes.iter_mut().zip(&lists).zip(packets) {
            classify_to::<TUNNELS>(tables, from, packet.head, packet.len(), *list, class);
        }
        asked = lists;
    }
    ask_behind(tables, policers, &asked);
}

#[inline(always)]
fn ask_behind(tables: &Version, policers: &Policers, lists: &Lists) {
    lists.iter().flatten().for_each(|list| tables.rules(*list).ask_behind(policers));
}

/// The list of rules of a packet that begins with `head`.
#[inline(always)]
fn find<const TUNNELS: bool>(tables: &Version, from: &Network, key: Key, head: &[u8]) -> Option<u32> {
    match key {
        Key::Short(key) if TUNNELS => tables.by_teid(key).map(|rules| rules.list()),
        Key::Short(key) => from.ue(false, key.into()),
        Key::Long => from.ue(true, u128::from_be_bytes(*head.get(DESTINATION_V6..)?.first_chunk()?)),
    }
}

/// The list of rules that is found for a packet before it is looked at closely.
#[cfg(test)]
pub(super) fn believed<const TUNNELS: bool>(tables: &Version, from: &Network, head: &[u8]) -> Option<u32> {
    find::<TUNNELS>(tables, from, key_of::<TUNNELS>(head)?, head)
}

/// What a session is found by.
#[derive(Clone, Copy)]
enum Key {
    /// TEID, or IPv4 address.
    Short(u32),
    /// IPv6 address, which is read where it is.
    Long,
}

#[inline(always)]
fn key_of<const TUNNELS: bool>(head: &[u8]) -> Option<Key> {
    let ethertype = u16::from_be_bytes(*head.get(12..)?.first_chunk()?);
    let at = match (TUNNELS, ethertype) {
        (true, ETHERTYPE_IPV4) => TEID_V4,
        (true, ETHERTYPE_IPV6) => TEID_V6,
        (false, ETHERTYPE_IPV4) => DESTINATION_V4,
        (false, ETHERTYPE_IPV6) => return Some(Key::Long),
        _ => return None,
    };
    head.get(at..)?.first_chunk().map(|octets| Key::Short(u32::from_be_bytes(*octets)))
}
