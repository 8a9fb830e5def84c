//! The packet function: what becomes of a packet, from the tables, the session's state, the first bytes of the packet, and
//! the time. It sends nothing and changes no packet; whoever calls it carries the verdict out.
//!
//! It comes in two halves: [`classify`] finds the session, by a short way for headers as nearly all packets have them ([`usual`]);
//! [`decide`] applies its rules. Where there are many sessions, [`ahead`] finds those of a burst together, and has what their
//! packets will need on the way.

mod ahead;
mod aside;
mod classify;
mod decide;
mod relayed;
mod usual;

use std::net::IpAddr;

pub use aside::{Duplicate, Untranslated, besides, forgo};
pub use classify::classify;
pub(crate) use classify::{classify_all, is_of_neighbours};
pub(crate) use decide::{User, count, counted, find_plain, find_tunnelled, into_tunnel, out_of, remark};
pub use decide::{decide, matching};
pub(crate) use relayed::{Came, Relayed};
pub(crate) use usual::decide as decide_usual;

use crate::drops::DropReason;
use crate::ip;
use crate::marking::Marking;
use crate::path::{Path, Tunnel};
use crate::side::{self, NextHop, PortId};
use crate::tables::{Bucket, Rule, Version};

/// Bytes of an Ethernet header.
pub const ETHERNET_LEN: usize = 14;

/// What becomes of a packet: it is sent, or what is rare.
pub type Verdict<'t> = Result<Forward<'t>, Rare>;

/// What becomes of a packet that is not sent, or not only.
#[derive(Clone, Copy, Debug)]
pub enum Rare {
    /// Discard it. [`forgo`] says more.
    Drop(DropReason),
    /// Keep it until there are others than this rule (see [`Version::rule`]).
    Buffer(u32),
    /// Give it to the slow path.
    Punt(Punt),
    /// Send copies of it, and then do with it what [`besides`] says.
    Duplicate(Duplicate),
    /// Translate it, and send it into its data network.
    Translate(Untranslated),
}

impl From<DropReason> for Rare {
    fn from(reason: DropReason) -> Self {
        Self::Drop(reason)
    }
}

/// How to send a packet.
#[derive(Clone, Copy, Debug)]
pub struct Forward<'t> {
    /// The port to send it to.
    pub port: PortId,
    /// Bytes to take off the front of the frame.
    pub strip: u16,
    /// Bytes of the frame to keep behind them.
    pub keep: u16,
    /// What to put before these.
    pub prepend: Prepend<'t>,
    /// Whether the neighbour's Ethernet address is known. It is sent once that is so; see [`neighbour`].
    pub resolved: bool,
    /// ToS or traffic class that the user's packet gets.
    pub marking: Marking,
    /// The rule whose usage it was counted for (see [`Version::rule`]); 0 if it was not counted.
    pub counted: u32,
}

impl Forward<'_> {
    /// Octets of the frame that is sent, unless some of the GTP-U header that the packet came with goes on.
    pub fn frame_len(&self) -> u16 {
        self.keep + self.prepend.len() as u16
    }
}

/// Takes a packet that the rule `counted` has counted, if that is one, and of which `octets` octets were the user's, back out of
/// the counts, as it could not be sent.
#[cold]
pub fn uncount(tables: &Version, counted: u32, octets: u16) {
    if let Some(rule) = tables.rule(counted).filter(|_| counted != 0) {
        rule.usages(tables).uncount(rule.is_uplink(), octets.into());
    }
}

/// Headers to put before a packet.
#[derive(Clone, Copy, Debug)]
pub enum Prepend<'t> {
    /// Into a data network.
    Plain {
        /// Destination and source; zero where the neighbour is not resolved.
        ethernet: &'t [u8; 12],
        /// Which version of IP follows.
        ether_type: u16,
    },
    /// Into a tunnel. Of a packet that came [`Arrival::Extended`] some of the GTP-U header goes on besides.
    Tunnel {
        /// Its headers.
        path: &'t Path,
        /// The peer's TEID.
        teid: u32,
        /// The QoS flow, where the headers tell of one.
        flow: u8,
    },
}

/// Why a packet goes to the slow path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Punt {
    /// It is for the UPF itself, or for everyone on the link: ARP, neighbour discovery, ICMP.
    Host,
    /// It is a part of a packet for the UPF.
    Fragment,
    /// A GTP-U message about paths and tunnels.
    Gtpu,
    /// A G-PDU for a tunnel that is not there, which its sender is to be told.
    UnknownTeid,
    /// A G-PDU with an extension header that must be understood but is not, which its sender is to be told.
    UnknownExtension,
}

/// A packet whose session is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Discard it.
    Drop(DropReason),
    /// Give it to the slow path.
    Punt(Punt),
    /// A user's packet, or an end marker in a tunnel that is there.
    User {
        /// The session's rules for its direction (see [`Version::rules`]).
        list: u32,
        /// How it came.
        arrival: Arrival,
        /// Where in the frame the user's packet begins.
        at: u16,
        /// Length of what begins there.
        len: u16,
    },
}

