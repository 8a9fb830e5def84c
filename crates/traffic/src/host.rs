//! The manners of an IP host on a port: ARP, neighbour discovery, ICMP echo. Off the fast path.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use port::PortInfo;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, Icmpv4Packet,
    Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags,
    NdiscRepr, RawHardwareAddress,
};

const HOP_LIMIT: u8 = 64;
const NDISC_HOP_LIMIT: u8 = 255;
const NEIGHBOURS_MAX: usize = 65_536;
const EVERYONE: [u8; 6] = [0xff; 6];

/// What became of a frame that a host looked at.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was for the host, and this is the answer.
    Reply(Vec<u8>),
    /// It was for the host, which has nothing to say.
    Consumed,
    /// It is none of the host's business.
    Other,
}

/// Which addresses a host answers for.
enum Role {
    /// These.
    Host(Vec<IpAddr>),
    /// Every one but those of its clients: IPv4 addresses, and the first address of IPv6 prefixes of 64 bits.
    Gateway(HashSet<IpAddr>),
}

/// An IP host: its own addresses, and the neighbours that it has heard of.
pub struct Host {
    mac: [u8; 6],
    role: Role,
    neighbours: HashMap<IpAddr, [u8; 6]>,
}

impl Host {
    /// A host with the addresses of a port.
    pub fn of(info: &PortInfo) -> Self {
        let addresses = info.addresses.iter().map(|(address, _)| *address).collect();
        Self { mac: info.mac, role: Role::Host(addresses), neighbours: HashMap::new() }
    }

    /// A gateway with the Ethernet address `mac`: it answers for every address except those of its `clients`. An IPv6
    /// client has the 64-bit prefix of the address given.
    pub fn gateway(mac: [u8; 6], clients: impl IntoIterator<Item = IpAddr>) -> Self {
        let clients = clients.into_iter().map(client_of).collect();
        Self { mac, role: Role::Gateway(clients), neighbours: HashMap::new() }
    }

    /// The host's Ethernet address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// The Ethernet address of a neighbour, if it was heard.
    #[inline]
    pub fn neighbour(&self, address: IpAddr) -> Option<[u8; 6]> {
        self.neighbours.get(&address).copied()
    }

    /// Remembers where an address was heard.
    #[inline]
    pub fn learn(&mut self, address: IpAddr, mac: [u8; 6]) {
        // Only unicast addresses can be a neighbour's, and a flood of made-up ones must not fill the memory.
        if mac[0] & 1 != 0 {
            return;
        }
        let room = self.neighbours.len() < NEIGHBOURS_MAX;
        match self.neighbours.entry(address) {
            Entry::Occupied(mut known) => *known.get_mut() = mac,
            Entry::Vacant(unknown) if room => {
                unknown.insert(mac);
            }
            Entry::Vacant(_) => {}
        }
    }

    /// Remembers where a gateway's client was heard; other addresses are nothing to remember.
    #[inline]
    pub fn learn_client(&mut self, address: IpAddr, mac: [u8; 6]) {
        let is_client = || matches!(&self.role, Role::Gateway(clients) if clients.contains(&client_of(address)));
        if self.neighbour(address) != Some(mac) && is_client() {
            self.learn(address, mac);
        }
    }

    /// The frame that asks who has `target`, from the first own address of its version (a gateway asks from none).
    pub fn ask(&self, target: IpAddr) -> Option<Vec<u8>> {
        match target {
            IpAddr::V4(target) => Some(self.arp_request(target)),
            IpAddr::V6(target) => self.solicitation(target),
        }
    }

    /// Frames that tell everyone on the link where the host's IPv4 addresses are (RFC 5227, 3).
    pub fn announcements(&self) -> Vec<Vec<u8>> {
        let Role::Host(own) = &self.role else { return Vec::new() };
        let announce = |address: &IpAddr| match *address {
            IpAddr::V4(own) => Some(self.arp_frame(ArpOperation::Request, own, EthernetAddress(EVERYONE), own)),
            IpAddr::V6(_) => None,
        };
        own.iter().filter_map(announce).collect()
    }

