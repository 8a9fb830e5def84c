//! Messages that concern a session (TS 29.244, 7.5): establishment, modification, deletion.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rs_pfcp::ie::IeType;
use rs_pfcp::ie::fseid::Fseid;

use crate::fault::{Cause, Fault};
use crate::ie::{Elements, Ie, Ies, decode};
use crate::node::{NodeId, read_outcome, write_outcome};
use crate::report::{Occasion, UsageReport};
use crate::rule::{
    CreateBar, CreateFar, CreatePdr, CreateQer, CreateUrr, CreatedPdr, CreatedTrafficEndpoint, TrafficEndpoint,
    UpdateBar, UpdateFar, UpdatePdr, UpdateQer, UpdateUrr,
};

/// One end of a session (8.2.37).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FSeid {
    /// SEID.
    pub seid: u64,
    /// IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 address; there is at least one of the two.
    pub v6: Option<Ipv6Addr>,
}

/// Session Establishment Request (7.5.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Establishment {
    /// The sender.
    pub node_id: NodeId,
    /// The sender's end of the session.
    pub cp_f_seid: FSeid,
    /// PDN type (8.2.79): 1 to 3 for IPv4, IPv6 or both.
    pub pdn_type: Option<u8>,
    /// PDRs to create.
    pub create_pdrs: Vec<CreatePdr>,
    /// FARs to create.
    pub create_fars: Vec<CreateFar>,
    /// QERs to create.
    pub create_qers: Vec<CreateQer>,
    /// URRs to create.
    pub create_urrs: Vec<CreateUrr>,
    /// BARs to create.
    pub create_bars: Vec<CreateBar>,
    /// Traffic endpoints to create.
    pub create_endpoints: Vec<TrafficEndpoint>,
    /// How long no user's packet comes before that is reported (8.2.83); 0 for never.
    pub inactivity_timer_s: Option<u32>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

/// Session Establishment Response (7.5.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EstablishmentResponse {
    /// The sender.
    pub node_id: NodeId,
    /// The session, or why there is none.
    pub outcome: Result<Established, Fault>,
}

/// What a UPF tells of a session that it has established.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Established {
    /// The UPF's end of the session.
    pub up_f_seid: FSeid,
    /// Rules for which it chose something.
    pub created_pdrs: Vec<CreatedPdr>,
    /// Traffic endpoints for which it chose something.
    pub created_endpoints: Vec<CreatedTrafficEndpoint>,
}

/// Session Modification Request (7.5.4).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Modification {
    /// The sender's end of the session, where that changes.
    pub cp_f_seid: Option<FSeid>,
    /// PDRs to remove.
    pub remove_pdrs: Vec<u16>,
    /// FARs to remove.
    pub remove_fars: Vec<u32>,
    /// QERs to remove.
    pub remove_qers: Vec<u32>,
    /// URRs to remove.
    pub remove_urrs: Vec<u32>,
    /// BARs to remove.
    pub remove_bars: Vec<u8>,
    /// Traffic endpoints to remove, with the PDRs that name them.
    pub remove_endpoints: Vec<u8>,
    /// PDRs to create.
    pub create_pdrs: Vec<CreatePdr>,
    /// FARs to create.
    pub create_fars: Vec<CreateFar>,
    /// QERs to create.
    pub create_qers: Vec<CreateQer>,
    /// URRs to create.
    pub create_urrs: Vec<CreateUrr>,
    /// BARs to create.
    pub create_bars: Vec<CreateBar>,
    /// Traffic endpoints to create.
    pub create_endpoints: Vec<TrafficEndpoint>,
    /// PDRs to change.
    pub update_pdrs: Vec<UpdatePdr>,
    /// FARs to change.
    pub update_fars: Vec<UpdateFar>,
    /// QERs to change.
    pub update_qers: Vec<UpdateQer>,
    /// URRs to change.
    pub update_urrs: Vec<UpdateUrr>,
    /// BARs to change.
    pub update_bars: Vec<UpdateBar>,
    /// Traffic endpoints to change.
    pub update_endpoints: Vec<TrafficEndpoint>,
    /// URRs whose usage is to be reported in the response.
    pub query_urrs: Vec<u32>,
    /// PFCPSMReq-Flags (8.2.36), such as [`Modification::QAURR`].
    pub flags: u8,
    /// How long no user's packet comes before that is reported, from now on; 0 for never.
    pub inactivity_timer_s: Option<u32>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

