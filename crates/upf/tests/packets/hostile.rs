//! Frames that are cut short at every octet, whose headers are cut short within right ones, or of whose headers an octet is
//! another: each is sent on or dropped for a reason, once.

use upf::drops::DropReason;

use super::frame::build;
use super::scenario::{Outcome, Scenario, ends};

const RULES: &str = "
session 1
  pdr 1 from access teid 0x11 ue 10.45.0.1 ue6 2001:db8:45:1::/64 far 1 urr 1
  pdr 2 from n6 ue 10.45.0.1 ue6 2001:db8:45:1::/64 sdf 17,any@53,any far 2 qer 1 urr 1
  pdr 3 from n6 ue 10.45.0.1 ue6 2001:db8:45:1::/64 far 3
  far 1 to n6
  far 2 to access tunnel 0x22 peer 10.3.0.2
  far 3 drop
  qer 1 qfi 9
  urr 1
";

/// Ways into the UPF, and headers behind them: port, what is before, and layers that are cut one by one.
const UPLINK: [&str; 6] = [
    "eth ip 10.3.0.2 10.3.0.1 udp 2152 2152 gtpu 0x11 qfi=1 ip 10.45.0.1 192.0.2.1 udp 1000 53 \"end\"",
    "eth ip 10.3.0.2 10.3.0.1 udp 2152 2152 gtpu 0x11 ip 2001:db8:45:1::7 2a00::1 udp 1000 53 \"end\"",
    "eth ip 2001:db8:3::2 2001:db8:3::1 udp 2152 2152 gtpu 0x11 seq=7 ip 10.45.0.1 192.0.2.1 udp 1000 53 \"end\"",
    "eth ip 2001:db8:3::2 2001:db8:3::1 udp 2152 2152 gtpu 0x11 ip 2001:db8:45:1::7 2a00::1 udp 1000 53 \"end\"",
    "eth ip 10.3.0.2 10.3.0.1 ext=01010101 udp 2152 2152 gtpu 0x11 ext=20:010700,85:011009 ip 10.45.0.1 192.0.2.1 ext=01010101 tcp 1 2",
    "eth ip 2001:db8:3::2 2001:db8:3::1 udp 2152 2152 gtpu 0x11 e seq=1 npdu=2 ip 10.45.0.1 192.0.2.1 frag=0x2000 proto=17 *64",
];
const DOWNLINK: [&str; 4] = [
    "eth ip 192.0.2.1 10.45.0.1 udp 53 1000 \"end\"",
    "eth ip 2a00::1 2001:db8:45:1::7 udp 53 1000 \"end\"",
    "eth ip 192.0.2.1 10.45.0.1 ext=94040000 udp 53 1000 \"end\"",
    "eth ip 192.0.2.1 10.45.0.1 frag=0x2000 udp 53 1000 *64",
];

/// What becomes of the frames at the port.
fn outcome(port: usize, frames: Vec<Vec<u8>>) -> Outcome {
    let mut scenario = Scenario::parse(RULES).unwrap();
    scenario.receive(port, frames);
    scenario.play().unwrap()
}

fn dropped(outcome: &Outcome) -> usize {
    DropReason::ALL.iter().map(|&reason| outcome.counts.dropped(reason) as usize).sum()
}

fn templates() -> impl Iterator<Item = (usize, &'static str, Vec<u8>)> {
    let uplink = UPLINK.iter().map(|text| (0, *text));
    let all = uplink.chain(DOWNLINK.iter().map(|text| (1, *text)));
    all.map(|(port, text)| (port, text, build(text, ends(port)).unwrap()))
}

#[test]
fn a_frame_that_is_cut_short_anywhere_is_dropped_for_a_reason() {
    for (port, text, frame) in templates() {
        assert_eq!(outcome(port, vec![frame.clone()]).sent[1 - port].len(), 1, "whole: {text}");
        let outcome = outcome(port, (1..frame.len()).map(|len| frame[..len].to_vec()).collect());
        assert!(outcome.sent.concat().is_empty(), "{text}");
        assert_eq!(dropped(&outcome), frame.len() - 1, "{text}: {:?}", outcome.counts.all());
    }
}

#[test]
fn a_header_that_is_cut_short_within_right_ones_is_dropped_for_a_reason() {
    for (port, text, frame) in templates() {
        // What is before each layer, with right lengths around what is left of the rest.
        let layers: Vec<_> = ["ip ", "udp ", "gtpu "].iter().flat_map(|layer| text.match_indices(layer)).collect();
        for (at, layer) in layers {
            let outer = &text[..at];
            let rest_len = build(&format!("{outer} x:"), ends(port)).unwrap().len();
            let (kind, value) = match (layer, outer.contains("ip ")) {
                ("ip ", false) => (" type=", if frame[12] == 8 { "0x0800" } else { "0x86dd" }),
                ("udp ", _) => (" proto=", "17"),
                _ => ("", ""),
            };
            let cut = |len: usize| {
                let rest: String = frame[rest_len..rest_len + len].iter().map(|octet| format!("{octet:02x}")).collect();
                build(&format!("{outer}{kind}{value} x:{rest}"), ends(port)).unwrap()
            };
            // UPFs do not read users' UDP headers.
            let within = frame.len() - rest_len;
            let frames: Vec<_> = (0..within).map(cut).collect();
            let count = frames.len();
            let outcome = outcome(port, frames);
            let sent = outcome.sent[1 - port].len();
            assert_eq!(sent + dropped(&outcome), count, "{text} from {layer}: {:?}", outcome.counts.all());
            let is_users = layer == "udp " && (port == 1 || outer.contains("gtpu "));
            assert!(sent == 0 || is_users, "{sent} sent: {text} from {layer}");
        }
    }
}

