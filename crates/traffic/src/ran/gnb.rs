//! The gNB's packet function: UE packets into tunnels, tunnelled packets to UEs.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use gtpu::{EchoResponse, ErrorIndication, Header, MESSAGE_MAX_LEN, MessageType, UDP_PORT};
use port::{BURST_MAX, Burst, PacketMut, PacketRef, PortInfo, RxQueue, TxQueue};

use crate::frame::{self, ETHERNET, ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4, IPV6, UDP};
use crate::host::{Host, Outcome};
use crate::ran::bearers::Bearers;
use crate::ran::drops::{Drop, Drops};

/// Time between two questions for the same neighbour's Ethernet address.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// How old an answer may be before the gNB asks again, going on with the old one meanwhile.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// Least time between two error indications (TS 29.281, 7.3.1 leaves the rate to the sender).
const INDICATE_EVERY: Duration = Duration::from_millis(10);

/// What the gNB counts beside its drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent into tunnels.
    pub uplink: u64,
    /// Packets delivered to UEs.
    pub downlink: u64,
    /// Echo requests answered.
    pub echoes: u64,
    /// Error indications sent.
    pub indications_sent: u64,
    /// Error indications received: the UPF does not know a tunnel.
    pub indications_received: u64,
    /// End markers received.
    pub end_markers: u64,
}

/// The gNB between its two ports. Ports are handed to each call, so that their owner can wait for them.
pub struct Gnb {
    address: IpAddr,
    n3: Host,
    n3_mtu: usize,
    next_hop: NextHop,
    uu: Host,
    uu_mtu: usize,
    /// The tunnels.
    pub bearers: Bearers,
    /// What was discarded.
    pub drops: Drops,
    /// What was done.
    pub counters: Counters,
    asked: Asked,
    last_indication: Option<Instant>,
    suspicious: bool,
}

/// What to do with a packet that was looked at.
enum Verdict {
    /// Its headers are rewritten: send it on.
    Send,
    /// Off the fast path: a host or GTP-U node answers.
    Slow,
    Drop(Drop),
}

impl Gnb {
    /// A gNB with GTP-U `address` on the port that `n3` describes, for UEs behind the port that `uu` describes.
    pub fn new(address: IpAddr, n3: &PortInfo, uu: &PortInfo, bearers: Bearers) -> Self {
        Self {
            address,
            n3: Host::of(n3),
            n3_mtu: n3.mtu.into(),
            next_hop: NextHop::of(n3),
            uu: Host::gateway(uu.mac, bearers.ue_addresses()),
            uu_mtu: uu.mtu.into(),
            bearers,
            drops: Drops::default(),
            counters: Counters::default(),
            asked: Asked::default(),
            last_indication: None,
            suspicious: false,
        }
    }

    /// Takes one burst from the UEs and sends it into their tunnels. Returns the number of packets taken.
    pub fn uplink(&mut self, uu: &mut Halves<'_>, n3: &mut dyn TxQueue, now: Instant) -> usize {
        let mut burst = uu.rx.recv();
        let mut send = Selected::none();
        for i in 0..burst.len() {
            match self.encapsulate(&mut burst.get_mut(i), n3, now) {
                Verdict::Send => send.add(i),
                Verdict::Slow => {
                    if let Outcome::Reply(reply) = self.uu.look_at(&whole(burst.get(i))) {
                        uu.tx.send(&[PacketRef::from_slice(&reply)]);
                    }
                }
                Verdict::Drop(reason) => self.drops.add(reason, 1),
            }
        }
        let accepted = send.all(&burst, n3);
        self.counters.uplink += accepted as u64;
        self.drops.add(Drop::N3Refused, (send.len() - accepted) as u64);
        burst.len()
    }

