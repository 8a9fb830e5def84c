use std::collections::HashMap;

use proptest::prelude::*;

use super::flow::{ICMP, TCP};
use super::log::{self, Entry, LogReader};
use super::terms::{Filtering, Ports};
use super::translation::End;
use super::*;
use crate::ip::UDP;

const UE: u32 = 0x0a2d_0001;
const PEER: u32 = 0xc000_0201;
const OTHER: u32 = 0xc000_0202;
const OUTSIDE: u32 = 0xcb00_7101;
const SECOND: u64 = 1_000_000_000;

struct Bench {
    translator: Translator,
    log: log::Log,
    reader: LogReader,
    now: u64,
}

fn bench(change: impl Fn(&mut SourceNat)) -> Bench {
    let mut terms = SourceNat::with(vec![]);
    terms.ports = Ports { first: 2_000, last: 2_007 };
    (terms.ports_per_block, terms.blocks_per_ue, terms.max_bindings) = (4, 1, 16);
    terms.block_cooling_s = 0;
    change(&mut terms);
    let (log, reader) = log::channel();
    let blocks = Blocks::new(&terms, [OUTSIDE].into(), 0..u16::MAX);
    Bench { translator: Translator::new(&terms, blocks, terms.max_bindings as usize), log, reader, now: 0 }
}

/// A packet with flags of TCP, identification and fragment offset.
fn packet(protocol: u8, from: (u32, u16), to: (u32, u16)) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0];
    packet.extend([from.0.to_be_bytes(), to.0.to_be_bytes()].concat());
    packet.extend([from.1.to_be_bytes(), to.1.to_be_bytes()].concat());
    packet.resize(40, 0);
    packet
}

/// A segment of TCP with these flags.
fn segment(flags: u8, from: (u32, u16), to: (u32, u16)) -> Vec<u8> {
    let mut packet = packet(TCP, from, to);
    packet[33] = flags;
    packet
}

const FIN: u8 = 1;
const SYN: u8 = 2;

/// An ICMP message about, or with, what it begins with.
fn icmp(kind: u8, from: u32, to: u32, identifier: u16) -> Vec<u8> {
    let mut packet = packet(ICMP, (from, u16::from(kind) << 8), (to, 0));
    packet[24..26].copy_from_slice(&identifier.to_be_bytes());
    packet
}

impl Bench {
    fn out(&mut self, packet: &[u8]) -> Result<(u32, u16), DropReason> {
        self.out_of(packet, 1)
    }

    fn out_of(&mut self, packet: &[u8], up_seid: u64) -> Result<(u32, u16), DropReason> {
        let parsed = Packet::parse(packet, packet.len()).unwrap();
        let translation = self.translator.outgoing(&parsed, up_seid, self.now, &mut self.log)?;
        assert_eq!(translation.end, End::Source);
        Ok((translation.address, translation.port))
    }

    fn back(&mut self, packet: &[u8]) -> Result<(u32, u16), DropReason> {
        let admitted = self.translator.incoming(&Packet::parse(packet, packet.len()).unwrap(), self.now)?;
        Ok((admitted.translation.address, admitted.translation.port))
    }

    fn sweep(&mut self) {
        self.translator.sweep(100, self.now, |_, up_seid| up_seid != 9, &mut self.log);
    }

    fn told(&mut self) -> Vec<Entry> {
        std::iter::from_fn(|| self.reader.take()).collect()
    }
}

#[test]
fn a_port_of_a_ue_is_one_port_outside_whoever_it_sends_to() {
    let mut bench = bench(|_| {});
    let first = bench.out(&packet(UDP, (UE, 7), (PEER, 53))).unwrap();
    assert_eq!(first, (OUTSIDE, 2_000));
    assert_eq!(bench.out(&packet(UDP, (UE, 7), (OTHER, 99))), Ok(first));
    assert_eq!(bench.out(&packet(UDP, (UE, 8), (PEER, 53))), Ok((OUTSIDE, 2_001)));
    assert_eq!(bench.out(&packet(TCP, (UE, 7), (PEER, 53))), Ok((OUTSIDE, 2_002)));
    assert_eq!(bench.back(&packet(UDP, (PEER, 53), first)), Ok((UE, 7)));
    assert_eq!(bench.translator.in_use(), (3, 1));
}