/// Session Modification Response (7.5.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModificationResponse {
    /// What there is to tell, or why nothing was changed.
    pub outcome: Result<Modified, Fault>,
}

/// What a UPF tells of a session that it has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modified {
    /// Rules for which it chose something.
    pub created_pdrs: Vec<CreatedPdr>,
    /// Traffic endpoints for which it chose something.
    pub created_endpoints: Vec<CreatedTrafficEndpoint>,
    /// Usage that was asked for, or of rules that are gone.
    pub usage: Vec<UsageReport>,
}

/// Session Deletion Response (7.5.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletionResponse {
    /// What was used since the last reports, or why the session is still there.
    pub outcome: Result<Vec<UsageReport>, Fault>,
}

impl FSeid {
    /// An end of a session with one address.
    pub fn new(seid: u64, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self { seid, v4: Some(v4), v6: None },
            IpAddr::V6(v6) => Self { seid, v4: None, v6: Some(v6) },
        }
    }

    /// Its address; of two the one that whoever is at `here` reaches, which is of the same version.
    pub fn address_beside(&self, here: IpAddr) -> IpAddr {
        let (v4, v6) = (self.v4.map(IpAddr::from), self.v6.map(IpAddr::from));
        let of_two = if here.is_ipv4() { v4.or(v6) } else { v6.or(v4) };
        of_two.unwrap_or(Ipv6Addr::UNSPECIFIED.into())
    }

    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let read = decode(ie, Fseid::unmarshal)?;
        if read.ipv4_address.is_none() && read.ipv6_address.is_none() {
            return Err(ie.fault(Cause::MandatoryIeIncorrect));
        }
        Ok(Self { seid: read.seid.0, v4: read.ipv4_address, v6: read.ipv6_address })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.element(IeType::Fseid, &Fseid::new(self.seid, self.v4, self.v6).marshal());
    }
}

const ESTABLISHMENT_KNOWN: &[IeType] = &[
    IeType::NodeId,
    IeType::Fseid,
    IeType::PdnType,
    IeType::CreatePdr,
    IeType::CreateFar,
    IeType::CreateQer,
    IeType::CreateUrr,
    IeType::CreateBar,
    IeType::CreateTrafficEndpoint,
    IeType::UserPlaneInactivityTimer,
];