    fn encapsulate(&mut self, packet: &mut PacketMut<'_>, n3: &mut dyn TxQueue, now: Instant) -> Verdict {
        let inner_len = match ip_len(packet.head()) {
            Ok(len) => len,
            Err(verdict) => return verdict,
        };
        if packet.len() < ETHERNET + inner_len {
            return Verdict::Drop(Drop::Truncated);
        }
        let Some((source, _, protocol, _)) = frame::ip(packet.head(), ETHERNET) else {
            return Verdict::Drop(Drop::Truncated);
        };
        if let Some(&mac) = packet.head()[6..].first_chunk::<6>() {
            self.uu.learn_client(source, mac);
        }
        let Some(bearer) = self.bearers.of_ue(source) else {
            // Neighbour discovery comes from link-local addresses; nothing else from there is for a tunnel.
            let is_discovery = protocol == 58 && packet.head()[frame::ETHERNET + 7] == 255;
            return if is_discovery { Verdict::Slow } else { Verdict::Drop(Drop::UnknownUe) };
        };
        let Some(uplink) = bearer.uplink else { return Verdict::Drop(Drop::NoTunnel) };
        let outer = Outer { from: self.address, to: uplink.upf };
        if outer.ip_len() + UDP + uplink.header.len() + inner_len > self.n3_mtu {
            return Verdict::Drop(Drop::TooLong);
        }
        let next_hop = self.next_hop.towards(uplink.upf);
        self.asked.keep_fresh(&self.n3, next_hop, n3, now);
        let Some(mac) = self.n3.neighbour(next_hop) else { return Verdict::Drop(Drop::N3Unresolved) };

        packet.truncate(ETHERNET + inner_len);
        let tunnel_len = uplink.header.len();
        let room =
            packet.strip(ETHERNET).then(|| packet.prepend(ETHERNET + outer.ip_len() + UDP + tunnel_len)).flatten();
        let Some(room) = room else { return Verdict::Drop(Drop::TooLong) };
        let ip_at = ETHERNET;
        let udp_at = ip_at + outer.ip_len();
        room[..ETHERNET].copy_from_slice(&frame::ethernet(mac, self.n3.mac(), outer.ethertype()));
        outer.write(UDP + tunnel_len + inner_len, &mut room[ip_at..udp_at]);
        room[udp_at..udp_at + UDP].copy_from_slice(&frame::udp(UDP_PORT, UDP_PORT, tunnel_len + inner_len));
        uplink.header.write(inner_len, &mut room[udp_at + UDP..]);
        Verdict::Send
    }

    /// Takes one burst from N3 and sends what is in the tunnels to the UEs. Returns the number of packets taken.
    pub fn downlink(&mut self, n3: &mut Halves<'_>, uu: &mut dyn TxQueue, now: Instant) -> usize {
        let mut burst = n3.rx.recv();
        let mut send = Selected::none();
        for i in 0..burst.len() {
            match self.decapsulate(&mut burst.get_mut(i), uu, now) {
                Verdict::Send => send.add(i),
                Verdict::Slow => {
                    if let Some(reply) = self.answer_n3(&whole(burst.get(i)), now) {
                        n3.tx.send(&[PacketRef::from_slice(&reply)]);
                    }
                }
                Verdict::Drop(reason) => self.drops.add(reason, 1),
            }
        }
        let accepted = send.all(&burst, uu);
        self.counters.downlink += accepted as u64;
        self.drops.add(Drop::UuRefused, (send.len() - accepted) as u64);
        burst.len()
    }

