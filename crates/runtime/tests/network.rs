//! Sandboxes' networks, in real namespaces: what is wired carries frames, and saying it twice changes nothing.

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use runtime::net::{self, Interface, Namespace, Prefix, Route};
use runtime::{IdRanges, Layout, Sandbox};
use support::root;

/// Two sandboxes without containers.
struct Pair {
    dir: tempfile::TempDir,
    layout: Layout,
    a: Namespace,
    b: Namespace,
}

impl Pair {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(dir.path().join("run"), dir.path().join("state"));
        let namespace = |name| {
            let id = runtime::FunctionId::new("net", name).expect("a name");
            Sandbox::create(&layout, &id).expect("a sandbox").net().expect("a namespace")
        };
        Self { a: namespace("a"), b: namespace("b"), layout, dir }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for id in Sandbox::list(&self.layout).expect("listed") {
            Sandbox::delete(&self.layout, &id).expect("deleted");
            IdRanges::release(&self.layout, &id).expect("released");
        }
        assert!(!self.dir.path().join("run/net").exists());
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn prefix(text: &str) -> Prefix {
    let (address, length) = text.split_once('/').expect("a prefix");
    (ip(address), length.parse().expect("a length"))
}

fn interface(name: &str, addresses: &[&str]) -> Interface {
    Interface {
        name: name.into(),
        addresses: addresses.iter().map(|text| prefix(text)).collect(),
        ..Default::default()
    }
}

fn show(namespace: &Namespace, args: &[&str]) -> String {
    namespace.within(|| support::host("ip", args)).expect("inside")
}

fn readable(fd: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::from(2000u16)).expect("polled") == 1
}

/// Reads until a frame fulfils `wanted`; others (neighbour discovery of the stacks) are passed over.
fn read_until(file: &mut File, wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut frame = vec![0; 1 << 16];
    while readable(file) {
        let length = file.read(&mut frame).expect("read");
        if wanted(&frame[..length]) {
            frame.truncate(length);
            return frame;
        }
    }
    panic!("no such frame came");
}

#[test]
fn a_veth_pair_joins_two_sandboxes_and_is_made_once() {
    needs!("a_veth_pair_joins_two_sandboxes_and_is_made_once", root());
    let pair = Pair::new();
    let wire = || {
        net::veth((&pair.a, "n4"), (&pair.b, "n4")).expect("wired");
        let mac = Some([2, 0, 0, 0, 0, 1]);
        let wanted = Interface { mac, mtu: Some(9000), ..interface("n4", &["10.4.0.1/24", "2001:db8::1/64"]) };
        net::configure(&pair.a, &wanted).expect("configured");
        net::configure(&pair.b, &interface("n4", &["10.4.0.2/24", "2001:db8::2/64"])).expect("configured");
        show(&pair.a, &["-o", "link", "show", "n4"]).split(':').next().expect("an index").to_owned()
    };
    let index = wire();
    assert_eq!(wire(), index, "the second time it stays as it is");
    let link = show(&pair.a, &["link", "show", "n4"]);
    assert!(link.contains("mtu 9000") && link.contains("02:00:00:00:00:01") && link.contains("UP"), "{link}");

    for (here, there) in [("10.4.0.1", "10.4.0.2"), ("2001:db8::1", "2001:db8::2")] {
        let server = pair.b.within(|| TcpListener::bind((ip(there), 80))).expect("inside").expect("bound");
        let mut client = pair.a.within(|| TcpStream::connect((ip(there), 80))).expect("inside").expect("connected");
        let (mut accepted, peer) = server.accept().expect("accepted");
        assert_eq!(peer.ip(), ip(here));
        client.write_all(b"x").expect("written");
        accepted.read_exact(&mut [0]).expect("read");
    }

    // An interface of that name that is something else is replaced.
    show(&pair.a, &["link", "del", "n4"]);
    show(&pair.a, &["link", "add", "n4", "type", "bridge"]);
    assert_ne!(wire(), index);
    net::remove(&pair.a, "n4").expect("removed");
    net::remove(&pair.a, "n4").expect("removing twice is no error");
    assert_eq!(net::interfaces(&pair.b).expect("listed"), ["lo"], "both ends go");
}

