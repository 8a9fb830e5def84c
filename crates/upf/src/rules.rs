//! Rules of a session as N4 states them (TS 29.244 clauses 5.2 and 7.5), checked and complete, not yet compiled.
//!
//! The N4 side builds a whole [`Session`] and hands it to the tables; workers only ever see compiled sessions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pfcp::rule::BufferingDuration;
use serde::{Deserialize, Serialize};

use crate::marking::Marking;
use crate::usage::Usage;

/// One PFCP session: the unit that is put into force, replaced or removed as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// SEID chosen by this UPF (TS 29.244, 5.6.2).
    pub up_seid: u64,
    /// The SMF's F-SEID.
    pub cp_f_seid: CpFSeid,
    /// Packet detection rules in order of ascending precedence value, that is highest precedence first.
    pub pdrs: Vec<Pdr>,
    /// Forwarding action rules.
    pub fars: Vec<Far>,
    /// QoS enforcement rules.
    pub qers: Vec<Qer>,
    /// Usage reporting rules.
    pub urrs: Vec<Urr>,
    /// What sees whether there are packets, where the session manager wants to know.
    pub activity: Option<Usage>,
    /// What is done once, when the session is put in force.
    pub parting: Parting,
}

/// What is done for the rules that a session had before, before anything is done by the new ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parting {
    /// Tunnels that get an end marker.
    pub end_markers: Vec<Forwarding>,
    /// Discard packets that wait.
    pub drop_buffered: bool,
}

/// The SMF's end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpFSeid {
    /// SEID chosen by the SMF.
    pub seid: u64,
    /// Its address.
    pub address: IpAddr,
}

/// Packet detection rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pdr {
    /// PDR ID.
    pub id: u16,
    /// Precedence; the lowest value is matched first.
    pub precedence: u32,
    /// What a packet must look like.
    pub pdi: Pdi,
    /// Outer header to take off.
    pub outer_header_removal: Option<OuterHeaderRemoval>,
    /// The FAR to apply.
    pub far_id: u32,
    /// The QERs to apply, all of them.
    pub qer_ids: Vec<u32>,
    /// The URRs that packets count for.
    pub urr_ids: Vec<u32>,
}

/// Packet detection information.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pdi {
    /// Where the packet comes from.
    pub source_interface: Interface,
    /// Network instance, such as `internet`.
    pub network_instance: Option<String>,
    /// Local F-TEID, allocated already where the SMF left the choice to this UPF.
    pub f_teid: Option<FTeid>,
    /// UE address; the source of an uplink packet, the destination of a downlink packet.
    pub ue_ip: Option<UeIp>,
    /// Any of these must match, if there are any.
    pub sdf_filters: Vec<SdfFilter>,
    /// Any of these QFIs must be in the packet's PDU session container, if there are any.
    pub qfis: Vec<u8>,
    /// The traffic endpoint that F-TEID, network instance, UE address and framed routes are from.
    pub traffic_endpoint: Option<u8>,
    /// Networks behind the UE, which have the same standing as its address; what is behind their length in bits is zero.
    pub framed_routes: Vec<(IpAddr, u8)>,
}

/// Source or destination interface (TS 29.244, 8.2.2 and 8.2.24).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Interface {
    /// Towards the RAN: N3 (and N9 towards it).
    #[default]
    Access,
    /// Towards other UPFs: N9.
    Core,
    /// Towards the data network: N6.
    SgiLan,
}

/// Local tunnel endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FTeid {
    /// TEID, never 0.
    pub teid: u32,
    /// Local IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// Local IPv6 address.
    pub v6: Option<Ipv6Addr>,
}

/// UE address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UeIp {
    /// IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 prefix and its length in bits.
    pub v6: Option<(Ipv6Addr, u8)>,
}

/// Service data flow filter: an IPFilterRule (RFC 6733, 4.3.1, as restricted by TS 29.212, 5.4.2), written for downlink:
/// *from* is the data network's side, *to* the UE's. Uplink packets are matched with the two swapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SdfFilter {
    /// IP protocol; any where absent.
    pub protocol: Option<u8>,
    /// Remote (data network) side.
    pub from: Endpoint,
    /// UE side.
    pub to: Endpoint,
    /// ToS or traffic class value and mask.
    pub tos: Option<(u8, u8)>,
    /// Security parameter index of IPsec.
    pub spi: Option<u32>,
    /// Flow label of IPv6.
    pub flow_label: Option<u32>,
    /// SDF filter ID, by which another PDR of the session can have the same filter.
    pub id: Option<u32>,
}