#[test]
fn whoever_may_answer_depends_on_the_filtering() {
    let may = |filtering: Filtering| {
        let mut bench = bench(|terms| terms.filtering = filtering);
        let outside = bench.out(&packet(UDP, (UE, 7), (PEER, 53))).unwrap();
        [(PEER, 53), (PEER, 54), (OTHER, 53)].map(|peer| bench.back(&packet(UDP, peer, outside)).is_ok())
    };
    assert_eq!(may(Filtering::EndpointIndependent), [true, true, true]);
    assert_eq!(may(Filtering::AddressDependent), [true, true, false]);
    assert_eq!(may(Filtering::AddressAndPortDependent), [true, false, false]);
    let mut bench = bench(|_| {});
    let outside = bench.out(&packet(UDP, (UE, 7), (PEER, 53))).unwrap();
    assert_eq!(bench.back(&packet(UDP, (OTHER, 53), outside)), Err(DropReason::NatFiltered));
    assert_eq!(bench.back(&packet(UDP, (PEER, 53), (OUTSIDE, 2_003))), Err(DropReason::NatNoBinding));
}

#[test]
fn a_ue_has_no_more_ports_than_its_blocks_and_one_line_tells_of_each_block() {
    let mut bench = bench(|terms| terms.blocks_per_ue = 2);
    for port in 0..8 {
        bench.out(&packet(UDP, (UE, port), (PEER, 53))).unwrap();
    }
    assert_eq!(bench.out(&packet(UDP, (UE, 8), (PEER, 53))), Err(DropReason::NatExhausted));
    assert_eq!(bench.out_of(&packet(UDP, (UE + 1, 8), (PEER, 53)), 2), Err(DropReason::NatExhausted));
    let told: Vec<_> = bench.told().iter().map(|entry| (entry.given, entry.up_seid, entry.ports)).collect();
    assert_eq!(told, [(true, 1, (2_000, 2_003)), (true, 1, (2_004, 2_007))]);
    bench.now = 300 * SECOND;
    bench.sweep();
    let told: Vec<_> = bench.told().iter().map(|entry| (entry.given, entry.ports)).collect();
    assert_eq!(told, [(false, (2_000, 2_003)), (false, (2_004, 2_007))]);
    assert_eq!(bench.translator.in_use(), (0, 0));
    bench.out_of(&packet(UDP, (UE + 1, 8), (PEER, 53)), 2).unwrap();
}

#[test]
fn what_the_ue_sends_keeps_a_binding_of_udp_and_what_it_gets_does_not() {
    let mut bench = bench(|_| {});
    let outside = bench.out(&packet(UDP, (UE, 7), (PEER, 53))).unwrap();
    bench.now = 200 * SECOND;
    bench.back(&packet(UDP, (PEER, 53), outside)).unwrap();
    bench.now = 299 * SECOND;
    bench.back(&packet(UDP, (PEER, 53), outside)).unwrap();
    bench.now = 300 * SECOND;
    assert_eq!(bench.back(&packet(UDP, (PEER, 53), outside)), Err(DropReason::NatNoBinding));
    bench.out(&packet(UDP, (UE, 7), (PEER, 53))).unwrap();
    bench.now = 599 * SECOND;
    bench.back(&packet(UDP, (PEER, 53), outside)).unwrap();
}

#[test]
fn a_connection_that_begins_or_ends_is_forgotten_sooner() {
    let mut bench = bench(|_| {});
    let (ue, peer) = ((UE, 7), (PEER, 80));
    let outside = bench.out(&segment(SYN, ue, peer)).unwrap();
    bench.now = 239 * SECOND;
    bench.back(&segment(SYN, peer, outside)).unwrap();
    bench.out(&segment(0, ue, peer)).unwrap();
    bench.now += 7_439 * SECOND;
    bench.out(&segment(FIN, ue, peer)).unwrap();
    bench.back(&segment(FIN, peer, outside)).unwrap();
    // The last acknowledgement keeps nothing.
    bench.now += 200 * SECOND;
    bench.out(&segment(0, ue, peer)).unwrap();
    bench.now += 40 * SECOND;
    assert_eq!(bench.back(&segment(0, peer, outside)), Err(DropReason::NatNoBinding));
}

