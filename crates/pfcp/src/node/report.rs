//! Node Report Request (TS 29.244, 7.4.5): what a UPF tells of its paths to other GTP-U nodes.

use std::net::IpAddr;

use rs_pfcp::ie::IeType;

use super::{NodeId, address};
use crate::fault::{Cause, Fault};
use crate::ie::{Elements, Ie, Ies};

/// Node Report Request (7.4.5.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// The sender.
    pub node_id: NodeId,
    /// Peers that do not answer any more.
    pub failed: Vec<RemoteGtpuPeer>,
    /// Peers that answer again.
    pub recovered: Vec<RemoteGtpuPeer>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

/// Remote GTP-U Peer (8.2.70).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteGtpuPeer {
    /// Its address.
    pub address: IpAddr,
}

const UPFR: u8 = 1;
const UPRR: u8 = 1 << 1;

impl NodeReport {
    pub(crate) fn read(ies: &Ies) -> Result<Self, Fault> {
        let node_id = NodeId::read(ies.mandatory(IeType::NodeId)?)?;
        let kind = ies.mandatory(IeType::NodeReportType)?.octet()?;
        let peers = |bit, group| if kind & bit == 0 { Ok(vec![]) } else { read_peers(ies, group) };
        Ok(Self {
            node_id,
            failed: peers(UPFR, IeType::UserPlanePathFailureReport)?,
            recovered: peers(UPRR, IeType::UserPlanePathRecoveryReport)?,
            others: ies.others(&[
                IeType::NodeId,
                IeType::NodeReportType,
                IeType::UserPlanePathFailureReport,
                IeType::UserPlanePathRecoveryReport,
            ]),
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        self.node_id.write(out);
        let bit = |peers: &[RemoteGtpuPeer], bit| if peers.is_empty() { 0 } else { bit };
        out.element(IeType::NodeReportType, &[bit(&self.failed, UPFR) | bit(&self.recovered, UPRR)]);
        write_peers(IeType::UserPlanePathFailureReport, &self.failed, out);
        write_peers(IeType::UserPlanePathRecoveryReport, &self.recovered, out);
    }
}

/// The report that the type says is there.
fn read_peers(ies: &Ies, group: IeType) -> Result<Vec<RemoteGtpuPeer>, Fault> {
    let report = ies.first(group).ok_or(Fault::of(Cause::ConditionalIeMissing, group))?.group()?;
    report.mandatory(IeType::RemoteGtpuPeer)?;
    report.all(IeType::RemoteGtpuPeer).map(RemoteGtpuPeer::read).collect()
}

fn write_peers(group: IeType, peers: &[RemoteGtpuPeer], out: &mut Vec<u8>) {
    if !peers.is_empty() {
        out.grouped(group, |out| {
            peers.iter().for_each(|peer| out.element(IeType::RemoteGtpuPeer, &address::value(peer.address, 0)));
        });
    }
}

impl RemoteGtpuPeer {
    fn read(ie: Ie) -> Result<Self, Fault> {
        let (addresses, _interface_and_instance) = address::split(ie)?;
        Ok(Self { address: addresses[0] })
    }
}