impl Class {
    /// Octets of the user's packet; zero if it is none.
    pub fn octets(&self) -> usize {
        match *self {
            Class::User { len, .. } => len.into(),
            Class::Drop(_) | Class::Punt(_) => 0,
        }
    }

    /// Whether it is an end marker.
    pub fn is_end_marker(&self) -> bool {
        matches!(self, Class::User { arrival: Arrival::EndMarker { .. }, .. })
    }

    /// Whether its GTP-U header has more than a shortest PDU session container.
    #[inline(always)]
    pub fn is_extended(&self) -> bool {
        matches!(self, Class::User { arrival: Arrival::Extended { .. }, .. })
    }

    /// The bucket of the worker that owns the session, if it is of one.
    #[inline(always)]
    pub fn home(&self, tables: &Version) -> Option<Bucket> {
        match *self {
            Class::User { list, .. } => Some(tables.rules(list).home()),
            Class::Drop(_) | Class::Punt(_) => None,
        }
    }

    /// The first rule of the session that it belongs to.
    pub fn first_rule<'t>(&self, tables: &'t Version) -> Option<Rule<'t>> {
        match *self {
            Class::User { list, .. } => tables.rules(list).first(),
            Class::Drop(_) | Class::Punt(_) => None,
        }
    }
}

/// How a user's packet came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// From N6, plain.
    Plain,
    /// From N3, in a tunnel over this version of IP, in this QoS flow.
    Tunnelled {
        /// Whether over IPv6.
        v6: bool,
        /// QFI and RQI of the PDU session container, if there is one; see [`gtpu::PduSession::flow`].
        flow: Option<u8>,
    },
    /// The same, with more in its GTP-U header than a shortest PDU session container. That is looked at again for what it tells, the QoS
    /// flow too.
    Extended {
        /// Whether over IPv6.
        v6: bool,
    },
    /// As an end marker, with nothing in it, in a tunnel over this version of IP.
    EndMarker {
        /// Whether over IPv6.
        v6: bool,
    },
}

const _: () =
    assert!(size_of::<Arrival>() <= 3, "one comparison tells the usual one, in a tunnel over IPv4, from all others");

/// The neighbour that a packet is sent to. `user` begins with the headers of the user's packet, which were found sound.
#[cold]
pub fn neighbour(tables: &Version, forward: &Forward<'_>, user: &[u8]) -> IpAddr {
    if let Prepend::Tunnel { path, .. } = forward.prepend {
        return *path.next_hop();
    }
    let octets =
        |at: usize, len: usize| user[at..at + len].iter().fold(0, |bits, &octet| bits << 8 | u128::from(octet));
    let (v6, bits) = match ip::is_v6(user) {
        Some(true) => (true, octets(24, 16)),
        _ => (false, octets(16, 4)),
    };
    let network = tables.network(forward.port);
    match network.side.route(v6, bits) {
        Some(NextHop::Gateway(number)) => tables.hop(network.gateway(number)).address,
        _ => side::address(v6, bits),
    }
}

/// The frame of an end marker, and the port to send it to; none while its neighbour is not resolved.
#[cold]
pub fn end_marker_frame(tables: &Version, marker: &Tunnel) -> Option<(PortId, Vec<u8>)> {
    let path = tables.path(marker.path);
    if !path.is_resolved() {
        return None;
    }
    let mut frame = vec![0; path.len()];
    path.write(marker.teid, marker.flow, 0, &mut frame);
    if path.is_v6() {
        let checksum = path.udp6_checksum(&frame[ETHERNET_LEN..], &[]);
        frame[UDP6_CHECKSUM..UDP6_CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
    }
    Some((path.port(), frame))
}

/// Where the UDP checksum is in a frame with IPv6.
pub const UDP6_CHECKSUM: usize = ETHERNET_LEN + 40 + 6;

impl<'t> Prepend<'t> {
    /// Bytes that it takes.
    #[inline(always)]
    #[expect(clippy::len_without_is_empty, reason = "there is always an Ethernet header")]
    pub fn len(&self) -> usize {
        match self {
            Self::Plain { .. } => ETHERNET_LEN,
            Self::Tunnel { path, .. } => path.len(),
        }
    }

    /// Writes the headers for a packet of `inner_len` bytes to `to`, which is as long as they are.
    #[inline(always)]
    pub fn write(&self, inner_len: usize, to: &mut [u8]) {
        match *self {
            Self::Plain { ethernet, ether_type } => {
                if let Some(to) = to.first_chunk_mut::<ETHERNET_LEN>() {
                    to[..12].copy_from_slice(ethernet);
                    to[12..].copy_from_slice(&ether_type.to_be_bytes());
                }
            }
            Self::Tunnel { path, teid, flow } => path.write(teid, flow, inner_len, to),
        }
    }

    /// The path, if its outer header needs a UDP checksum.
    #[inline(always)]
    pub fn checksummed(&self) -> Option<&'t Path> {
        match *self {
            Self::Tunnel { path, .. } if path.is_v6() => Some(path),
            _ => None,
        }
    }
}