    /// Looks at a frame and answers it if it is ARP, neighbour discovery or an echo request for this host.
    pub fn look_at(&mut self, frame: &[u8]) -> Outcome {
        let Ok(ethernet) = EthernetFrame::new_checked(frame) else { return Outcome::Other };
        let peer = ethernet.src_addr().0;
        match ethernet.ethertype() {
            EthernetProtocol::Arp => self.arp(ethernet.payload()),
            EthernetProtocol::Ipv4 => self.ipv4(peer, ethernet.payload()),
            EthernetProtocol::Ipv6 => self.ipv6(peer, ethernet.payload()),
            _ => Outcome::Other,
        }
    }

    /// Whether the host has `address` (a gateway: whether it speaks for it).
    pub fn has(&self, address: IpAddr) -> bool {
        match (&self.role, address) {
            (Role::Host(own), _) => own.contains(&address),
            // Link-local addresses are the hosts' own on both sides.
            (Role::Gateway(_), IpAddr::V6(v6)) if v6.is_unicast_link_local() => v6 == link_local(self.mac),
            (Role::Gateway(clients), _) => !clients.contains(&client_of(address)),
        }
    }

    fn is_gateway(&self) -> bool {
        matches!(self.role, Role::Gateway(_))
    }

    /// The first own address for which `pick` finds something; a gateway has none.
    fn own<T>(&self, pick: impl Fn(&IpAddr) -> Option<T>) -> Option<T> {
        match &self.role {
            Role::Host(own) => own.iter().find_map(pick),
            Role::Gateway(_) => None,
        }
    }