impl Establishment {
    pub(crate) fn read(ies: &Ies) -> Result<Self, Fault> {
        // Presence first, so that what is missing is not masked by what is wrong (7.6.6 comes before 7.6.8).
        let (node_id, f_seid) = (ies.mandatory(IeType::NodeId)?, ies.mandatory(IeType::Fseid)?);
        ies.mandatory(IeType::CreatePdr)?;
        ies.mandatory(IeType::CreateFar)?;
        Ok(Self {
            node_id: NodeId::read(node_id)?,
            cp_f_seid: FSeid::read(f_seid)?,
            pdn_type: ies.first(IeType::PdnType).map(|ie| ie.octet()).transpose()?,
            create_pdrs: ies.all(IeType::CreatePdr).map(CreatePdr::read).collect::<Result<_, _>>()?,
            create_fars: ies.all(IeType::CreateFar).map(CreateFar::read).collect::<Result<_, _>>()?,
            create_qers: ies.all(IeType::CreateQer).map(CreateQer::read).collect::<Result<_, _>>()?,
            create_urrs: ies.all(IeType::CreateUrr).map(CreateUrr::read_create).collect::<Result<_, _>>()?,
            create_bars: ies.all(IeType::CreateBar).map(CreateBar::read).collect::<Result<_, _>>()?,
            create_endpoints: read_endpoints(ies, IeType::CreateTrafficEndpoint)?,
            inactivity_timer_s: read_timer(ies)?,
            others: ies.others(ESTABLISHMENT_KNOWN),
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        self.node_id.write(out);
        self.cp_f_seid.write(out);
        self.create_pdrs.iter().for_each(|rule| rule.write(out));
        self.create_fars.iter().for_each(|rule| rule.write(out));
        self.create_qers.iter().for_each(|rule| rule.write(out));
        self.create_urrs.iter().for_each(|rule| rule.write(IeType::CreateUrr, out));
        self.create_bars.iter().for_each(|rule| rule.write(IeType::CreateBar, out));
        self.create_endpoints.iter().for_each(|endpoint| endpoint.write(IeType::CreateTrafficEndpoint, out));
        if let Some(pdn_type) = self.pdn_type {
            out.element(IeType::PdnType, &[pdn_type]);
        }
        write_timer(self.inactivity_timer_s, out);
    }

    /// The SEID that a response to a request with the elements `body` goes to, however wrong the rest of it is.
    pub fn cp_seid(body: &[u8]) -> Option<u64> {
        let f_seid = Ies::parse(body).ok()?.first(IeType::Fseid)?;
        Some(FSeid::read(f_seid).ok()?.seid)
    }
}

impl EstablishmentResponse {
    pub(crate) fn read(ies: &Ies) -> Result<Self, Fault> {
        let node_id = NodeId::read(ies.mandatory(IeType::NodeId)?)?;
        let outcome = match read_outcome(ies)? {
            Err(fault) => Err(fault),
            Ok(()) => Ok(Established {
                // Conditional, but its condition is acceptance.
                up_f_seid: FSeid::read(
                    ies.first(IeType::Fseid).ok_or(Fault::of(Cause::ConditionalIeMissing, IeType::Fseid))?,
                )?,
                created_pdrs: read_created(ies)?,
                created_endpoints: read_created_endpoints(ies)?,
            }),
        };
        Ok(Self { node_id, outcome })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        self.node_id.write(out);
        match &self.outcome {
            Ok(established) => {
                write_outcome(&Ok(()), out);
                established.up_f_seid.write(out);
                established.created_pdrs.iter().for_each(|pdr| pdr.write(out));
                established.created_endpoints.iter().for_each(|endpoint| endpoint.write(out));
            }
            Err(fault) => {
                fault.write(out);
                fault.write_failed_rule(out);
            }
        }
    }
}

fn read_timer(ies: &Ies) -> Result<Option<u32>, Fault> {
    ies.first(IeType::UserPlaneInactivityTimer).map(|ie| ie.u32()).transpose()
}

fn write_timer(timer_s: Option<u32>, out: &mut Vec<u8>) {
    if let Some(timer_s) = timer_s {
        out.element(IeType::UserPlaneInactivityTimer, &timer_s.to_be_bytes());
    }
}

fn read_endpoints(ies: &Ies, kind: IeType) -> Result<Vec<TrafficEndpoint>, Fault> {
    ies.all(kind).map(TrafficEndpoint::read).collect()
}

fn read_created_endpoints(ies: &Ies) -> Result<Vec<CreatedTrafficEndpoint>, Fault> {
    ies.all(IeType::CreatedTrafficEndpoint).map(CreatedTrafficEndpoint::read).collect()
}

fn read_created(ies: &Ies) -> Result<Vec<CreatedPdr>, Fault> {
    ies.all(IeType::CreatedPdr).map(CreatedPdr::read).collect()
}

const MODIFICATION_KNOWN: &[IeType] = &[
    IeType::Fseid,
    IeType::RemovePdr,
    IeType::RemoveFar,
    IeType::RemoveQer,
    IeType::RemoveUrr,
    IeType::RemoveBar,
    IeType::CreatePdr,
    IeType::CreateFar,
    IeType::CreateQer,
    IeType::CreateUrr,
    IeType::CreateBar,
    IeType::UpdatePdr,
    IeType::UpdateFar,
    IeType::UpdateQer,
    IeType::UpdateUrr,
    IeType::UpdateBar,
    IeType::CreateTrafficEndpoint,
    IeType::UpdateTrafficEndpoint,
    IeType::RemoveTrafficEndpoint,
    IeType::QueryUrr,
    IeType::PfcpsmReqFlags,
    IeType::UserPlaneInactivityTimer,
];

/// The ID within a Remove PDR and the like, or a Query URR.
fn id_in<'a>(ie: Ie<'a>, id: IeType) -> Result<Ie<'a>, Fault> {
    ie.group()?.mandatory(id)
}

