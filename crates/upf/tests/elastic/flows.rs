//! Packets of every kind that a UPF steers, each with its flow and its number in the flow at the end.

use std::net::{Ipv4Addr, Ipv6Addr};

use upf::ip;

use crate::sessions::{MAC, ue};

/// What a flow's packets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From a UE, in a tunnel without extension headers.
    Uplink,
    /// The same with a PDU session container.
    UplinkQfi,
    /// The UE's IPv6 packets.
    UplinkV6,
    /// To a UE.
    Downlink,
    /// To its IPv6 prefix, which is steered elsewhere than its IPv4 address.
    DownlinkV6,
    /// To a network behind it, which is steered elsewhere, too.
    DownlinkFramed,
    /// From a UE to the next UPF.
    ToN9,
    /// From there to a UE.
    FromN9,
    /// To a UE with a maximum bit rate of next to nothing.
    Policed,
    /// To a UE that sleeps and wakes.
    Paged,
}

impl Kind {
    pub const ALL: [Self; 10] = [
        Self::Uplink,
        Self::UplinkQfi,
        Self::UplinkV6,
        Self::Downlink,
        Self::DownlinkV6,
        Self::DownlinkFramed,
        Self::ToN9,
        Self::FromN9,
        Self::Policed,
        Self::Paged,
    ];
}

/// A flow: the UE's number and the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub ue: u32,
    pub kind: Kind,
}

/// Octets of a policed packet from its IP header on. Ten of them are what a policer's smallest bucket holds.
pub const POLICED_LEN: usize = 960;
/// Of all others, at least.
const PAYLOAD_LEN: usize = 40;

impl Flow {
    pub fn id(self) -> u32 {
        self.ue * 16 + self.kind as u32
    }

    pub fn of_id(id: u32) -> Self {
        Self { ue: id / 16, kind: Kind::ALL[id as usize % 16] }
    }

    /// A packet of the flow with number 0, in a tunnel with this TEID if it is to be in one.
    pub fn frame(self, teid: u32) -> Vec<u8> {
        let remote = (Ipv4Addr::new(10, 6, 0, 9), "2001:db8:6::9".parse().unwrap());
        let (v4, v6) = (ue(self.ue), v6(self.ue));
        match self.kind {
            Kind::Uplink | Kind::ToN9 => tunnelled(self.kind, teid, None, inner_v4(v4, remote.0, self.payload_len())),
            Kind::UplinkQfi => tunnelled(self.kind, teid, Some(9), inner_v4(v4, remote.0, self.payload_len())),
            Kind::UplinkV6 => tunnelled(self.kind, teid, None, inner_v6(v6, remote.1, self.payload_len())),
            Kind::FromN9 => tunnelled(self.kind, teid, None, inner_v4(remote.0, v4, self.payload_len())),
            Kind::Downlink | Kind::Paged => plain(inner_v4(remote.0, v4, self.payload_len())),
            Kind::Policed => plain(inner_v4(remote.0, v4, POLICED_LEN - 28)),
            Kind::DownlinkV6 => plain(inner_v6(remote.1, v6, self.payload_len())),
            Kind::DownlinkFramed => plain(inner_v4(remote.0, framed(self.ue), self.payload_len())),
        }
    }

    /// Different lengths, so that rings wrap everywhere.
    fn payload_len(self) -> usize {
        PAYLOAD_LEN + self.ue as usize * 37 % 1_200
    }
}

/// The IPv6 address of UE `number`, of its own prefix.
pub fn v6(number: u32) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0x45, number as u16, 0, 0, 0, 1)
}

/// An address behind UE `number`.
pub fn framed(number: u32) -> Ipv4Addr {
    Ipv4Addr::new(172, 16, number as u8, 7)
}

/// Says which packet of its flow it is.
pub fn set_number(frame: &mut [u8], flow: Flow, number: u32) {
    let at = frame.len() - 8;
    frame[at..at + 4].copy_from_slice(&flow.id().to_be_bytes());
    frame[at + 4..].copy_from_slice(&number.to_be_bytes());
}

/// Flow and number.
pub fn number(frame: &[u8]) -> (Flow, u32) {
    let word = |at: usize| u32::from_be_bytes(frame[frame.len() - at..][..4].try_into().unwrap());
    (Flow::of_id(word(8)), word(4))
}

fn inner_v4(from: Ipv4Addr, to: Ipv4Addr, payload_len: usize) -> Vec<u8> {
    let mut packet = vec![0; 28 + payload_len];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(28 + payload_len as u16).to_be_bytes());
    packet[8..10].copy_from_slice(&[64, 17]);
    packet[12..16].copy_from_slice(&from.octets());
    packet[16..20].copy_from_slice(&to.octets());
    let checksum = ip::checksum(ip::sum(&packet[..20]));
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet[24..26].copy_from_slice(&(8 + payload_len as u16).to_be_bytes());
    packet
}

fn inner_v6(from: Ipv6Addr, to: Ipv6Addr, payload_len: usize) -> Vec<u8> {
    let mut packet = vec![0; 48 + payload_len];
    packet[0] = 0x60;
    packet[4..6].copy_from_slice(&(8 + payload_len as u16).to_be_bytes());
    packet[6..8].copy_from_slice(&[17, 64]);
    packet[8..24].copy_from_slice(&from.octets());
    packet[24..40].copy_from_slice(&to.octets());
    packet[44..46].copy_from_slice(&(8 + payload_len as u16).to_be_bytes());
    packet
}

fn plain(packet: Vec<u8>) -> Vec<u8> {
    let ethertype: u16 = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
    [&MAC[..], &[2; 6], &ethertype.to_be_bytes(), &packet].concat()
}

fn tunnelled(kind: Kind, teid: u32, qfi: Option<u8>, packet: Vec<u8>) -> Vec<u8> {
    let extension: &[u8] = match qfi {
        // No sequence number, the next extension is a PDU session container: of uplink, then none.
        Some(qfi) => &[0, 0, 0, 0x85, 1, 0x10, qfi, 0],
        None => &[],
    };
    let flags = if qfi.is_some() { 0x34 } else { 0x30 };
    let length = (extension.len() + packet.len()) as u16;
    let gtpu = [&[flags, 255], &length.to_be_bytes()[..], &teid.to_be_bytes(), extension, &packet].concat();
    let net = if kind == Kind::FromN9 { 9 } else { 3 };
    let mut outer = inner_v4([10, net, 0, 2].into(), [10, net, 0, 1].into(), gtpu.len());
    outer[20..24].copy_from_slice(&[8, 104, 8, 104]);
    outer[28..].copy_from_slice(&gtpu);
    plain(outer)
}