#[test]
fn addresses_and_routes_become_what_is_wanted() {
    needs!("addresses_and_routes_become_what_is_wanted", root());
    let pair = Pair::new();
    net::veth((&pair.a, "x"), (&pair.b, "x")).expect("wired");
    let route = |to: &str, via: Option<&str>| Route { to: prefix(to), via: via.map(ip) };
    let mut wanted = interface("x", &["10.0.0.1/24", "2001:db8::1/64"]);
    wanted.routes = vec![
        route("0.0.0.0/0", Some("10.0.0.254")),
        route("192.0.2.9/24", None),
        route("::/0", Some("2001:db8::ffff")),
        route("198.51.100.0/24", Some("2001:db8::ffff")),
    ];
    net::configure(&pair.a, &wanted).expect("configured");
    net::configure(&pair.a, &wanted).expect("configured again");
    let routes = show(&pair.a, &["route"]);
    assert!(routes.contains("default via 10.0.0.254 dev x"), "{routes}");
    assert!(routes.contains("192.0.2.0/24 dev x"), "{routes}");
    assert!(routes.contains("198.51.100.0/24 via inet6 2001:db8::ffff dev x"), "{routes}");
    assert!(show(&pair.a, &["-6", "route"]).contains("default via 2001:db8::ffff dev x"));

    let mut changed = interface("x", &["10.0.1.1/24"]);
    changed.routes = vec![route("0.0.0.0/0", Some("10.0.1.254"))];
    net::configure(&pair.a, &changed).expect("configured");
    let routes = show(&pair.a, &["route"]);
    assert!(routes.contains("default via 10.0.1.254"), "{routes}");
    assert!(!routes.contains("10.0.0.") && !routes.contains("192.0.2.") && !routes.contains("198.51.100."), "{routes}");
    let addresses = show(&pair.a, &["address", "show", "dev", "x"]);
    assert!(!addresses.contains("10.0.0.1") && !addresses.contains("2001:db8::1"), "{addresses}");

    let wrong = Interface { routes: vec![route("2001:db8:1::/48", Some("10.0.1.254"))], ..changed };
    assert!(net::configure(&pair.a, &wrong).is_err());
    assert!(net::configure(&pair.a, &interface("absent", &[])).expect_err("absent").to_string().contains("absent"));
}