    fn arp(&mut self, payload: &[u8]) -> Outcome {
        let parsed = ArpPacket::new_checked(payload).and_then(|packet| ArpRepr::parse(&packet));
        let Ok(ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr,
            target_protocol_addr,
            ..
        }) = parsed
        else {
            return Outcome::Consumed;
        };
        if !source_protocol_addr.is_unspecified() {
            self.learn(source_protocol_addr.into(), source_hardware_addr.0);
        }
        if operation != ArpOperation::Request || !self.has(target_protocol_addr.into()) {
            return Outcome::Consumed;
        }
        Outcome::Reply(self.arp_frame(
            ArpOperation::Reply,
            target_protocol_addr,
            source_hardware_addr,
            source_protocol_addr,
        ))
    }

    fn arp_request(&self, target: Ipv4Addr) -> Vec<u8> {
        let own = self.own(|address| match address {
            IpAddr::V4(own) => Some(*own),
            IpAddr::V6(_) => None,
        });
        // Without an address of its own this is a probe (RFC 5227, 2.1.1), which every host answers.
        self.arp_frame(ArpOperation::Request, own.unwrap_or(Ipv4Addr::UNSPECIFIED), EthernetAddress(EVERYONE), target)
    }

    fn arp_frame(&self, operation: ArpOperation, own: Ipv4Addr, to: EthernetAddress, target: Ipv4Addr) -> Vec<u8> {
        let arp = ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: EthernetAddress(self.mac),
            source_protocol_addr: own,
            target_hardware_addr: if to.0 == EVERYONE { EthernetAddress([0; 6]) } else { to },
            target_protocol_addr: target,
        };
        self.framed(to.0, EthernetProtocol::Arp, arp.buffer_len(), |payload| {
            arp.emit(&mut ArpPacket::new_unchecked(payload));
        })
    }

    fn ipv4(&mut self, peer: [u8; 6], payload: &[u8]) -> Outcome {
        let checksums = ChecksumCapabilities::default();
        let Ok(packet) = Ipv4Packet::new_checked(payload) else { return Outcome::Other };
        let Ok(header) = Ipv4Repr::parse(&packet, &checksums) else { return Outcome::Other };
        if self.is_gateway() || header.next_header != IpProtocol::Icmp || !self.has(header.dst_addr.into()) {
            return Outcome::Other;
        }
        let echo = Icmpv4Packet::new_checked(packet.payload())
            .and_then(|icmp| Icmpv4Repr::parse(&icmp, &checksums).map(|echo| (echo, icmp)));
        let Ok((Icmpv4Repr::EchoRequest { ident, seq_no, .. }, icmp)) = echo else { return Outcome::Consumed };
        let reply = Icmpv4Repr::EchoReply { ident, seq_no, data: icmp.data() };
        let ip = Ipv4Repr {
            src_addr: header.dst_addr,
            dst_addr: header.src_addr,
            next_header: IpProtocol::Icmp,
            payload_len: reply.buffer_len(),
            hop_limit: HOP_LIMIT,
        };
        Outcome::Reply(self.framed(peer, EthernetProtocol::Ipv4, ip.buffer_len() + reply.buffer_len(), |payload| {
            let mut packet = Ipv4Packet::new_unchecked(payload);
            ip.emit(&mut packet, &checksums);
            reply.emit(&mut Icmpv4Packet::new_unchecked(packet.payload_mut()), &checksums);
        }))
    }

    fn ipv6(&mut self, peer: [u8; 6], payload: &[u8]) -> Outcome {
        let Ok(packet) = Ipv6Packet::new_checked(payload) else { return Outcome::Other };
        let Ok(header) = Ipv6Repr::parse(&packet) else { return Outcome::Other };
        if header.next_header != IpProtocol::Icmpv6 {
            return Outcome::Other;
        }
        let message = Icmpv6Packet::new_checked(packet.payload()).and_then(|icmp| {
            Icmpv6Repr::parse(&header.src_addr, &header.dst_addr, &icmp, &ChecksumCapabilities::default())
        });
        match message {
            Ok(Icmpv6Repr::Ndisc(message)) if header.hop_limit == NDISC_HOP_LIMIT => {
                self.discovery(peer, header.src_addr, message)
            }
            Ok(Icmpv6Repr::EchoRequest { ident, seq_no, data })
                if !self.is_gateway() && self.has(header.dst_addr.into()) =>
            {
                let reply = Icmpv6Repr::EchoReply { ident, seq_no, data };
                Outcome::Reply(self.icmpv6_frame(peer, header.dst_addr, header.src_addr, HOP_LIMIT, &reply))
            }
            _ => Outcome::Other,
        }
    }

    fn discovery(&mut self, peer: [u8; 6], from: Ipv6Addr, message: NdiscRepr<'_>) -> Outcome {
        match message {
            NdiscRepr::NeighborSolicit { target_addr, .. } => {
                if !from.is_unspecified() {
                    self.learn(from.into(), peer);
                }
                if !self.has(target_addr.into()) {
                    return Outcome::Consumed;
                }
                // Who looks for duplicates has no address yet, and is answered through the all-nodes group.
                let probing = from.is_unspecified();
                let to = if probing { Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1) } else { from };
                let mut flags = NdiscNeighborFlags::OVERRIDE;
                flags.set(NdiscNeighborFlags::SOLICITED, !probing);
                flags.set(NdiscNeighborFlags::ROUTER, self.is_gateway());
                let advert = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert {
                    flags,
                    target_addr,
                    lladdr: Some(RawHardwareAddress::from(EthernetAddress(self.mac))),
                });
                let to_mac = if probing { multicast_mac(to) } else { peer };
                Outcome::Reply(self.icmpv6_frame(to_mac, target_addr, to, NDISC_HOP_LIMIT, &advert))
            }
            NdiscRepr::NeighborAdvert { target_addr, lladdr, .. } => {
                let mac = lladdr.and_then(|address| address.as_bytes().try_into().ok()).unwrap_or(peer);
                self.learn(target_addr.into(), mac);
                Outcome::Consumed
            }
            _ => Outcome::Consumed,
        }
    }

    fn solicitation(&self, target: Ipv6Addr) -> Option<Vec<u8>> {
        let own = self.own(|address| match address {
            IpAddr::V6(own) => Some(*own),
            IpAddr::V4(_) => None,
        });
        let own = if self.is_gateway() { link_local(self.mac) } else { own? };
        let [.., a, b, c] = target.octets();
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from(b) << 8 | u16::from(c));
        let solicit = Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit {
            target_addr: target,
            lladdr: Some(RawHardwareAddress::from(EthernetAddress(self.mac))),
        });
        Some(self.icmpv6_frame(multicast_mac(group), own, group, NDISC_HOP_LIMIT, &solicit))
    }

    fn icmpv6_frame(
        &self,
        to_mac: [u8; 6],
        from: Ipv6Addr,
        to: Ipv6Addr,
        hop_limit: u8,
        message: &Icmpv6Repr,
    ) -> Vec<u8> {
        let payload_len = message.buffer_len();
        let ip = Ipv6Repr { src_addr: from, dst_addr: to, next_header: IpProtocol::Icmpv6, payload_len, hop_limit };
        self.framed(to_mac, EthernetProtocol::Ipv6, ip.buffer_len() + payload_len, |payload| {
            let mut packet = Ipv6Packet::new_unchecked(payload);
            ip.emit(&mut packet);
            let mut icmp = Icmpv6Packet::new_unchecked(packet.payload_mut());
            message.emit(&from, &to, &mut icmp, &ChecksumCapabilities::default());
        })
    }

    fn framed(&self, to: [u8; 6], kind: EthernetProtocol, len: usize, fill: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let header =
            EthernetRepr { src_addr: EthernetAddress(self.mac), dst_addr: EthernetAddress(to), ethertype: kind };
        let mut bytes = vec![0; header.buffer_len() + len];
        let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
        header.emit(&mut frame);
        fill(frame.payload_mut());
        bytes
    }
}

