//! What an operator can ask a running UPF: its sessions, its drops, and the packets of a UE.
//!
//! One connection to the control socket carries one request: a line of JSON. The UPF answers with lines of JSON, each an
//! [`Event`]; [`Event::Done`] or [`Event::Failed`] is the last. Hanging up ends what goes on (`Trace`).

mod decimal;
mod seid;
mod server;
mod socket;
mod trace;

use std::net::{IpAddr, SocketAddrV4};

use serde::{Deserialize, Serialize};

use crate::drops::DropReason;
use crate::rules::{Far, Interface, Pdr, Qer, Session, UeIp};
use crate::usage::Counts;

pub use seid::{NoSeid, Seid};
pub use server::{Server, Sources};
pub(crate) use socket::admits;
pub use socket::{Address, DEFAULT};

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Request {
    /// Answers [`Event::Session`] for each session, in the order of their SEIDs.
    Sessions,
    /// Answers [`Event::Detail`].
    Session {
        /// The UPF's SEID.
        up_seid: Seid,
    },
    /// Answers [`Event::Drop`] for each reason.
    Drops,
    /// Answers [`Event::Watching`], also when that changes, and [`Event::Packet`] for each packet.
    Trace {
        /// Who.
        ue: Ue,
    },
}

/// A UE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Ue {
    /// With this address, or an address of whose prefix this is one.
    Address(IpAddr),
    /// With this session, by the UPF's SEID.
    Session(Seid),
}

/// What is answered, a line each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Event {
    /// A session.
    Session(Summary),
    /// A session in full.
    Detail(Box<Detail>),
    /// Packets that were discarded.
    Drop(Dropped),
    /// Who is watched now.
    Watching {
        /// The UPF's SEID of the session; none while the UE has none.
        up_seid: Option<Seid>,
    },
    /// A packet of the UE that is watched.
    Packet(Box<Packet>),
    /// Packets of the UE that nobody has seen, for there were too many.
    Missed {
        /// How many.
        packets: u64,
    },
    /// The end: success.
    Done,
    /// The end: why there is no answer.
    Failed {
        /// A sentence.
        message: String,
    },
}

/// A session in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The UPF's SEID.
    pub up_seid: Seid,
    /// The session manager's SEID.
    pub cp_seid: Seid,
    /// The session manager's address.
    pub smf: IpAddr,
    /// The UE's addresses, and prefixes with their lengths.
    pub ues: Vec<String>,
    /// TEIDs of the UPF.
    pub teids: Vec<u32>,
    /// Number of PDRs.
    pub pdrs: usize,
    /// The worker that owns it.
    pub worker: Option<usize>,
    /// What the usage reporting rule with the highest count has counted; none where there is none.
    pub uplink_octets: Option<u64>,
    /// The same for packets to the UE.
    pub downlink_octets: Option<u64>,
}

/// A session in full.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Detail {
    /// As in the list.
    pub summary: Summary,
    /// PDRs in the order in which packets meet them.
    pub pdrs: Vec<Pdr>,
    /// FARs.
    pub fars: Vec<Far>,
    /// QERs.
    pub qers: Vec<Qer>,
    /// URRs.
    pub urrs: Vec<Urr>,
}

/// A usage reporting rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Urr {
    /// URR ID.
    pub id: u32,
    /// Whether it counts at present.
    pub measures: bool,
    /// What it has counted since it was created.
    pub counts: Counts,
}

/// Packets that were discarded for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Dropped {
    /// The counter's name.
    pub reason: String,
    /// How many.
    pub packets: u64,
    /// What that means.
    pub meaning: String,
}