    fn decapsulate(&mut self, packet: &mut PacketMut<'_>, uu: &mut dyn TxQueue, now: Instant) -> Verdict {
        let head = packet.head();
        match ip_len(head) {
            Ok(len) if packet.len() < ETHERNET + len => return Verdict::Drop(Drop::Truncated),
            Ok(_) => {}
            Err(verdict) => return verdict,
        }
        let is_group = head[0] & 1 != 0;
        if is_group || head[..6] != self.n3.mac() {
            return if is_group { Verdict::Slow } else { Verdict::Drop(Drop::NotForGnb) };
        }
        let Some(datagram) = frame::datagram(head, ETHERNET) else {
            return if is_fragment(head) { Verdict::Drop(Drop::OuterFragment) } else { Verdict::Slow };
        };
        if datagram.to != self.address || datagram.to_port != UDP_PORT {
            return Verdict::Drop(Drop::NotForGnb);
        }
        let Some(message) = head.get(datagram.payload..) else { return Verdict::Drop(Drop::Truncated) };
        let Ok(header) = gtpu::parse(message, datagram.payload_len) else { return Verdict::Drop(Drop::MalformedGtpu) };
        match header.message_type {
            MessageType::GPDU => self.deliver(packet, datagram.payload + header.header_len, &header, uu, now),
            _ => Verdict::Slow,
        }
    }

    fn deliver(
        &mut self,
        packet: &mut PacketMut<'_>,
        inner_at: usize,
        header: &Header,
        uu: &mut dyn TxQueue,
        now: Instant,
    ) -> Verdict {
        let Some(bearer) = self.bearers.of_teid(header.teid) else {
            self.drops.add(Drop::UnknownTeid, 1);
            return Verdict::Slow;
        };
        let Some((_, to, _, _)) = frame::ip(packet.head(), inner_at) else { return Verdict::Drop(Drop::Truncated) };
        if !bearer.owns(to) {
            return Verdict::Drop(Drop::ForeignAddress);
        }
        if header.payload_len > self.uu_mtu {
            return Verdict::Drop(Drop::TooLong);
        }
        let Some(mac) = self.uu.neighbour(to) else {
            self.asked.keep_fresh(&self.uu, to, uu, now);
            return Verdict::Drop(Drop::UeUnresolved);
        };
        let ethertype = if to.is_ipv4() { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
        packet.truncate(inner_at + header.payload_len);
        let ethernet = packet.strip(inner_at).then(|| packet.prepend(ETHERNET)).flatten();
        let Some(ethernet) = ethernet else { return Verdict::Drop(Drop::Truncated) };
        ethernet.copy_from_slice(&frame::ethernet(mac, self.uu.mac(), ethertype));
        Verdict::Send
    }

    /// Answers ARP, neighbour discovery, ICMP echo, and GTP-U messages other than G-PDUs.
    fn answer_n3(&mut self, frame: &[u8], now: Instant) -> Option<Vec<u8>> {
        let ours = |datagram: &frame::Datagram| datagram.to == self.address && datagram.to_port == UDP_PORT;
        let is_ip = matches!(frame::ethertype(frame), ETHERTYPE_IPV4 | ETHERTYPE_IPV6);
        if let Some(datagram) = frame::datagram(frame, ETHERNET).filter(|datagram| is_ip && ours(datagram)) {
            return self.answer_gtpu(frame, &datagram, now);
        }
        match self.n3.look_at(frame) {
            Outcome::Reply(reply) => Some(reply),
            Outcome::Consumed => None,
            Outcome::Other => {
                self.drops.add(Drop::NotForGnb, 1);
                None
            }
        }
    }

    fn answer_gtpu(&mut self, frame: &[u8], datagram: &frame::Datagram, now: Instant) -> Option<Vec<u8>> {
        let header = gtpu::parse(frame.get(datagram.payload..)?, datagram.payload_len).ok()?;
        let mut message = [0; MESSAGE_MAX_LEN];
        let (len, to_port) = match header.message_type {
            MessageType::ECHO_REQUEST => {
                self.counters.echoes += 1;
                (EchoResponse::to(&header).write(&mut message), datagram.from_port)
            }
            MessageType::GPDU if self.may_indicate(now) => {
                self.counters.indications_sent += 1;
                (ErrorIndication { teid: header.teid, peer: self.address }.write(&mut message), UDP_PORT)
            }
            MessageType::ERROR_INDICATION => {
                self.counters.indications_received += 1;
                let elements = frame.get(datagram.payload + header.header_len..)?;
                let indication = ErrorIndication::parse(elements).ok()?;
                self.suspicious |= self.bearers.uses(indication.peer, indication.teid);
                return None;
            }
            MessageType::END_MARKER => {
                self.counters.end_markers += 1;
                return None;
            }
            _ => return None,
        };
        let outer = Outer { from: self.address, to: datagram.from };
        let mut reply = frame::ethernet(*frame[6..].first_chunk()?, self.n3.mac(), outer.ethertype()).to_vec();
        let ip_at = reply.len();
        reply.resize(ip_at + outer.ip_len(), 0);
        outer.write(UDP + len, &mut reply[ip_at..]);
        reply.extend(outer.udp(UDP_PORT, to_port, &message[..len]));
        reply.extend(&message[..len]);
        Some(reply)
    }

    fn may_indicate(&mut self, now: Instant) -> bool {
        let due = self.last_indication.is_none_or(|last| now - last >= INDICATE_EVERY);
        if due {
            self.last_indication = Some(now);
        }
        due
    }

    /// Whether a UPF has said since the last call that it does not know a tunnel that a UE has.
    pub fn take_suspicion(&mut self) -> bool {
        std::mem::take(&mut self.suspicious)
    }

    /// Asks for the UPF's Ethernet address, so that the first packet of a UE finds it known.
    pub fn greet(&mut self, upf: IpAddr, n3: &mut dyn TxQueue, now: Instant) {
        let next_hop = self.next_hop.towards(upf);
        self.asked.keep_fresh(&self.n3, next_hop, n3, now);
    }

    /// Everything counted, by name.
    pub fn named_counters(&self) -> Vec<(&'static str, u64)> {
        let Counters { uplink, downlink, echoes, indications_sent, indications_received, end_markers } = self.counters;
        let mut named = vec![
            ("gnb.uplink", uplink),
            ("gnb.downlink", downlink),
            ("gnb.echoes", echoes),
            ("gnb.error_indications_sent", indications_sent),
            ("gnb.error_indications_received", indications_received),
            ("gnb.end_markers", end_markers),
            ("gnb.tunnels", self.bearers.established() as u64),
        ];
        named.extend(self.drops.named());
        named
    }
}

/// Both halves of a port's queue, on loan.
pub struct Halves<'q> {
    /// Receives.
    pub rx: &'q mut dyn RxQueue,
    /// Sends.
    pub tx: &'q mut dyn TxQueue,
}