#[test]
fn the_end_of_one_connection_does_not_end_another_one_of_the_same_port() {
    let mut bench = bench(|_| {});
    let outside = bench.out(&segment(SYN, (UE, 7), (PEER, 80))).unwrap();
    bench.back(&segment(SYN, (PEER, 80), outside)).unwrap();
    bench.out(&segment(SYN, (UE, 7), (OTHER, 80))).unwrap();
    bench.now = 7_000 * SECOND;
    bench.back(&segment(0, (PEER, 80), outside)).unwrap();
    assert_eq!(bench.back(&segment(0, (OTHER, 80), outside)), Err(DropReason::NatFiltered));
}

#[test]
fn a_ue_pings_and_is_not_pinged() {
    let mut bench = bench(|_| {});
    for (query, answer) in [(8, 0), (13, 14)] {
        let outside = bench.out(&icmp(query, UE, PEER, 77)).unwrap();
        assert_eq!(outside, (OUTSIDE, 2_000));
        assert_eq!(bench.back(&icmp(answer, PEER, OUTSIDE, 2_000)), Ok((UE, 77)));
        assert_eq!(bench.back(&icmp(query, PEER, OUTSIDE, 2_000)), Err(DropReason::NatNoBinding));
        assert_eq!(bench.out(&icmp(answer, UE, PEER, 77)), Err(DropReason::NatNoBinding));
    }
    assert_eq!(bench.out(&icmp(5, UE, PEER, 0)), Err(DropReason::NatProtocol));
}

#[test]
fn an_error_about_a_packet_goes_to_whoever_sent_it() {
    let mut bench = bench(|_| {});
    let outside = bench.out(&packet(UDP, (UE, 7), (PEER, 53))).unwrap();
    let error = |from: u32, to: u32, quoted: &[u8]| {
        let mut error = packet(ICMP, (from, 0x0303), (to, 0));
        error.truncate(28);
        error.extend(quoted);
        let len = error.len() as u16;
        error[2..4].copy_from_slice(&len.to_be_bytes());
        error
    };
    let router = 0x0101_0101;
    assert_eq!(bench.back(&error(router, OUTSIDE, &packet(UDP, outside, (PEER, 53)))), Ok((UE, 7)));
    let never_sent = error(router, OUTSIDE, &packet(UDP, outside, (OTHER, 53)));
    assert_eq!(bench.back(&never_sent), Err(DropReason::NatFiltered));
    assert_eq!(bench.out(&error(UE, PEER, &packet(UDP, (PEER, 53), (UE, 7)))), Ok(outside));
    assert_eq!(bench.out(&error(UE, PEER, &packet(UDP, (PEER, 53), (UE, 9)))), Err(DropReason::NatNoBinding));
}

#[test]
fn fragments_follow_the_first_one() {
    let mut bench = bench(|_| {});
    let part = |offset: u8, more: u8| {
        let mut part = packet(UDP, (UE, 7), (PEER, 53));
        (part[5], part[6], part[7]) = (77, more << 5, offset);
        part
    };
    assert_eq!(bench.out(&part(3, 0)), Err(DropReason::NatFragment));
    let outside = bench.out(&part(0, 1)).unwrap();
    assert_eq!(bench.out(&part(3, 0)), Ok((outside.0, 0)));
    bench.now = 2 * SECOND;
    assert_eq!(bench.out(&part(3, 0)), Err(DropReason::NatFragment));
}

#[test]
fn what_a_session_had_is_nobody_s_when_it_is_gone() {
    let mut bench = bench(|_| {});
    bench.out_of(&packet(UDP, (UE, 7), (PEER, 53)), 9).unwrap();
    // Another session has the address before that is noticed.
    assert_eq!(bench.out_of(&packet(UDP, (UE, 7), (PEER, 53)), 10), Ok((OUTSIDE, 2_004)));
    bench.sweep();
    assert_eq!(bench.translator.in_use(), (1, 1));
}

#[test]
fn hosts_behind_a_ue_share_its_blocks() {
    let mut bench = bench(|_| {});
    let first = bench.out(&packet(UDP, (UE, 7), (PEER, 53))).unwrap();
    let second = bench.out(&packet(UDP, (UE + 1, 7), (PEER, 53))).unwrap();
    assert_eq!((first, second), ((OUTSIDE, 2_000), (OUTSIDE, 2_001)));
    assert_eq!(bench.back(&packet(UDP, (PEER, 53), second)), Ok((UE + 1, 7)));
    assert_eq!(bench.told().len(), 1);
}

