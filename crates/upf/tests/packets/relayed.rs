//! Packets that go from one tunnel into another with chains of extension headers: each goes on with what intermediate nodes pass on,
//! octet by octet, or is dropped for a reason.

use proptest::collection::vec;
use proptest::prelude::*;
use upf::drops::DropReason;

use super::frame::build;
use super::scenario::{Outcome, Scenario, ends};

const RULES: &str = "
session 1
  pdr 1 from access teid 0x11 remove any far 1
  pdr 2 from core teid 0x12 remove any far 2
  far 1 to access tunnel 0x71 peer 2001:db8:3::2
  far 2 to access tunnel 0x72 peer 10.3.0.2
";
/// The user's packet.
const USER: &str = "ip 192.0.2.1 10.45.0.1 udp 53 1000 *40";

/// Notation of a packet in a tunnel between these addresses.
fn tunnelled(ends: &str, teid: u32, options: &str, chain: &[(u8, Vec<u8>)]) -> String {
    let hex = |octets: &[u8]| octets.iter().map(|octet| format!("{octet:02x}")).collect::<String>();
    let headers: Vec<_> = chain.iter().map(|(kind, raw)| format!("{kind:02x}:{}", hex(raw))).collect();
    let chain = if headers.is_empty() { String::new() } else { format!("ext={}", headers.join(",")) };
    format!("eth ip {ends} udp 2152 2152 gtpu {teid:#x} {options} {chain} {USER}")
}

/// An extension header that intermediate nodes pass on or leave out, but no container.
fn extension() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let kinds = prop_oneof![Just(0xc0), Just(0x82), Just(0x03), 1_u8..0x80, 0x86_u8..0xc0];
    (kinds, 1_u8..4, vec(any::<u8>(), 10)).prop_map(|(kind, units, octets)| {
        let mut raw = vec![units];
        raw.extend(&octets[..usize::from(units) * 4 - 2]);
        (kind, raw)
    })
}

fn options() -> impl Strategy<Value = String> {
    let numbers = prop_oneof![Just(""), Just("seq=0x1234"), Just("npdu=7"), Just("seq=9 npdu=8")];
    let flow = prop_oneof![Just(""), Just("dlqfi=5"), Just("dlqfi=9 rqi")];
    (numbers, flow).prop_map(|(numbers, flow)| format!("{numbers} {flow}"))
}

fn dropped(outcome: &Outcome) -> usize {
    DropReason::ALL.iter().map(|&reason| outcome.counts.dropped(reason) as usize).sum()
}

/// Packets that were sent into tunnels over either version of IP: users', and end markers.
fn users(outcome: &Outcome) -> usize {
    let is_user = |frame: &&Vec<u8>| match frame[12..14] {
        [0x08, 0x00] => frame[43] >= 0xfe,
        _ => frame[20] == 17 && frame[63] >= 0xfe,
    };
    outcome.sent[0].iter().filter(is_user).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_goes_on_from_tunnel_to_tunnel_is_the_same_octets(
        packets in vec((any::<bool>(), options(), vec(extension(), 0..8)), 1..40),
    ) {
        let mut text = RULES.to_owned();
        for (to_v6, options, chain) in &packets {
            let (came, teid, sent, tunnel) = match to_v6 {
                true => ("10.3.0.2 10.3.0.1", 0x11, "2001:db8:3::1 2001:db8:3::2", 0x71),
                false => ("2001:db8:3::2 2001:db8:3::1", 0x12, "10.3.0.1 10.3.0.2", 0x72),
            };
            let goes_on: Vec<_> = chain.iter().filter(|(kind, _)| kind >> 6 != 0b01).cloned().collect();
            let (came, sent) = (tunnelled(came, teid, options, chain), tunnelled(sent, tunnel, options, &goes_on));
            text += &format!("n3 {came}\n-> n3 {sent}\n");
        }
        prop_assert_eq!(Scenario::parse(&text).and_then(Scenario::run), Ok(()));
    }
}

#[test]
fn whatever_octet_of_a_packet_between_tunnels_is_another_or_lacks_it_goes_on_or_is_dropped_for_a_reason_once() {
    let chain = [(0x20, vec![1, 7, 0]), (0xc0, vec![1, 0x12, 0x34]), (0x82, vec![2, 1, 2, 3, 0, 0, 0])];
    for text in [
        tunnelled("10.3.0.2 10.3.0.1", 0x11, "dlqfi=5", &chain),
        tunnelled("10.3.0.2 10.3.0.1 ext=01010101", 0x11, "seq=7", &chain[..1]),
        tunnelled("2001:db8:3::2 2001:db8:3::1", 0x12, "dlqfi=5 npdu=9", &chain),
    ] {
        let whole = build(&text, ends(0)).unwrap();
        let cut = (1..whole.len()).map(|len| whole[..len].to_vec());
        let changed = (0..whole.len()).flat_map(|at| {
            [0x01, 0x10, 0x40, 0x80, 0xff].map(|mask| {
                let mut other = whole.clone();
                other[at] ^= mask;
                other
            })
        });
        let frames: Vec<_> = [whole.clone()].into_iter().chain(cut).chain(changed).collect();
        let count = frames.len();
        let mut scenario = Scenario::parse(RULES).unwrap();
        scenario.receive(0, frames);
        let outcome = scenario.play().unwrap();
        let sent = users(&outcome);
        assert!(sent > whole.len(), "{text}: {sent}");
        assert_eq!(sent + dropped(&outcome), count, "{text}: {:?}", outcome.counts.all());
    }
}