/// Places in a burst of the packets to send on.
struct Selected {
    places: [u8; BURST_MAX],
    count: usize,
}

impl Selected {
    fn none() -> Self {
        Self { places: [0; BURST_MAX], count: 0 }
    }

    fn add(&mut self, place: usize) {
        self.places[self.count] = place as u8;
        self.count += 1;
    }

    fn len(&self) -> usize {
        self.count
    }

    /// Sends the selected packets, and returns how many were accepted.
    fn all(&self, burst: &Burst<'_>, tx: &mut dyn TxQueue) -> usize {
        let mut packets = [PacketRef::from_slice(&[]); BURST_MAX];
        for (packet, place) in packets.iter_mut().zip(&self.places[..self.count]) {
            *packet = burst.get((*place).into());
        }
        if self.count == 0 { 0 } else { tx.send(&packets[..self.count]) }
    }
}

/// The outer IP header of a packet that the gNB sends.
struct Outer {
    from: IpAddr,
    to: IpAddr,
}

impl Outer {
    fn ethertype(&self) -> u16 {
        if self.to.is_ipv4() { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 }
    }

    fn ip_len(&self) -> usize {
        if self.to.is_ipv4() { IPV4 } else { IPV6 }
    }

    fn write(&self, payload_len: usize, to: &mut [u8]) {
        match (self.from, self.to) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                to.copy_from_slice(&frame::ipv4(source, destination, frame::PROTOCOL_UDP, payload_len));
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                to.copy_from_slice(&frame::ipv6(source, destination, frame::PROTOCOL_UDP, payload_len));
            }
            // A UPF of the other IP version is never a bearer's (the session manager sees to it).
            _ => to.fill(0),
        }
    }

    /// A UDP header for `payload`, with a checksum where IPv6 demands one.
    fn udp(&self, from: u16, to: u16, payload: &[u8]) -> [u8; UDP] {
        let mut header = frame::udp(from, to, payload.len());
        if let (IpAddr::V6(source), IpAddr::V6(destination)) = (self.from, self.to) {
            let sum = frame::udp6_checksum(source, destination, &header, payload);
            header[6..].copy_from_slice(&sum.to_be_bytes());
        }
        header
    }
}