#[test]
fn a_block_that_comes_back_is_nobody_else_s_for_a_while() {
    let mut bench = bench(|terms| (terms.ports, terms.block_cooling_s) = (Ports { first: 2_000, last: 2_003 }, 120));
    bench.out_of(&packet(UDP, (UE, 7), (PEER, 53)), 1).unwrap();
    bench.now = 300 * SECOND;
    bench.sweep();
    bench.now = 419 * SECOND;
    assert_eq!(bench.out_of(&packet(UDP, (OTHER, 7), (PEER, 53)), 2), Err(DropReason::NatExhausted));
    bench.now = 420 * SECOND;
    bench.out_of(&packet(UDP, (OTHER, 7), (PEER, 53)), 2).unwrap();
}

#[test]
fn no_block_is_given_and_none_comes_back_that_could_not_be_told_of() {
    let mut bench = bench(|_| {});
    bench.out(&packet(UDP, (UE, 7), (PEER, 53))).unwrap();
    let told = bench.told()[0];
    while bench.log.has_room() {
        bench.log.enter(told);
    }
    assert_eq!(bench.out_of(&packet(UDP, (OTHER, 7), (PEER, 53)), 2), Err(DropReason::NatExhausted));
    bench.now = 300 * SECOND;
    bench.sweep();
    assert_eq!(bench.translator.in_use(), (1, 1));
    bench.told();
    bench.sweep();
    assert_eq!(bench.translator.in_use(), (0, 0));
}

#[test]
fn a_binding_knows_so_many_peers_and_forgets_the_one_heard_of_last_long_ago() {
    let mut bench = bench(|terms| terms.max_bindings = 128);
    let outside = bench.out(&packet(UDP, (UE, 7), (PEER, 0))).unwrap();
    for number in 1..=64 {
        bench.now += SECOND;
        bench.out(&packet(UDP, (UE, 7), (PEER + number, 53))).unwrap();
    }
    assert_eq!(bench.back(&packet(UDP, (PEER, 0), outside)), Err(DropReason::NatFiltered));
    assert_eq!(bench.back(&packet(UDP, (PEER + 1, 53), outside)), Ok((UE, 7)));
}

#[test]
fn however_many_peers_a_ue_has_there_is_room_for_one_of_each_other_binding() {
    let mut bench = bench(|terms| (terms.ports_per_block, terms.max_bindings) = (1, 4));
    for number in 0..20 {
        bench.out(&packet(UDP, (UE, 7), (PEER + number, 53))).unwrap();
    }
    for session in 2..=4 {
        let outside = bench.out_of(&packet(UDP, (UE + session, 7), (PEER, 53)), session.into()).unwrap();
        assert_eq!(bench.back(&packet(UDP, (PEER, 53), outside)), Ok((UE + session, 7)));
    }
}

#[test]
fn however_many_peers_a_ue_has_others_have_more_than_one_of_a_port() {
    let mut bench = bench(|_| {});
    for (port, number) in (0..4).flat_map(|port| (0..64).map(move |number| (port, number))) {
        bench.out(&packet(UDP, (UE, port), (PEER + number, 53))).unwrap();
    }
    let ue = (UE + 1, 7);
    let outside = [PEER, OTHER].map(|peer| bench.out_of(&packet(UDP, ue, (peer, 53)), 2).unwrap())[0];
    assert_eq!([PEER, OTHER].map(|peer| bench.back(&packet(UDP, (peer, 53), outside))), [Ok(ue), Ok(ue)]);
}

#[test]
fn a_port_s_peers_of_long_ago_make_room_for_those_of_others() {
    let mut bench = bench(|terms| terms.max_bindings = 4);
    for number in 0..5 {
        bench.out(&packet(UDP, (UE, 7), (PEER + number, 53))).unwrap();
    }
    bench.now = 299 * SECOND;
    bench.out(&packet(UDP, (UE, 7), (PEER + 4, 53))).unwrap();
    bench.now = 300 * SECOND;
    bench.out(&packet(UDP, (UE, 7), (PEER + 5, 53))).unwrap();
    let outside = [PEER, OTHER].map(|peer| bench.out(&packet(UDP, (UE, 8), (peer, 53))).unwrap())[0];
    assert_eq!([PEER, OTHER].map(|peer| bench.back(&packet(UDP, (peer, 53), outside))), [Ok((UE, 8)), Ok((UE, 8))]);
}