/// What a gateway knows the client with `address` by.
fn client_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}

/// The group address of an IPv6 multicast address (RFC 2464, 7).
fn multicast_mac(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// The link-local address of an Ethernet address (RFC 4291, appendix A).
fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

    #[test]
    fn a_gateway_lets_its_clients_find_their_addresses_free() {
        let mut gateway = Host::gateway(OWN_MAC, ["2001:db8::".parse().expect("a prefix")]);
        for tentative in ["2001:db8::17", "fe80::17"] {
            let probe = solicitation_from_nowhere(tentative.parse().expect("an address"));
            assert_eq!(gateway.look_at(&probe), Outcome::Consumed, "{tentative}");
        }
        assert!(gateway.has("2001:db8:0:1::17".parse().expect("an address")));
    }

    #[test]
    fn an_announcement_tells_everyone_where_an_address_is_and_asks_nothing_of_them() {
        let announcing = host(OWN_MAC, &[own(), own6()]);
        let announcements = announcing.announcements();
        assert_eq!(announcements.len(), 1);
        let mut hearer = host(PEER_MAC, &[peer()]);
        assert_eq!(hearer.look_at(&announcements[0]), Outcome::Consumed);
        assert_eq!(hearer.neighbour(own()), Some(OWN_MAC));
        assert!(Host::gateway(OWN_MAC, [own()]).announcements().is_empty());
    }

    fn solicitation_from_nowhere(target: Ipv6Addr) -> Vec<u8> {
        let solicit = Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr: target, lladdr: None });
        let group = "ff02::1:ff00:17".parse().expect("a group");
        let client = host(PEER_MAC, &[]);
        client.icmpv6_frame(multicast_mac(group), Ipv6Addr::UNSPECIFIED, group, NDISC_HOP_LIMIT, &solicit)
    }

    fn own() -> IpAddr {
        "10.3.0.2".parse().expect("an address")
    }

    fn own6() -> IpAddr {
        "2001:db8::2".parse().expect("an address")
    }

    fn peer() -> IpAddr {
        "10.3.0.1".parse().expect("an address")
    }

    fn peer6() -> IpAddr {
        "2001:db8::1".parse().expect("an address")
    }

    fn host(mac: [u8; 6], addresses: &[IpAddr]) -> Host {
        let mut info = PortInfo::named("n3");
        info.mac = mac;
        info.addresses = addresses.iter().map(|address| (*address, 24)).collect();
        Host::of(&info)
    }

    fn reply(outcome: Outcome) -> Vec<u8> {
        match outcome {
            Outcome::Reply(frame) => frame,
            other => panic!("expected a reply, got {other:?}"),
        }
    }

    #[test]
    fn two_hosts_find_each_other() {
        for (own, peer) in [(own(), peer()), (own6(), peer6())] {
            let (mut a, mut b) = (host(OWN_MAC, &[own]), host(PEER_MAC, &[peer]));
            let answer = reply(b.look_at(&a.ask(peer).expect("a question")));
            assert_eq!(a.look_at(&answer), Outcome::Consumed);
            assert_eq!(a.neighbour(peer), Some(PEER_MAC));
            assert_eq!(b.neighbour(own), Some(OWN_MAC));
        }
    }

    #[test]
    fn a_question_for_somebody_else_is_not_answered() {
        let (a, mut b) = (host(OWN_MAC, &[own()]), host(PEER_MAC, &[peer()]));
        let question = a.ask("10.3.0.77".parse().expect("an address")).expect("a question");
        assert_eq!(b.look_at(&question), Outcome::Consumed);
    }

    #[test]
    fn a_gateway_answers_for_all_but_its_clients() {
        let client = host(PEER_MAC, &[peer(), peer6()]);
        let mut gateway = Host::gateway(OWN_MAC, vec![peer(), peer6()]);
        for anyone in ["192.0.2.1", "2001:db8:1::1"] {
            let question = client.ask(anyone.parse().expect("an address")).expect("a question");
            assert_eq!(reply(gateway.look_at(&question))[6..12], OWN_MAC);
        }
        for itself in [peer(), peer6()] {
            assert_eq!(gateway.look_at(&client.ask(itself).expect("a question")), Outcome::Consumed);
        }
    }

    #[test]
    fn a_gateway_finds_its_clients() {
        let mut client = host(PEER_MAC, &[peer(), peer6()]);
        let mut gateway = Host::gateway(OWN_MAC, vec![peer(), peer6()]);
        for address in [peer(), peer6()] {
            let answer = reply(client.look_at(&gateway.ask(address).expect("a question")));
            assert_eq!(gateway.look_at(&answer), Outcome::Consumed);
            assert_eq!(gateway.neighbour(address), Some(PEER_MAC));
        }
    }

    #[test]
    fn an_echo_request_comes_back_as_a_reply() {
        let mut a = host(OWN_MAC, &[own()]);
        let echo = Icmpv4Repr::EchoRequest { ident: 1, seq_no: 2, data: b"payload" };
        let checksums = ChecksumCapabilities::default();
        let mut icmp = vec![0; echo.buffer_len()];
        echo.emit(&mut Icmpv4Packet::new_unchecked(&mut icmp[..]), &checksums);
        let mut frame = crate::frame::ethernet(OWN_MAC, PEER_MAC, crate::frame::ETHERTYPE_IPV4).to_vec();
        let (IpAddr::V4(from), IpAddr::V4(to)) = (peer(), own()) else { unreachable!("both are IPv4") };
        frame.extend(crate::frame::ipv4(from, to, 1, icmp.len()));
        frame.extend(icmp);

        let answer = reply(a.look_at(&frame));
        assert_eq!((&answer[..6], &answer[6..12]), (&PEER_MAC[..], &OWN_MAC[..]));
        let packet = Ipv4Packet::new_checked(&answer[14..]).expect("an IPv4 packet");
        assert!(packet.verify_checksum());
        let icmp = Icmpv4Packet::new_checked(packet.payload()).expect("an ICMP message");
        let parsed = Icmpv4Repr::parse(&icmp, &checksums).expect("a good checksum");
        assert_eq!(parsed, Icmpv4Repr::EchoReply { ident: 1, seq_no: 2, data: b"payload" });
    }

    #[test]
    fn user_packets_are_left_to_others() {
        let mut a = host(OWN_MAC, &[own()]);
        let mut frame = crate::frame::ethernet(OWN_MAC, PEER_MAC, crate::frame::ETHERTYPE_IPV4).to_vec();
        let (IpAddr::V4(from), IpAddr::V4(to)) = (peer(), own()) else { unreachable!("both are IPv4") };
        frame.extend(crate::frame::udp_packet((from, 1), (to, 2), b"x"));
        assert_eq!(a.look_at(&frame), Outcome::Other);
        assert_eq!(a.look_at(&[0; 5]), Outcome::Other);
    }
}
