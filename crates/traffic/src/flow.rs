//! A flow of packets: from where to where, and through which tunnel.

use std::net::Ipv4Addr;

use gtpu::{Direction, GpduHeader, PduSession};

use crate::frame;

/// UDP port that stamped packets go to.
pub const SINK_PORT: u16 = 9_000;
/// UDP port that the first flow's packets come from; flow n has this plus n modulo 1,024.
pub const SOURCE_PORT: u16 = 10_000;

/// One flow: where its packets come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Source address; of the UE, where the flow goes uplink.
    pub from: Ipv4Addr,
    /// Destination address.
    pub to: Ipv4Addr,
    /// The tunnel that it goes through.
    pub tunnel: Option<Tunnel>,
}

/// A GTP-U tunnel with a PDU session container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// This side's address.
    pub from: Ipv4Addr,
    /// The other side's address.
    pub to: Ipv4Addr,
    /// TEID of the other side.
    pub teid: u32,
    /// QoS flow identifier.
    pub qfi: u8,
    /// The way that the packets go.
    pub direction: Direction,
}

/// A frame of `flow` with `payload_len` bytes of inner UDP payload, from the IP header on.
pub fn packet(flow: &Flow, number: u32, payload_len: usize) -> Vec<u8> {
    let source_port = SOURCE_PORT + (number % 1_024) as u16;
    let inner = frame::udp_packet((flow.from, source_port), (flow.to, SINK_PORT), &vec![0; payload_len]);
    match flow.tunnel {
        None => inner,
        Some(tunnel) => {
            let container = PduSession { direction: tunnel.direction, qfi: tunnel.qfi, rqi: false };
            frame::gtpu_packet(tunnel.from, tunnel.to, &GpduHeader::new(tunnel.teid, Some(container)), &inner)
        }
    }
}

impl Flow {
    /// The steering bucket of its packets, as ports compute it: by the TEID where there is a tunnel, or else by the
    /// destination address.
    pub fn bucket(&self) -> u8 {
        match self.tunnel {
            Some(tunnel) => port::steering::teid_bucket(tunnel.teid),
            None => port::steering::address_bucket(self.to.into()),
        }
    }
}