/// What UEs and time do.
#[derive(Clone, Debug)]
enum Step {
    /// A UE sends from this port to this peer, with these flags, and the peer answers.
    Talk { ue: u8, port: u8, peer: u8, protocol: u8, flags: u8 },
    /// Seconds pass.
    Pass(u16),
    /// A session ends, and another one with its address begins.
    Renew(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let talk = (0..4_u8, 0..6_u8, 0..4_u8, 0..3_usize, prop::sample::select(vec![0, SYN, FIN, 4, 16]));
    let talk = talk.prop_map(|(ue, port, peer, protocol, flags)| {
        let protocol = [UDP, TCP, ICMP][protocol];
        Step::Talk { ue, port, peer, protocol, flags }
    });
    let step = prop_oneof![8 => talk, 2 => (0..400_u16).prop_map(Step::Pass), 1 => (0..4_u8).prop_map(Step::Renew)];
    prop::collection::vec(step, 0..200)
}

proptest! {
    /// What is answered comes to who has asked, no two flows have one port outside at a time, every block that is told to be given is
    /// told to come back, and in the end nothing is left.
    #[test]
    fn what_comes_back_is_for_who_has_sent_and_everything_is_released(steps in steps(), filtering in 0..3_usize) {
        let all = [Filtering::EndpointIndependent, Filtering::AddressDependent, Filtering::AddressAndPortDependent];
        let mut bench = bench(|terms| (terms.filtering, terms.blocks_per_ue) = (all[filtering], 2));
        // The present session of each UE.
        let mut sessions = [1, 2, 3, 4_u64];
        let mut next = 5;
        // Who has a port outside, and until when at least.
        let mut had: HashMap<_, ((u64, _), u64)> = HashMap::new();
        for step in steps {
            match step {
                Step::Pass(seconds) => bench.now += u64::from(seconds) * SECOND,
                Step::Renew(ue) => (sessions[usize::from(ue)], next) = (next, next + 1),
                Step::Talk { ue, port, peer, protocol, flags } => {
                    let up_seid = sessions[usize::from(ue)];
                    let inside = (UE + u32::from(ue), u16::from(port));
                    let peer = (PEER + u32::from(peer), 53);
                    let asks = match protocol {
                        UDP => packet(UDP, inside, peer),
                        TCP => segment(flags, inside, peer),
                        _ => icmp(8, inside.0, peer.0, inside.1),
                    };
                    let answers = |outside: (u32, u16)| match protocol {
                        UDP => packet(UDP, peer, outside),
                        TCP => segment(16, peer, outside),
                        _ => icmp(0, peer.0, outside.0, outside.1),
                    };
                    if let Ok(outside) = bench.out_of(&asks, up_seid) {
                        prop_assert_eq!(bench.back(&answers(outside)), Ok(inside));
                        let who = (up_seid, inside);
                        let key = (protocol, outside.0, outside.1);
                        if let Some((other, until)) = had.get(&key) {
                            let (session, _) = other;
                            let is_gone = *until <= bench.now || !sessions.contains(session);
                            prop_assert!(*other == who || is_gone, "{other:?} and {who:?} both have {key:?}");
                        }
                        had.insert(key, (who, bench.now + 60 * SECOND));
                    }
                }
            }
            let now = bench.now;
            bench.translator.sweep(100, now, |_, up_seid| sessions.contains(&up_seid), &mut bench.log);
            let (bindings, blocks) = bench.translator.in_use();
            prop_assert!(bindings <= 16 && blocks <= 2);
        }
        bench.now += 10_000 * SECOND;
        bench.sweep();
        prop_assert_eq!(bench.translator.in_use(), (0, 0));
        let mut given: HashMap<(u16, u16), u64> = HashMap::new();
        for entry in bench.told() {
            let before = match entry.given {
                true => given.insert(entry.ports, entry.up_seid),
                false => given.remove(&entry.ports).filter(|up_seid| *up_seid != entry.up_seid),
            };
            prop_assert_eq!(before, None);
        }
        prop_assert!(given.is_empty());
    }
}