fn write_id(kind: IeType, id_kind: IeType, id: &[u8], out: &mut Vec<u8>) {
    out.grouped(kind, |out| out.element(id_kind, id));
}

impl Modification {
    /// Flag: drop all packets that are buffered.
    pub const DROBU: u8 = 1;
    /// Flag: send end markers; of account in forwarding parameters only.
    pub const SNDEM: u8 = 1 << 1;
    /// Flag: report the usage of all URRs.
    pub const QAURR: u8 = 1 << 2;

    pub(crate) fn read(ies: &Ies) -> Result<Self, Fault> {
        let far_id = |ie| id_in(ie, IeType::FarId)?.u32();
        let qer_id = |ie| id_in(ie, IeType::QerId)?.u32();
        let pdr_id = |ie| id_in(ie, IeType::PdrId)?.u16();
        let urr_id = |ie| id_in(ie, IeType::UrrId)?.u32();
        let bar_id = |ie| id_in(ie, IeType::BarId)?.octet();
        let endpoint_id = |ie| id_in(ie, IeType::TrafficEndpointId)?.octet();
        Ok(Self {
            cp_f_seid: ies.first(IeType::Fseid).map(FSeid::read).transpose()?,
            remove_pdrs: ies.all(IeType::RemovePdr).map(pdr_id).collect::<Result<_, _>>()?,
            remove_fars: ies.all(IeType::RemoveFar).map(far_id).collect::<Result<_, _>>()?,
            remove_qers: ies.all(IeType::RemoveQer).map(qer_id).collect::<Result<_, _>>()?,
            remove_urrs: ies.all(IeType::RemoveUrr).map(urr_id).collect::<Result<_, _>>()?,
            remove_bars: ies.all(IeType::RemoveBar).map(bar_id).collect::<Result<_, _>>()?,
            remove_endpoints: ies.all(IeType::RemoveTrafficEndpoint).map(endpoint_id).collect::<Result<_, _>>()?,
            create_pdrs: ies.all(IeType::CreatePdr).map(CreatePdr::read).collect::<Result<_, _>>()?,
            create_fars: ies.all(IeType::CreateFar).map(CreateFar::read).collect::<Result<_, _>>()?,
            create_qers: ies.all(IeType::CreateQer).map(CreateQer::read).collect::<Result<_, _>>()?,
            create_urrs: ies.all(IeType::CreateUrr).map(CreateUrr::read_create).collect::<Result<_, _>>()?,
            create_bars: ies.all(IeType::CreateBar).map(CreateBar::read).collect::<Result<_, _>>()?,
            create_endpoints: read_endpoints(ies, IeType::CreateTrafficEndpoint)?,
            update_pdrs: ies.all(IeType::UpdatePdr).map(UpdatePdr::read).collect::<Result<_, _>>()?,
            update_fars: ies.all(IeType::UpdateFar).map(UpdateFar::read).collect::<Result<_, _>>()?,
            update_qers: ies.all(IeType::UpdateQer).map(UpdateQer::read).collect::<Result<_, _>>()?,
            update_urrs: ies.all(IeType::UpdateUrr).map(UpdateUrr::read_update).collect::<Result<_, _>>()?,
            update_bars: ies.all(IeType::UpdateBar).map(UpdateBar::read).collect::<Result<_, _>>()?,
            update_endpoints: read_endpoints(ies, IeType::UpdateTrafficEndpoint)?,
            query_urrs: ies.all(IeType::QueryUrr).map(urr_id).collect::<Result<_, _>>()?,
            flags: ies.first(IeType::PfcpsmReqFlags).map(|ie| ie.octet()).transpose()?.unwrap_or(0),
            inactivity_timer_s: read_timer(ies)?,
            others: ies.others(MODIFICATION_KNOWN),
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        if let Some(f_seid) = &self.cp_f_seid {
            f_seid.write(out);
        }
        for id in &self.remove_pdrs {
            write_id(IeType::RemovePdr, IeType::PdrId, &id.to_be_bytes(), out);
        }
        for id in &self.remove_fars {
            write_id(IeType::RemoveFar, IeType::FarId, &id.to_be_bytes(), out);
        }
        for id in &self.remove_qers {
            write_id(IeType::RemoveQer, IeType::QerId, &id.to_be_bytes(), out);
        }
        for id in &self.remove_urrs {
            write_id(IeType::RemoveUrr, IeType::UrrId, &id.to_be_bytes(), out);
        }
        for id in &self.remove_bars {
            write_id(IeType::RemoveBar, IeType::BarId, &[*id], out);
        }
        for id in &self.remove_endpoints {
            write_id(IeType::RemoveTrafficEndpoint, IeType::TrafficEndpointId, &[*id], out);
        }
        self.create_pdrs.iter().for_each(|rule| rule.write(out));
        self.create_fars.iter().for_each(|rule| rule.write(out));
        self.create_qers.iter().for_each(|rule| rule.write(out));
        self.create_urrs.iter().for_each(|rule| rule.write(IeType::CreateUrr, out));
        self.create_bars.iter().for_each(|rule| rule.write(IeType::CreateBar, out));
        self.create_endpoints.iter().for_each(|endpoint| endpoint.write(IeType::CreateTrafficEndpoint, out));
        self.update_pdrs.iter().for_each(|rule| rule.write(out));
        self.update_fars.iter().for_each(|rule| rule.write(out));
        self.update_qers.iter().for_each(|rule| rule.write(out));
        self.update_urrs.iter().for_each(|rule| rule.write(IeType::UpdateUrr, out));
        self.update_bars.iter().for_each(|rule| rule.write(IeType::UpdateBar, out));
        self.update_endpoints.iter().for_each(|endpoint| endpoint.write(IeType::UpdateTrafficEndpoint, out));
        if self.flags != 0 {
            out.element(IeType::PfcpsmReqFlags, &[self.flags]);
        }
        write_timer(self.inactivity_timer_s, out);
        for id in &self.query_urrs {
            write_id(IeType::QueryUrr, IeType::UrrId, &id.to_be_bytes(), out);
        }
    }
}

impl ModificationResponse {
    pub(crate) fn read(ies: &Ies) -> Result<Self, Fault> {
        let outcome = match read_outcome(ies)? {
            Ok(()) => Ok(Modified {
                created_pdrs: read_created(ies)?,
                created_endpoints: read_created_endpoints(ies)?,
                usage: UsageReport::read_all(ies, Occasion::Modification)?,
            }),
            Err(fault) => Err(fault),
        };
        Ok(Self { outcome })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match &self.outcome {
            Ok(modified) => {
                write_outcome(&Ok(()), out);
                modified.created_pdrs.iter().for_each(|pdr| pdr.write(out));
                modified.created_endpoints.iter().for_each(|endpoint| endpoint.write(out));
                modified.usage.iter().for_each(|report| report.write(Occasion::Modification, out));
            }
            Err(fault) => {
                fault.write(out);
                fault.write_failed_rule(out);
            }
        }
    }
}

impl DeletionResponse {
    pub(crate) fn read(ies: &Ies) -> Result<Self, Fault> {
        let outcome = match read_outcome(ies)? {
            Ok(()) => Ok(UsageReport::read_all(ies, Occasion::Deletion)?),
            Err(fault) => Err(fault),
        };
        Ok(Self { outcome })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match &self.outcome {
            Ok(usage) => {
                write_outcome(&Ok(()), out);
                usage.iter().for_each(|report| report.write(Occasion::Deletion, out));
            }
            Err(fault) => fault.write(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_addresses_that_of_the_same_version_is_reached() {
        let [v4, v6]: [IpAddr; 2] = ["10.4.0.2", "fd00::2"].map(|address| address.parse().unwrap());
        let (one, other) = (FSeid::new(1, v4), FSeid::new(1, v6));
        let both = FSeid { v6: other.v6, ..one };
        for here in [v4, v6] {
            assert_eq!(both.address_beside(here), here);
            assert_eq!((one.address_beside(here), other.address_beside(here)), (v4, v6), "there is no other");
        }
    }
}
