//! Traffic endpoints: what the PDIs of several PDRs have in common, stated once.

use rs_pfcp::ie::IeType;

use super::framed::{Network, read_routes, read_routing, write_routes};
use super::pdi::FTeid;
use super::ue_ip::UeIp;
use super::{read_network_instance, read_qfi};
use crate::fault::Fault;
use crate::ie::{Elements, Ie};

/// Create Traffic Endpoint (table 7.5.2.7-1) or Update Traffic Endpoint (table 7.5.4.13-1), in which what is present replaces
/// what the endpoint had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficEndpoint {
    /// Traffic Endpoint ID.
    pub id: u8,
    /// Local F-TEID.
    pub f_teid: Option<FTeid>,
    /// Network instance.
    pub network_instance: Option<String>,
    /// UE address; which end of a packet it is follows from the PDR.
    pub ue_ip: Option<UeIp>,
    /// Framed routes of either version, those of IPv4 first.
    pub framed_routes: Vec<Network>,
    /// How routes are exchanged with the UE: 0 for not at all.
    pub framed_routing: Option<u32>,
    /// QFIs.
    pub qfis: Vec<u8>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

/// Created Traffic Endpoint (table 7.5.3.5-1): what the UPF chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreatedTrafficEndpoint {
    /// Traffic Endpoint ID.
    pub id: u8,
    /// Local F-TEID, never one to be chosen.
    pub f_teid: Option<FTeid>,
    /// UE address, never one to be chosen.
    pub ue_ip: Option<UeIp>,
}

const KNOWN: &[IeType] = &[
    IeType::TrafficEndpointId,
    IeType::Fteid,
    IeType::NetworkInstance,
    IeType::UeIpAddress,
    IeType::FramedRoute,
    IeType::FramedRouting,
    IeType::FramedIpv6Route,
    IeType::Qfi,
];

impl TrafficEndpoint {
    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            id: ies.mandatory(IeType::TrafficEndpointId)?.octet()?,
            f_teid: ies.first(IeType::Fteid).map(FTeid::read).transpose()?,
            network_instance: ies.first(IeType::NetworkInstance).map(read_network_instance).transpose()?,
            ue_ip: ies.first(IeType::UeIpAddress).map(UeIp::read).transpose()?,
            framed_routes: read_routes(&ies)?,
            framed_routing: ies.first(IeType::FramedRouting).map(read_routing).transpose()?,
            qfis: ies.all(IeType::Qfi).map(read_qfi).collect::<Result<_, _>>()?,
            others: ies.others(KNOWN),
        })
    }

    /// As an element of the type `kind`.
    pub(crate) fn write(&self, kind: IeType, out: &mut Vec<u8>) {
        out.grouped(kind, |out| {
            out.element(IeType::TrafficEndpointId, &[self.id]);
            if let Some(f_teid) = &self.f_teid {
                f_teid.write(out);
            }
            if let Some(name) = &self.network_instance {
                out.element(IeType::NetworkInstance, name.as_bytes());
            }
            if let Some(ue_ip) = &self.ue_ip {
                ue_ip.write(out);
            }
            write_routes(&self.framed_routes, out);
            if let Some(routing) = self.framed_routing {
                out.element(IeType::FramedRouting, &routing.to_be_bytes());
            }
            self.qfis.iter().for_each(|&qfi| out.element(IeType::Qfi, &[qfi]));
        });
    }
}

impl CreatedTrafficEndpoint {
    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            id: ies.mandatory(IeType::TrafficEndpointId)?.octet()?,
            f_teid: ies.first(IeType::Fteid).map(FTeid::read).transpose()?,
            ue_ip: ies.first(IeType::UeIpAddress).map(UeIp::read).transpose()?,
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.grouped(IeType::CreatedTrafficEndpoint, |out| {
            out.element(IeType::TrafficEndpointId, &[self.id]);
            if let Some(f_teid) = &self.f_teid {
                f_teid.write(out);
            }
            if let Some(ue_ip) = &self.ue_ip {
                ue_ip.write(out);
            }
        });
    }
}