#[test]
fn a_tap_carries_frames_and_lives_as_long_as_its_descriptor() {
    needs!("a_tap_carries_frames_and_lives_as_long_as_its_descriptor", root());
    let pair = Pair::new();
    let fd = net::tap(&pair.a, "ue0").expect("a TAP");
    net::configure(&pair.a, &interface("ue0", &["10.60.0.1/24"])).expect("configured");
    assert!(net::tap(&pair.a, "ue0").expect_err("held").to_string().contains("busy"));

    let mut file = File::from(fd);
    let sender = pair.a.within(|| UdpSocket::bind("10.60.0.1:0")).expect("inside").expect("bound");
    sender.send_to(b"x", "10.60.0.2:9").expect("sent");
    let request = read_until(&mut file, |frame| frame[12..14] == [8, 6]);
    assert_eq!(request.len(), 42, "an ARP request without any header before it");
    assert_eq!(request[38..42], [10, 60, 0, 2]);

    drop(file);
    // A program that another test starts right now has all descriptors of this process until it begins.
    let give_up = Instant::now() + Duration::from_secs(10);
    while net::interfaces(&pair.a).expect("listed").contains(&"ue0".to_owned()) {
        assert!(Instant::now() < give_up, "the TAP outlives its descriptor");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// An interface of the host for the test, with its other end in the sandbox `b`; removed at the end.
struct HostInterface(&'static str);

impl HostInterface {
    fn new(name: &'static str, pair: &Pair) -> Self {
        net::veth((&Namespace::host().expect("the host"), name), (&pair.b, "far")).expect("wired");
        net::configure(&pair.b, &interface("far", &["10.9.0.2/24"])).expect("configured");
        Self(name)
    }
}

impl Drop for HostInterface {
    fn drop(&mut self) {
        net::remove(&Namespace::host().expect("the host"), self.0).expect("removed");
    }
}

#[test]
fn a_macvlan_puts_a_sandbox_on_an_interface_of_the_host() {
    needs!("a_macvlan_puts_a_sandbox_on_an_interface_of_the_host", root());
    let pair = Pair::new();
    let host = HostInterface::new("kaista-t1", &pair);
    for _ in 0..2 {
        net::macvlan(&pair.a, "eth1", host.0).expect("made");
        net::configure(&pair.a, &interface("eth1", &["10.9.0.1/24"])).expect("configured");
    }
    let server = pair.b.within(|| TcpListener::bind("10.9.0.2:80")).expect("inside").expect("bound");
    pair.a.within(|| TcpStream::connect("10.9.0.2:80")).expect("inside").expect("connected");
    server.accept().expect("accepted");
    assert!(net::macvlan(&pair.a, "eth2", "absent").expect_err("absent").to_string().contains("absent"));
}

/// Lets the sandbox `b` send a large TCP segment to 10.9.0.1, whose station is `queue` alone, and checks what comes.
fn frames_of_a_stack(pair: &Pair, queue: OwnedFd, mac: [u8; 6]) {
    let mut file = File::from(queue);
    let neighbour = mac.map(|byte| format!("{byte:02x}")).join(":");
    show(&pair.b, &["neigh", "replace", "10.9.0.1", "lladdr", &neighbour, "dev", "far"]);
    let sender = pair.b.within(|| UdpSocket::bind("10.9.0.2:7")).expect("inside").expect("bound");
    sender.send_to(b"payload", "10.9.0.1:9").expect("sent");
    let frame = read_until(&mut file, |frame| frame[12..14] == [8, 0] && frame[23] == 17);
    assert_eq!(&frame[..6], mac);
    assert_eq!(&frame[42..49], b"payload");
    // The checksum of the pseudo header, header and payload is complete: it sums to all ones.
    let mut words: Vec<u16> =
        frame[26..49].chunks(2).map(|c| u16::from_be_bytes([c[0], *c.get(1).unwrap_or(&0)])).collect();
    words.extend([17, 15]);
    let sum = words.iter().fold(0u32, |sum, word| sum + u32::from(*word));
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the UDP checksum is complete");

    // And the other way.
    let mut answer = frame.clone();
    answer[..6].copy_from_slice(&frame[6..12]);
    answer[6..12].copy_from_slice(&mac);
    answer[26..30].copy_from_slice(&frame[30..34]);
    answer[30..34].copy_from_slice(&frame[26..30]);
    answer[34..36].copy_from_slice(&frame[36..38]);
    answer[36..38].copy_from_slice(&frame[34..36]);
    file.write_all(&answer).expect("written");
    sender.set_read_timeout(Some(Duration::from_secs(2))).expect("set");
    let mut buffer = [0; 16];
    let (length, from) = sender.recv_from(&mut buffer).expect("received");
    assert_eq!((&buffer[..length], from.to_string().as_str()), (b"payload".as_slice(), "10.9.0.1:9"));
}

#[test]
fn a_macvtap_carries_whole_frames_to_and_from_the_host_s_network() {
    needs!("a_macvtap_carries_whole_frames_to_and_from_the_host_s_network", root());
    let pair = Pair::new();
    let host = HostInterface::new("kaista-t2", &pair);
    let mac = [2, 0, 0, 0, 9, 1];
    let open = || {
        let queue = net::macvtap(&pair.a, "wire", host.0).expect("made");
        net::configure(&pair.a, &Interface { mac: Some(mac), ..interface("wire", &[]) }).expect("configured");
        queue
    };
    drop(open());
    frames_of_a_stack(&pair, open(), mac);
}

#[test]
fn a_packet_tap_sees_both_ways() {
    needs!("a_packet_tap_sees_both_ways", root());
    let pair = Pair::new();
    net::veth((&pair.a, "x"), (&pair.b, "x")).expect("wired");
    net::configure(&pair.a, &interface("x", &["10.0.0.1/24"])).expect("configured");
    net::configure(&pair.b, &interface("x", &["10.0.0.2/24"])).expect("configured");
    let tap = net::packet_tap(&pair.a, "x").expect("a tap");
    let server = pair.b.within(|| UdpSocket::bind("10.0.0.2:7")).expect("inside").expect("bound");
    let client = pair.a.within(|| UdpSocket::bind("10.0.0.1:0")).expect("inside").expect("bound");
    client.send_to(b"ping", "10.0.0.2:7").expect("sent");
    let (_, from) = server.recv_from(&mut [0; 16]).expect("received");
    server.send_to(b"pong", from).expect("sent");
    client.recv_from(&mut [0; 16]).expect("received");

    let udp = |frame: &[u8]| frame[12..14] == [8, 0] && frame[23] == 17;
    let mut seen = Vec::new();
    while let Some(sniffed) = tap.receive().expect("received") {
        assert!(sniffed.at.elapsed().is_ok_and(|age| age < Duration::from_secs(10)));
        if udp(&sniffed.frame) {
            seen.push((sniffed.outgoing, sniffed.frame[42..46].to_vec()));
        }
    }
    assert_eq!(seen, [(true, b"ping".to_vec()), (false, b"pong".to_vec())]);
    assert_eq!(tap.dropped(), 0);
}

#[test]
fn an_interface_of_the_host_that_is_another_s_is_refused_and_left_as_it_is() {
    needs!("an_interface_of_the_host_that_is_another_s_is_refused_and_left_as_it_is", root());
    let pair = Pair::new();
    let host = Namespace::host().expect("the host");
    let persistent: [&[&str]; 2] =
        [&["link", "add", "kaista-t3", "type", "bridge"], &["tuntap", "add", "kaista-t4", "mode", "tap"]];
    for (name, command) in ["kaista-t3", "kaista-t4"].into_iter().zip(persistent) {
        support::host("ip", command);
        let before = support::host("ip", &["-o", "link", "show", name]);
        let refusals = [net::veth((&pair.a, "x"), (&host, name)).err(), net::tap(&host, name).err()];
        for refusal in refusals {
            let said = refusal.expect("refused").to_string();
            assert!(said.contains(name) && said.contains("not this link's"), "{said}");
        }
        assert_eq!(support::host("ip", &["-o", "link", "show", name]), before);
        net::remove(&host, name).expect("removed");
    }

    net::veth((&pair.a, "x"), (&host, "kaista-t5")).expect("wired");
    assert!(net::veth((&pair.b, "x"), (&host, "kaista-t5")).is_err(), "it belongs to a link of another function");
    net::remove(&pair.a, "x").expect("removed");
    assert!(!net::interfaces(&host).expect("listed").contains(&"kaista-t5".to_owned()), "it goes with the link");
}

#[test]
fn a_pair_whose_maker_was_killed_before_it_said_whose_it_is_is_made_anew() {
    needs!("a_pair_whose_maker_was_killed_before_it_said_whose_it_is_is_made_anew", root());
    let pair = Pair::new();
    let host = Namespace::host().expect("the host");
    let wire = || net::veth((&pair.a, "x"), (&host, "kaista-t6"));
    for ends_without_alias in [&["x", "kaista-t6"][..], &["kaista-t6"]] {
        wire().expect("wired");
        for end in ends_without_alias {
            let command = ["link", "set", end, "alias", ""];
            drop(if *end == "x" { show(&pair.a, &command) } else { support::host("ip", &command) });
        }
        wire().expect("wired again");
    }
    net::remove(&pair.a, "x").expect("removed");
}
