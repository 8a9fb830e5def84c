//! Finds the sessions of a whole burst, and has what its packets will need of them on the way before any of them is decided upon.
//!
//! Of many sessions little is in the caches. A packet that is classified and decided upon waits for two to five lines, one
//! after the other, and the processor does not look far enough ahead to have the next packet's lines come meanwhile. So the lines
//! of many packets are asked for together, in loops that do as little else as they can: where it says where the rules lie, the rules,
//! and what these point to. Whoever asks for a line whose page's address is not at hand waits for that, and only what is close
//! behind is done meanwhile: asked for between other work, lines take longer. They are asked into the cache that most lines come into
//! at a time ([`port::CacheLevel`]). While rules are on their way the headers of their packets are looked at closely. What is asked for
//! first believes what headers seem to say: whoever is mistaken has asked for a line in vain.

use port::{BURST_MAX, Burst, CacheLevel};

use super::classify::classify_to;
use super::{Class, ETHERNET_LEN};
use crate::ip::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, half, word};
use crate::tables::{Network, Version};

const ETHERTYPE: usize = ETHERNET_LEN - 2;
/// Where the TEID is behind an outer IPv4 header without options, or an IPv6 header without extensions, UDP and the first four
/// octets of GTP-U.
const TEID_V4: usize = ETHERNET_LEN + 20 + 8 + 4;
const TEID_V6: usize = ETHERNET_LEN + 40 + 8 + 4;
/// Where destination addresses are.
const DESTINATION_V4: usize = ETHERNET_LEN + 16;
const DESTINATION_V6: usize = ETHERNET_LEN + 24;
/// Packets whose headers are looked at while what the rules of as many others point to is on its way.
///
/// Lines that are asked for close together have their pages' addresses looked up side by side, which is probably what they wait for
/// where the host of a virtual machine has small pages for it: 64 at a time took 1.4 ns a packet less than 16 where each rule had one
/// such line (Emerald Rapids).
const fn chunk(level: CacheLevel) -> usize {
    match level {
        CacheLevel::First => BURST_MAX,
        CacheLevel::Second => 16,
    }
}

/// Stands for the list of rules of a packet of which none is known. No list begins there.
const NOWHERE: u32 = u32::MAX;

/// Classifies the packets of a burst from a network, with all that they will need asked for.
#[inline(never)]
pub(super) fn classify_ahead<const TUNNELS: bool>(
    tables: &Version,
    from: &Network,
    burst: &Burst<'_>,
    classes: &mut [Class],
) {
    // A constant in each, at which loops need not look.
    match tables.level() {
        CacheLevel::First => classify_into::<TUNNELS>(CacheLevel::First, tables, from, burst, classes),
        CacheLevel::Second => classify_into::<TUNNELS>(CacheLevel::Second, tables, from, burst, classes),
    }
}

/// The same, asked for into this cache.
#[inline(always)]
fn classify_into<const TUNNELS: bool>(
    level: CacheLevel,
    tables: &Version,
    from: &Network,
    burst: &Burst<'_>,
    classes: &mut [Class],
) {
    let count = classes.len().min(BURST_MAX);
    let mut keys = [0; BURST_MAX];
    for (at, key) in keys[..count].iter_mut().enumerate() {
        *key = key_of::<TUNNELS>(burst.get(at).head).unwrap_or(0);
        match TUNNELS {
            true => tables.ask_teid(*key, level),
            false => from.ask_ue_v4(*key, level),
        }
    }
    let mut lists = [NOWHERE; BURST_MAX];
    for (at, list) in lists[..count].iter_mut().enumerate() {
        *list = find::<TUNNELS>(tables, from, keys[at], || burst.get(at).head).unwrap_or(NOWHERE);
        tables.rules(*list).ask(level);
    }
    for begin in (0..count).step_by(chunk(level)) {
        let chunk = begin..(begin + chunk(level)).min(count);
        for at in chunk.clone() {
            let (packet, list) = (burst.get(at), lists[at]);
            let list = (list != NOWHERE).then_some(list);
            classify_to::<TUNNELS>(tables, from, packet.head, packet.len(), list, &mut classes[at]);
        }
        lists[chunk].iter().for_each(|list| tables.rules(*list).ask_behind(level));
    }
}

/// The list of rules of a packet whose key was asked for, or 0 if it has none. What it begins with is looked at only where the key is not
/// found at once.
#[inline(always)]
fn find<'p, const TUNNELS: bool>(
    tables: &Version,
    from: &Network,
    key: u32,
    head: impl FnOnce() -> &'p [u8],
) -> Option<u32> {
    let asked = match TUNNELS {
        true => tables.asked_teid(key),
        false => from.asked_ue_v4(key),
    };
    // Not `or_else`, which the compiler leaves a function of its own.
    match asked {
        Some(list) => Some(list),
        None => find_elsewhere::<TUNNELS>(tables, from, head()),
    }
}

/// The same wherever it may be.
#[cold]
fn find_elsewhere<const TUNNELS: bool>(tables: &Version, from: &Network, head: &[u8]) -> Option<u32> {
    match (key_of::<TUNNELS>(head), TUNNELS) {
        (Some(key), true) => tables.by_teid(key).map(|rules| rules.list()),
        (Some(key), false) => from.ue(false, key.into()),
        (None, true) => None,
        (None, false) => {
            let head = head.first_chunk::<{ DESTINATION_V6 + 16 }>()?;
            let destination =
                head[DESTINATION_V6..].first_chunk().filter(|_| half(head, ETHERTYPE) == ETHERTYPE_IPV6)?;
            from.ue(true, u128::from_be_bytes(*destination))
        }
    }
}

/// The list of rules that is found for a packet before it is looked at closely.
#[cfg(test)]
pub(super) fn believed<const TUNNELS: bool>(tables: &Version, from: &Network, head: &[u8]) -> Option<u32> {
    find::<TUNNELS>(tables, from, key_of::<TUNNELS>(head).unwrap_or(0), || head)
}

/// The TEID or the IPv4 address that a packet's session is found by.
#[inline(always)]
fn key_of<const TUNNELS: bool>(head: &[u8]) -> Option<u32> {
    match TUNNELS {
        true => key_at::<{ TEID_V4 + 4 }>(head).or_else(|| teid_v6(head)),
        false => key_at::<{ DESTINATION_V4 + 4 }>(head),
    }
}

/// The four octets before `END` of a packet over IPv4.
#[inline(always)]
fn key_at<const END: usize>(head: &[u8]) -> Option<u32> {
    let head = head.first_chunk::<END>()?;
    (half(head, ETHERTYPE) == ETHERTYPE_IPV4).then(|| word(head, END - 4))
}

#[cold]
fn teid_v6(head: &[u8]) -> Option<u32> {
    let head = head.first_chunk::<{ TEID_V6 + 4 }>()?;
    (half(head, ETHERTYPE) == ETHERTYPE_IPV6).then(|| word(head, TEID_V6))
}
