//! The packet path as a whole: the input chooses rules in turn and frames between them, made of sound ones and then damaged, or of any
//! octets. Whatever comes, what leaves is well formed, and everything ends.
#![no_main]

#[path = "../../crates/upf/tests/packets/frame.rs"]
mod frame;
#[path = "../../crates/upf/tests/packets/rules.rs"]
mod rules;
#[allow(dead_code)]
#[path = "../../crates/upf/tests/packets/scenario.rs"]
mod scenario;
#[path = "../../crates/upf/tests/packets/words.rs"]
mod words;

use frame::build;
use scenario::{Scenario, ends};

/// Rules of the one session, of which each step has some.
const RULES: [&str; 4] = [
    "session 1
  pdr 1 from access teid 0x11 ue 10.45.0.1 ue6 2001:db8:45:1::/64 behind 192.168.0.0/16 far 1 urr 1 qer 2
  pdr 2 from n6 ue 10.45.0.1 ue6 2001:db8:45:1::/64 behind 192.168.0.0/16 sdf 17,any@53,any far 2 qer 1 urr 1
  pdr 3 from n6 ue 10.45.0.1 ue6 2001:db8:45:1::/64 far 3 urr 1
  far 1 to n6 tos 0xb8/0xfc
  far 2 to access tunnel 0x22 peer 10.3.0.2
  far 3 to access tunnel 0x22 peer 2001:db8:3::2
  qer 1 qfi 9 rqi
  qer 2 ul-mbr 1000000
  urr 1 quota 20000",
    "session 1 discard
  pdr 1 from access teid 0x11 ue 10.45.0.1 far 1
  pdr 2 from n6 ue 10.45.0.1 ue6 2001:db8:45:1::/64 far 2
  far 1 to core tunnel 0x44 peer 10.3.0.2
  far 2 buffer 5 notify",
    "session 1 leaves 0x22 at 10.3.0.2
  pdr 1 from core teid 0x11 remove any far 1
  pdr 2 from access teid 0x12 sdf 6,any,any@1-1023 far 2
  pdr 3 from n6 ue 10.45.0.1 far 1 qer 1
  far 1 to access tunnel 0x23 peer 2001:db8:3::2
  far 2 drop
  qer 1 dl-closed",
    "removed 1",
];

/// Frames to begin with: port, and notation.
const FRAMES: [(usize, &str); 13] = [
    (0, "eth ip 10.3.0.2 10.3.0.1 udp 2152 2152 gtpu 0x11 qfi=1 ip 10.45.0.1 192.0.2.1 udp 1000 53 *100"),
    (0, "eth ip 2001:db8:3::2 2001:db8:3::1 udp 2152 2152 gtpu 0x11 seq=1 ip 2001:db8:45:1::7 2a00::1 tcp 1000 53 *20"),
    (
        0,
        "eth ip 10.3.0.2 10.3.0.1 id=1 part=0-64 udp 2152 2152 gtpu 0x11 qfi=1 ip 10.45.0.1 192.0.2.1 udp 1000 53 *100",
    ),
    (
        0,
        "eth ip 10.3.0.2 10.3.0.1 id=1 part=64-9999 udp 2152 2152 gtpu 0x11 qfi=1 ip 10.45.0.1 192.0.2.1 udp 1000 53 *100",
    ),
    (
        0,
        "eth ip 10.3.0.2 10.3.0.1 udp 2152 2152 gtpu 0x11 ext=20:010700,85:011009,40:010868 ip 10.45.0.1 192.0.2.1 frag=0 *1400",
    ),
    (
        0,
        "eth ip 10.3.0.2 10.3.0.1 udp 2152 2152 gtpu 0x11 seq=1 dlqfi=5 ext=c0:011234,82:02010203000000 ip 10.45.0.1 192.0.2.1 udp 1000 53 *40",
    ),
    (0, "eth ip 10.3.0.2 10.3.0.1 udp 2152 2152 gtpu 0 type=26 seq=0 x:1000000022 x:8500040a030002"),
    (0, "eth ip 10.3.0.2 10.3.0.1 udp 2152 2152 gtpu 0x11 type=254"),
    (0, "eth to=ffffffffffff arp request 10.3.0.2 10.3.0.1"),
    (1, "eth ip 192.0.2.1 10.45.0.1 udp 53 1000 *40"),
    (1, "eth ip 2a00::1 2001:db8:45:1::7 tcp 53 1000 *1300"),
    (1, "eth ip 192.0.2.1 10.45.0.1 frag=0 udp 53 1000 *1300"),
    (1, "eth to=3333ff000001 ip 2001:db8:6::2 ff02::1:ff00:1 ttl=255 nd solicit 2001:db8:6::1"),
];

/// Octets to choose by; 0 at their end.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn octet(&mut self) -> usize {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first.into()
    }

    fn octets(&mut self, most: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }

    fn frame(&mut self, sound: &[(usize, Vec<u8>)]) -> (usize, Vec<u8>) {
        let choice = self.octet();
        let (port, mut frame) = sound[choice % sound.len()].clone();
        match choice / sound.len() % 4 {
            0 => {}
            1 => {
                for _ in 0..=self.octet() % 4 {
                    let at = (self.octet() << 8 | self.octet()) % frame.len();
                    frame[at] = self.octet() as u8;
                }
            }
            2 => frame.truncate(1 + (self.octet() << 8 | self.octet()) % frame.len()),
            // Any octets behind the headers' first.
            _ => {
                frame.truncate(self.octet() % frame.len());
                let len = self.octet();
                frame.extend(self.octets(len));
                frame.push(0);
            }
        }
        (port, frame)
    }
}

/// IP packets that the UPF sends have right lengths; and right header checksums, unless they are users'.
fn check(frame: &[u8], are_users: bool) {
    let packet = &frame[14..];
    let len = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    match frame[12..14] {
        [8, 0] => {
            let header = usize::from(packet[0] & 15) * 4;
            assert!(packet[0] >> 4 == 4 && header >= 20 && len(2) == packet.len(), "{frame:02x?}");
            let is_right = upf::ip::checksum(upf::ip::sum(&packet[..header])) == 0;
            assert!(is_right || are_users, "{frame:02x?}");
        }
        [0x86, 0xdd] => assert!(packet[0] >> 4 == 6 && 40 + len(4) == packet.len(), "{frame:02x?}"),
        [8, 6] => {}
        _ => panic!("{frame:02x?}"),
    }
}

thread_local! {
    static SOUND: Vec<(usize, Vec<u8>)> = {
        FRAMES.iter().map(|&(port, text)| (port, build(text, ends(port)).unwrap())).collect()
    };
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut choices = Choices(input);
    let mut scenario = Scenario::parse("mtu 1400 1300\nroom 4000").unwrap();
    for _ in 0..4 {
        let rules = RULES[choices.octet() % RULES.len()];
        scenario.add(rules).unwrap();
        for _ in 0..choices.octet() % 12 {
            let (port, frame) = SOUND.with(|sound| choices.frame(sound));
            scenario.receive(port, vec![frame]);
        }
        if choices.0.is_empty() {
            break;
        }
        scenario.add("then").unwrap();
    }
    let outcome = scenario.play().expect("rules that fit");
    let [to_n3, to_n6] = &outcome.sent[..] else { panic!("two ports") };
    to_n3.iter().for_each(|frame| check(frame, false));
    to_n6.iter().for_each(|frame| check(frame, true));
});