impl SdfFilter {
    /// Matches no packet, as none is of both versions of IP.
    pub fn nothing() -> Self {
        let of = |any: IpAddr| Endpoint { prefix: Some((any, 0)), ports: vec![] };
        let (from, to) = (of(Ipv4Addr::UNSPECIFIED.into()), of(Ipv6Addr::UNSPECIFIED.into()));
        Self { protocol: None, from, to, tos: None, spi: None, flow_label: None, id: None }
    }
}

/// One side of an SDF filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Address and prefix length in bits; any where absent. `assigned` stands here as the UE's address.
    pub prefix: Option<(IpAddr, u8)>,
    /// Ranges of ports, ends included; any where empty.
    pub ports: Vec<(u16, u16)>,
}

/// Outer header removal description (TS 29.244, 8.2.64).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OuterHeaderRemoval {
    /// GTP-U/UDP/IPv4.
    GtpuUdpIpv4,
    /// GTP-U/UDP/IPv6.
    GtpuUdpIpv6,
    /// GTP-U/UDP/IP, either version.
    GtpuUdpIp,
}

/// Forwarding action rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Far {
    /// FAR ID.
    pub id: u32,
    /// What to do.
    pub action: FarAction,
    /// Where copies of the packets go, unless they wait.
    pub copies: Vec<Forwarding>,
}

/// What a FAR does with a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FarAction {
    /// Discard.
    Drop,
    /// Send on.
    Forward(Forwarding),
    /// Keep until the rule says otherwise.
    Buffer(Buffering),
}

/// How packets wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffering {
    /// Whether the SMF is told when they begin to.
    pub notify: bool,
    /// Most packets of the session.
    pub max_packets: u16,
    /// For how long, if the SMF says so.
    #[serde(default)]
    pub duration: BufferingDuration,
}

/// Forwarding parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forwarding {
    /// Which side to send to.
    pub destination_interface: Interface,
    /// Network instance.
    pub network_instance: Option<String>,
    /// Tunnel to put the packet into.
    pub outer_header_creation: Option<OuterHeaderCreation>,
    /// ToS or traffic class of the tunnel's packets or, into the data network, of users' packets.
    pub marking: Marking,
}

/// GTP-U tunnel to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OuterHeaderCreation {
    /// The peer's TEID.
    pub teid: u32,
    /// The peer's address; its version is the outer header's.
    pub address: IpAddr,
}

/// QoS enforcement rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qer {
    /// QER ID.
    pub id: u32,
    /// Whether uplink packets pass.
    pub uplink_gate_open: bool,
    /// Whether downlink packets pass.
    pub downlink_gate_open: bool,
    /// Maximum bit rate uplink, in bit/s of inner IP packets; unlimited where absent.
    pub uplink_mbr_bps: Option<u64>,
    /// Maximum bit rate downlink, in bit/s of inner IP packets; unlimited where absent.
    pub downlink_mbr_bps: Option<u64>,
    /// QoS flow identifier to mark downlink packets with in the PDU session container.
    pub qfi: Option<u8>,
    /// Whether downlink packets get the reflective QoS indication.
    pub reflective: bool,
    /// QERs of a session manager that have the same one share their maximum bit rate.
    pub correlation_id: Option<u32>,
}

impl Default for Qer {
    /// All passes.
    fn default() -> Self {
        Self {
            id: 0,
            uplink_gate_open: true,
            downlink_gate_open: true,
            uplink_mbr_bps: None,
            downlink_mbr_bps: None,
            qfi: None,
            reflective: false,
            correlation_id: None,
        }
    }
}

/// Usage reporting rule, as far as it concerns packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Urr {
    /// URR ID.
    pub id: u32,
    /// Whether it counts at present.
    pub measures: bool,
    /// The counters, which stay the same while the rule is there.
    pub usage: Usage,
    /// The FAR that applies to packets which would go beyond a quota; without one they are dropped.
    pub quota_far_id: Option<u32>,
}