/// Which neighbour takes a packet on N3.
struct NextHop {
    on_link: Vec<(IpAddr, u8)>,
    routes: Vec<port::Route>,
}

impl NextHop {
    fn of(info: &PortInfo) -> Self {
        let mut routes = info.routes.clone();
        routes.sort_by_key(|route| std::cmp::Reverse(route.prefix));
        Self { on_link: info.addresses.clone(), routes }
    }

    fn towards(&self, address: IpAddr) -> IpAddr {
        let on_link = self.on_link.iter().any(|(own, len)| same_network(*own, address, *len));
        let route = || self.routes.iter().find(|route| same_network(route.to, address, route.prefix));
        if on_link { address } else { route().map_or(address, |route| route.via) }
    }
}

fn same_network(a: IpAddr, b: IpAddr, len: u8) -> bool {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            (a.to_bits() ^ b.to_bits()).checked_shr(32 - u32::from(len.min(32))).unwrap_or(0) == 0
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            (a.to_bits() ^ b.to_bits()).checked_shr(128 - u32::from(len.min(128))).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// When which neighbour was asked for.
#[derive(Default)]
struct Asked(Vec<(IpAddr, Instant)>);

impl Asked {
    /// Asks for `neighbour` unless that was done lately.
    #[inline]
    fn keep_fresh(&mut self, host: &Host, neighbour: IpAddr, tx: &mut dyn TxQueue, now: Instant) {
        let patience = if host.neighbour(neighbour).is_some() { FRESH_FOR } else { ASK_EVERY };
        let asked = self.0.iter_mut().find(|(address, _)| *address == neighbour);
        match asked {
            Some((_, last)) if now.saturating_duration_since(*last) < patience => return,
            Some((_, last)) => *last = now,
            None => self.remember(neighbour, now),
        }
        if let Some(question) = host.ask(neighbour) {
            tx.send(&[PacketRef::from_slice(&question)]);
        }
    }

    fn remember(&mut self, neighbour: IpAddr, now: Instant) {
        const NEIGHBOURS_MAX: usize = 64;
        if self.0.len() == NEIGHBOURS_MAX {
            self.0.remove(0);
        }
        self.0.push((neighbour, now));
    }
}

/// Length of the IP packet in a frame by its own header; what else to do with a frame that holds none.
#[inline]
fn ip_len(head: &[u8]) -> Result<usize, Verdict> {
    let field = |at: usize| head.get(at..at + 2).map(|b| usize::from(u16::from_be_bytes([b[0], b[1]])));
    let len = match frame::ethertype(head) {
        ETHERTYPE_IPV4 => field(ETHERNET + 2),
        ETHERTYPE_IPV6 => field(ETHERNET + 4).map(|payload| IPV6 + payload),
        ETHERTYPE_ARP => return Err(Verdict::Slow),
        _ => return Err(Verdict::Drop(Drop::NotIp)),
    };
    len.ok_or(Verdict::Drop(Drop::Truncated))
}

fn is_fragment(head: &[u8]) -> bool {
    let flags = head.get(ETHERNET + 6..ETHERNET + 8);
    frame::ethertype(head) == ETHERTYPE_IPV4 && flags.is_some_and(|flags| flags[0] & 0x3f != 0 || flags[1] != 0)
}

fn whole(packet: PacketRef<'_>) -> Vec<u8> {
    let mut bytes = vec![0; packet.len()];
    packet.copy_to(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use gtpu::{Direction, EchoRequest, GpduHeader, PduSession};
    use port::synthetic::{Captured, Synthetic};
    use port::{Port, Route};

    use super::*;
    use crate::ran::config::Wanted;

    const GNB: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 2);
    const UPF: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 1);
    const UE: Ipv4Addr = Ipv4Addr::new(10, 60, 0, 1);
    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 6, 0, 2);
    const UPF_MAC: [u8; 6] = [2, 0, 0, 0, 0, 3];
    const UE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 6];
    const UPF_TEID: u32 = 77;
    const GNB_TEID: u32 = 0x1001;

    /// A gNB whose neighbours are known, between ports that receive the given frames.
    struct Bench {
        gnb: Gnb,
        n3: (Port, Captured),
        uu: (Port, Captured),
    }

    fn info(name: &str) -> PortInfo {
        let mut info = PortInfo::named(name);
        info.addresses = if name == "n3" { vec![(GNB.into(), 24)] } else { Vec::new() };
        info
    }

    fn bench(from_n3: Vec<Vec<u8>>, from_uu: Vec<Vec<u8>>) -> Bench {
        let wanted = Wanted {
            ue_v4: Some(UE),
            ue_v6: None,
            qfi: 9,
            downlink_teid: GNB_TEID,
            access_instance: None,
            network_instance: None,
            mbr_bps: None,
            measure_usage: false,
            filters: Vec::new(),
        };
        let mut gnb = Gnb::new(GNB.into(), &info("n3"), &info("uu"), Bearers::new(&[wanted]));
        gnb.bearers.set_uplink(0, Some((UPF.into(), UPF_TEID)));
        gnb.n3.learn(UPF.into(), UPF_MAC);
        gnb.uu.learn_client(UE.into(), UE_MAC);
        // What was just learnt need not be asked for again.
        gnb.asked.remember(UPF.into(), Instant::now());
        let port = |name, frames| Synthetic::new(frames).info(info(name)).once().open_captured();
        Bench { gnb, n3: port("n3", from_n3), uu: port("uu", from_uu) }
    }

    impl Bench {
        fn run(&mut self) {
            let now = Instant::now();
            let n3 = &mut self.n3.0.queues[0];
            let uu = &mut self.uu.0.queues[0];
            self.gnb.uplink(&mut Halves { rx: uu.rx.as_mut(), tx: uu.tx.as_mut() }, n3.tx.as_mut(), now);
            self.gnb.downlink(&mut Halves { rx: n3.rx.as_mut(), tx: n3.tx.as_mut() }, uu.tx.as_mut(), now);
        }

        fn sent(mut self) -> (Vec<Vec<u8>>, Vec<Vec<u8>>, Gnb) {
            self.run();
            (self.n3.1.take(), self.uu.1.take(), self.gnb)
        }
    }

    fn framed(to: [u8; 6], from: [u8; 6], packet: &[u8]) -> Vec<u8> {
        let mut frame = frame::ethernet(to, from, ETHERTYPE_IPV4).to_vec();
        frame.extend(packet);
        frame
    }

    fn own_mac(name: &str) -> [u8; 6] {
        info(name).mac
    }

    fn downlink_frame(teid: u32, inner: &[u8]) -> Vec<u8> {
        let container = PduSession { direction: Direction::Downlink, qfi: 9, rqi: false };
        let packet = frame::gtpu_packet(UPF, GNB, &GpduHeader::new(teid, Some(container)), inner);
        framed(own_mac("n3"), UPF_MAC, &packet)
    }

    #[test]
    fn an_uplink_packet_goes_into_its_tunnel() {
        for payload_len in [0, 10, 1_000] {
            let inner = frame::udp_packet((UE, 1), (SERVER, 2), &vec![7; payload_len]);
            let (n3, _, gnb) = bench(vec![], vec![framed(own_mac("uu"), UE_MAC, &inner)]).sent();
            let container = PduSession { direction: Direction::Uplink, qfi: 9, rqi: false };
            let expected = frame::gtpu_packet(GNB, UPF, &GpduHeader::new(UPF_TEID, Some(container)), &inner);
            assert_eq!(n3, [framed(UPF_MAC, own_mac("n3"), &expected)]);
            assert_eq!((gnb.counters.uplink, gnb.drops), (1, Drops::default()));
        }
    }

    #[test]
    fn padding_of_short_ethernet_frames_does_not_enter_the_tunnel() {
        let inner = frame::udp_packet((UE, 1), (SERVER, 2), b"x");
        let mut padded = framed(own_mac("uu"), UE_MAC, &inner);
        padded.resize(60, 0);
        let (n3, _, _) = bench(vec![], vec![padded]).sent();
        assert_eq!(n3[0].len(), ETHERNET + IPV4 + UDP + 16 + inner.len());
    }

    #[test]
    fn a_downlink_packet_comes_out_of_its_tunnel() {
        let inner = frame::udp_packet((SERVER, 2), (UE, 1), &[7; 1_000]);
        let (_, uu, gnb) = bench(vec![downlink_frame(GNB_TEID, &inner)], vec![]).sent();
        assert_eq!(uu, [framed(UE_MAC, own_mac("uu"), &inner)]);
        assert_eq!((gnb.counters.downlink, gnb.drops), (1, Drops::default()));
    }

    #[test]
    fn what_is_not_in_order_is_dropped_by_reason() {
        let to_ue = frame::udp_packet((SERVER, 2), (UE, 1), b"hello");
        let to_stranger = frame::udp_packet((SERVER, 2), (SERVER, 1), b"hello");
        let mut cut = downlink_frame(GNB_TEID, &to_ue);
        cut.pop();
        let mut other_mac = downlink_frame(GNB_TEID, &to_ue);
        other_mac[5] ^= 1;
        let mut fragment = downlink_frame(GNB_TEID, &to_ue);
        fragment[ETHERNET + 6] = 0x20;
        let mut version_2 = downlink_frame(GNB_TEID, &to_ue);
        version_2[ETHERNET + IPV4 + UDP] = 0x48;
        for (frame, reason) in [
            (downlink_frame(GNB_TEID, &to_stranger), Drop::ForeignAddress),
            (downlink_frame(GNB_TEID + 1, &to_ue), Drop::UnknownTeid),
            (cut, Drop::Truncated),
            (other_mac, Drop::NotForGnb),
            (fragment, Drop::OuterFragment),
            (version_2, Drop::MalformedGtpu),
        ] {
            let (_, uu, gnb) = bench(vec![frame], vec![]).sent();
            assert_eq!((uu.len(), gnb.drops.of(reason)), (0, 1), "{reason:?}");
        }
        let from_stranger = framed(own_mac("uu"), UE_MAC, &frame::udp_packet((SERVER, 1), (UE, 2), b"x"));
        let (n3, _, gnb) = bench(vec![], vec![from_stranger]).sent();
        assert_eq!((n3.len(), gnb.drops.of(Drop::UnknownUe)), (0, 1));
    }

    #[test]
    fn without_a_tunnel_nothing_leaves() {
        let inner = frame::udp_packet((UE, 1), (SERVER, 2), b"x");
        let mut bench = bench(vec![], vec![framed(own_mac("uu"), UE_MAC, &inner)]);
        bench.gnb.bearers.set_uplink(0, None);
        let (n3, _, gnb) = bench.sent();
        assert_eq!((n3.len(), gnb.drops.of(Drop::NoTunnel)), (0, 1));
    }

    #[test]
    fn an_unknown_tunnel_is_answered_with_an_error_indication() {
        let inner = frame::udp_packet((SERVER, 2), (UE, 1), b"x");
        let (n3, _, _) = bench(vec![downlink_frame(99, &inner)], vec![]).sent();
        let datagram = frame::datagram(&n3[0], ETHERNET).expect("a datagram");
        assert_eq!((datagram.from, datagram.to, datagram.to_port), (GNB.into(), UPF.into(), UDP_PORT));
        let header = gtpu::parse(&n3[0][datagram.payload..], datagram.payload_len).expect("a GTP-U message");
        let elements = &n3[0][datagram.payload + header.header_len..];
        assert_eq!(ErrorIndication::parse(elements), Ok(ErrorIndication { teid: 99, peer: GNB.into() }));
    }

    #[test]
    fn an_error_indication_for_a_tunnel_in_use_is_suspicious() {
        for (teid, suspicious) in [(UPF_TEID, true), (UPF_TEID + 1, false)] {
            let mut message = [0; MESSAGE_MAX_LEN];
            let len = ErrorIndication { teid, peer: UPF.into() }.write(&mut message);
            let packet = frame::udp_packet((UPF, UDP_PORT), (GNB, UDP_PORT), &message[..len]);
            let (n3, _, mut gnb) = bench(vec![framed(own_mac("n3"), UPF_MAC, &packet)], vec![]).sent();
            assert_eq!((n3.len(), gnb.counters.indications_received), (0, 1));
            assert_eq!(gnb.take_suspicion(), suspicious);
            assert!(!gnb.take_suspicion(), "it is told once");
        }
    }

    #[test]
    fn an_echo_request_is_answered_to_the_port_that_it_came_from() {
        let mut message = [0; MESSAGE_MAX_LEN];
        let len = EchoRequest { sequence: 5 }.write(&mut message);
        let packet = frame::udp_packet((UPF, 40_000), (GNB, UDP_PORT), &message[..len]);
        let (n3, _, gnb) = bench(vec![framed(own_mac("n3"), UPF_MAC, &packet)], vec![]).sent();
        let datagram = frame::datagram(&n3[0], ETHERNET).expect("a datagram");
        assert_eq!((datagram.from_port, datagram.to_port), (UDP_PORT, 40_000));
        let header = gtpu::parse(&n3[0][datagram.payload..], datagram.payload_len).expect("a GTP-U message");
        assert_eq!((header.message_type, header.sequence), (MessageType::ECHO_RESPONSE, Some(5)));
        assert_eq!(gnb.counters.echoes, 1);
    }

    #[test]
    fn an_unknown_neighbour_is_asked_for_once_in_a_while() {
        let inner = frame::udp_packet((UE, 1), (SERVER, 2), b"x");
        let uplink = framed(own_mac("uu"), UE_MAC, &inner);
        let mut bench = bench(vec![], vec![uplink.clone(), uplink]);
        bench.gnb.n3 = Host::of(&info("n3"));
        bench.gnb.asked = Asked::default();
        let (n3, _, gnb) = bench.sent();
        assert_eq!(n3.len(), 1, "one question for two packets");
        assert_eq!(frame::ethertype(&n3[0]), ETHERTYPE_ARP);
        assert_eq!(gnb.drops.of(Drop::N3Unresolved), 2);
    }

    #[test]
    fn the_longest_matching_route_leads_to_the_neighbour() {
        let mut info = info("n3");
        let via = |text: &str| text.parse().expect("an address");
        info.routes = vec![
            Route { to: via("0.0.0.0"), prefix: 0, via: via("10.3.0.254") },
            Route { to: via("192.0.2.0"), prefix: 24, via: via("10.3.0.253") },
        ];
        let next_hop = NextHop::of(&info);
        for (address, neighbour) in
            [("10.3.0.1", "10.3.0.1"), ("192.0.2.9", "10.3.0.253"), ("198.51.100.1", "10.3.0.254")]
        {
            assert_eq!(next_hop.towards(via(address)), via(neighbour), "{address}");
        }
    }
}