#[test]
fn a_frame_with_another_octet_anywhere_is_sent_or_dropped_for_a_reason_once() {
    for (port, text, frame) in templates() {
        for mask in [0x01, 0x10, 0x80, 0xff] {
            let frames: Vec<_> = (0..frame.len())
                .map(|at| {
                    let mut other = frame.clone();
                    other[at] ^= mask;
                    other
                })
                .collect();
            let outcome = outcome(port, frames);
            let sent = outcome.sent[1 - port].len();
            assert_eq!(sent + dropped(&outcome), frame.len(), "{text} ^ {mask:#x}: {:?}", outcome.counts.all());
        }
    }
}

/// Ways through source NAT, of which the first ones open those behind them.
const TRANSLATED: [(usize, &str); 9] = [
    (0, "eth ip 10.3.0.2 10.3.0.1 udp 2152 2152 gtpu 0x11 ip 10.45.0.1 192.0.2.1 udp 1000 53 \"ask\""),
    (0, "eth ip 10.3.0.2 10.3.0.1 udp 2152 2152 gtpu 0x11 ip 10.45.0.1 192.0.2.1 tcp 1000 80"),
    (0, "eth ip 10.3.0.2 10.3.0.1 udp 2152 2152 gtpu 0x11 ip 10.45.0.1 192.0.2.1 icmp request id=7 \"ping\""),
    (0, "eth ip 10.3.0.2 10.3.0.1 udp 2152 2152 gtpu 0x11 ip 10.45.0.1 10.6.0.1 udp 1000 2000 \"round\""),
    (
        0,
        "eth ip 10.3.0.2 10.3.0.1 udp 2152 2152 gtpu 0x11 ip 10.45.0.1 192.0.2.1 icmp toolong mtu=1300 cut=28 ip 192.0.2.1 10.45.0.1 udp 53 1000 *9",
    ),
    (1, "eth ip 192.0.2.1 10.6.0.1 ext=94040000 udp 53 2000 \"answer\""),
    (1, "eth ip 192.0.2.1 10.6.0.1 tcp 80 2001"),
    (1, "eth ip 192.0.2.1 10.6.0.1 icmp reply id=2002 \"ping\""),
    (1, "eth ip 192.0.2.9 10.6.0.1 icmp toolong mtu=1300 cut=28 ip 10.6.0.1 192.0.2.1 udp 2000 53 *9"),
];

#[test]
fn whatever_octet_of_a_packet_to_be_translated_is_another_or_lacks_the_upf_goes_on() {
    let rules = format!("nat n6 10.6.0.1-10.6.0.1 ports 2000-2999 blocks 3 filtering none\n{RULES}\nthen\n");
    for (port, text) in TRANSLATED {
        let mut scenario = Scenario::parse(&rules).unwrap();
        TRANSLATED[..3]
            .iter()
            .for_each(|(port, text)| scenario.receive(*port, vec![build(text, ends(*port)).unwrap()]));
        scenario.add("then").unwrap();
        let whole = build(text, ends(port)).unwrap();
        let cut = (1..whole.len()).map(|len| whole[..len].to_vec());
        let changed = (14..whole.len()).flat_map(|at| {
            [0, 1, 0x20, 0x45, 0x7f, 0xff].map(|value| {
                let mut frame = whole.clone();
                frame[at] = value;
                // What stands behind a wrong checksum would not be looked at.
                let header = 14 + usize::from(frame[14] & 15) * 4;
                if at != 24 && at != 25 && (34..=frame.len()).contains(&header) {
                    frame[24..26].fill(0);
                    let sum = upf::ip::checksum(upf::ip::sum(&frame[14..header]));
                    frame[24..26].copy_from_slice(&sum.to_be_bytes());
                }
                frame
            })
        });
        let frames: Vec<_> = cut.chain(changed).chain([whole.clone()]).collect();
        let count = frames.len();
        scenario.receive(port, frames);
        let outcome = scenario.play().unwrap();
        // Fragments wait for others, and messages to senders are sent besides.
        let (sent, dropped) = (outcome.sent.concat().len(), dropped(&outcome));
        assert!(sent > 1 && sent + dropped > count / 2, "{text}: {sent}, {:?}", outcome.counts.all());
    }
}