/// A packet of the UE that is watched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Packet {
    /// When, in nanoseconds since 1970. In JSON it is text.
    #[serde(with = "decimal")]
    pub at_ns: u64,
    /// Whether the UE sent it.
    pub uplink: bool,
    /// The port that it came in by.
    pub from: String,
    /// Octets of the frame that came.
    pub frame_octets: u16,
    /// The UE's packet, as far as it is one.
    pub inner: Option<Inner>,
    /// The UPF's SEID of its session; none where it found none.
    pub up_seid: Option<Seid>,
    /// The PDR that has matched, if one has.
    pub pdr: Option<u16>,
    /// Its FAR.
    pub far: Option<u32>,
    /// Its QERs.
    pub qers: Vec<u32>,
    /// Its URRs.
    pub urrs: Vec<u32>,
    /// What the UE's address and port are outside, where they are translated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<SocketAddrV4>,
    /// What became of it.
    pub verdict: Verdict,
}

/// The UE's packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Inner {
    /// Its source.
    pub source: IpAddr,
    /// Its destination.
    pub destination: IpAddr,
    /// Its protocol number.
    pub protocol: u8,
    /// Its source port.
    pub source_port: Option<u16>,
    /// Its destination port.
    pub destination_port: Option<u16>,
    /// Its length.
    pub octets: u16,
}

/// What became of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Verdict {
    /// Sent.
    Sent {
        /// By this port.
        port: String,
        /// Octets of the frame.
        frame_octets: u16,
    },
    /// Sent once the Ethernet address of a neighbour is known.
    Unresolved {
        /// By this port.
        port: String,
        /// The neighbour.
        neighbour: IpAddr,
    },
    /// Waits for the UE to be paged.
    Waits,
    /// Discarded.
    Dropped {
        /// The counter's name.
        reason: String,
        /// What that means.
        meaning: String,
    },
    /// It was for the UPF itself.
    SlowPath,
}

impl Summary {
    fn of(session: &Session, worker: Option<usize>) -> Self {
        let counts: Vec<_> = session.urrs.iter().map(|urr| urr.usage.counts()).collect();
        let mut teids: Vec<_> = session.pdrs.iter().filter_map(|pdr| Some(pdr.pdi.f_teid?.teid)).collect();
        teids.sort_unstable();
        teids.dedup();
        Self {
            up_seid: Seid(session.up_seid),
            cp_seid: Seid(session.cp_f_seid.seid),
            smf: session.cp_f_seid.address,
            ues: ues(session),
            teids,
            pdrs: session.pdrs.len(),
            worker,
            uplink_octets: counts.iter().map(|counts| counts.uplink_octets).max(),
            downlink_octets: counts.iter().map(|counts| counts.downlink_octets).max(),
        }
    }
}

impl Detail {
    fn of(session: Session, worker: Option<usize>) -> Self {
        let urr = |urr: &crate::rules::Urr| Urr { id: urr.id, measures: urr.measures, counts: urr.usage.counts() };
        Self {
            summary: Summary::of(&session, worker),
            urrs: session.urrs.iter().map(urr).collect(),
            pdrs: session.pdrs,
            fars: session.fars,
            qers: session.qers,
        }
    }
}

/// The UE's addresses, those of downlink rules first.
fn ues(session: &Session) -> Vec<String> {
    let is_downlink = |pdr: &&Pdr| pdr.pdi.source_interface != Interface::Access;
    let (downlink, uplink): (Vec<_>, Vec<_>) = session.pdrs.iter().partition(is_downlink);
    let mut all: Vec<String> = Vec::new();
    for UeIp { v4, v6 } in downlink.into_iter().chain(uplink).filter_map(|pdr| pdr.pdi.ue_ip) {
        let v6 = v6.map(|(net, len)| format!("{net}/{len}"));
        for ue in v4.map(|address| address.to_string()).into_iter().chain(v6) {
            if !all.contains(&ue) {
                all.push(ue);
            }
        }
    }
    all
}

impl Dropped {
    fn of(reason: DropReason, packets: u64) -> Self {
        Self { reason: reason.name().into(), packets, meaning: reason.meaning().into() }
    }
}
