//! Rules that an earlier process left, of which some octets are others: packets come to some end, and once sessions are stated
//! they go by these.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::scenario::{Outcome, Scenario};

const SESSIONS: &str = "
session 1
  pdr 1 from access teid 0x11 ue 10.45.0.1 ue6 2001:db8:45:1::/64 sdf 17,any@50-60,any far 1 qer 1 qer 2 urr 1 urr 2
  pdr 2 from access teid 0x11 ue 10.45.0.1 ue6 2001:db8:45:1::/64 qfi 5 far 3
  pdr 3 from n6 ue 10.45.0.1 ue6 2001:db8:45:1::/64 behind 192.168.0.0/16 sdf any,192.0.2.0/24,any far 2 qer 1 urr 1
  pdr 4 from n6 ue 10.45.0.1 ue6 2001:db8:45:1::/64 behind 192.168.0.0/16 far 4 urr 3
  far 1 to n6 tos 0xb8/0xfc copy 0x91@10.3.0.2
  far 2 to access tunnel 0x21 peer 10.3.0.2
  far 3 drop
  far 4 to access tunnel 0x22 peer 2001:db8:3::2
  qer 1 qfi 9 ul-mbr 1000000 dl-mbr 1000000
  qer 2 ul-mbr 2000000
  urr 1
  urr 2
  urr 3 quota 0 far 2
session 2
  pdr 1 from access teid 0x12 ue 10.45.0.2 far 1
  pdr 2 from core teid 0x13 remove any far 2
  pdr 3 from n6 ue 10.45.0.2 ue6 2001:db8:45:2::/64 far 3
  far 1 to core tunnel 0x92 peer 2001:db8:3::2
  far 2 to access tunnel 0x23 peer 10.3.0.2
  far 3 buffer 3
";

const PACKETS: &str = "
n3 eth ip 10.3.0.2 10.3.0.1 udp 2152 2152 gtpu 0x11 qfi=1 ip 10.45.0.1 192.0.2.1 udp 1000 53 *12
n3 eth ip 2001:db8:3::2 2001:db8:3::1 udp 2152 2152 gtpu 0x11 qfi=5 ip 2001:db8:45:1::7 2a00::1 udp 1000 99 *12
n3 eth ip 10.3.0.2 10.3.0.1 udp 2152 2152 gtpu 0x12 qfi=5 ip 10.45.0.2 192.0.2.1 udp 1000 53 *12
n3 eth ip 10.3.0.2 10.3.0.1 udp 2152 2152 gtpu 0x13 dlqfi=5 ip 192.0.2.1 10.45.0.2 udp 1000 53 *12
n3 eth ip 10.3.0.2 10.3.0.1 udp 2152 2152 gtpu 0x13 type=254
n6 eth ip 192.0.2.1 10.45.0.1 udp 53 1000 *12
n6 eth ip 198.51.100.1 192.168.7.1 udp 53 1000 *12
n6 eth ip 2a00::1 2001:db8:45:1::7 udp 53 1000 *12
n6 eth ip 192.0.2.1 10.45.0.2 udp 53 1000 *12
n6 eth ip 2a00::1 2001:db8:45:2::7 udp 53 1000 *12
";

fn scenario(tables: &Path) -> Scenario {
    Scenario::parse(&format!("{SESSIONS}{PACKETS}")).unwrap().on(tables)
}

/// What becomes of packets once the sessions are stated.
fn play(tables: &Path) -> Outcome {
    scenario(tables).play().unwrap()
}

/// What becomes of them by the rules that are there.
fn left(tables: &Path) -> Outcome {
    scenario(tables).without_sessions().play().unwrap()
}

/// What was sent, in any order, but for questions to all stations: neighbours are asked for once more where paths are known.
fn sent(outcome: &Outcome) -> Vec<BTreeSet<Vec<u8>>> {
    let is_for_one = |frame: &&Vec<u8>| frame[0] & 1 == 0;
    outcome.sent.iter().map(|frames| frames.iter().filter(is_for_one).cloned().collect()).collect()
}

#[test]
fn packets_come_to_an_end_whatever_rules_were_left_and_go_by_those_that_are_stated() {
    let folder = tempfile::tempdir().unwrap();
    let (tables, spoilt) = (folder.path().join("tables"), folder.path().join("spoilt"));
    let right = play(&tables);
    let right_sent = sent(&right);
    assert!(right.sent[0].len() >= 5 && right.sent[1].len() == 1, "{:?}", right.counts.all());
    let whole = fs::read(&tables).unwrap();
    let end = whole.len() - whole.iter().rev().take_while(|octet| **octet == 0).count();
    let is_right = |outcome: &Outcome| sent(outcome) == right_sent && outcome.counts.all() == right.counts.all();
    assert!(is_right(&left(&tables)), "the rules that were left are in force");
    let mut random = 7_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize
    };
    for turn in 0..150 {
        let mut file = whole.clone();
        for _ in 0..1 + turn % 3 {
            // Behind the first line, which says whose they are.
            file[64 + next() % (end - 64)] ^= (next() % 255) as u8 + 1;
        }
        fs::write(&spoilt, &file).unwrap();
        left(&spoilt);
        fs::write(&spoilt, &file).unwrap();
        assert!(is_right(&play(&spoilt)), "turn {turn}");
    }
}
