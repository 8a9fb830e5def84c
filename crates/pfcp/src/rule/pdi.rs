//! What packets a rule detects: packet detection information, and what it is made of.

use std::net::{Ipv4Addr, Ipv6Addr};

use rs_pfcp::ie::IeType;
use rs_pfcp::ie::f_teid::Fteid;

use super::framed::{Network, read_routes, read_routing, write_routes};
use super::ue_ip::UeIp;
use super::{read_network_instance, read_qfi};
use crate::fault::{Cause, Fault};
use crate::ie::{Elements, Ie, decode};
use crate::pfd::read_application_id;

/// Source or destination interface (8.2.2, 8.2.24).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interface {
    /// Towards the RAN.
    #[default]
    Access,
    /// Towards the core: N9, or N6.
    Core,
    /// Towards the data network: N6.
    SgiLan,
    /// Another of the standard's values.
    Other(u8),
}

impl Interface {
    pub(super) fn read(ie: Ie) -> Result<Self, Fault> {
        // The upper half is spare.
        Ok(match ie.octet()? & 0x0f {
            0 => Self::Access,
            1 => Self::Core,
            2 => Self::SgiLan,
            other => Self::Other(other),
        })
    }

    pub(super) fn value(self) -> u8 {
        match self {
            Self::Access => 0,
            Self::Core => 1,
            Self::SgiLan => 2,
            Self::Other(value) => value & 0x0f,
        }
    }
}

/// Local tunnel endpoint (8.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FTeid {
    /// As stated.
    Given {
        /// TEID.
        teid: u32,
        /// IPv4 address.
        v4: Option<Ipv4Addr>,
        /// IPv6 address.
        v6: Option<Ipv6Addr>,
    },
    /// The UPF is to choose it.
    Choose {
        /// With an IPv4 address.
        v4: bool,
        /// With an IPv6 address.
        v6: bool,
        /// Rules of a message with the same CHOOSE ID get the same F-TEID.
        id: Option<u8>,
    },
}

impl FTeid {
    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let read = decode(ie, Fteid::unmarshal)?;
        if !read.v4 && !read.v6 {
            return Err(ie.fault(Cause::MandatoryIeIncorrect));
        }
        Ok(match read.ch {
            true => Self::Choose { v4: read.v4, v6: read.v6, id: read.chid.then_some(read.choose_id) },
            false => Self::Given { teid: read.teid.0, v4: read.ipv4_address, v6: read.ipv6_address },
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let codec = match *self {
            Self::Given { teid, v4, v6 } => Fteid::new(v4.is_some(), v6.is_some(), teid, v4, v6, 0),
            Self::Choose { v4, v6, id } => {
                Fteid::new_with_choose(v4, v6, true, id.is_some(), 0, None, None, id.unwrap_or(0))
            }
        };
        out.element(IeType::Fteid, &codec.marshal());
    }
}

/// Service data flow filter (8.2.5).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SdfFilter {
    /// An IPFilterRule.
    pub flow_description: Option<String>,
    /// ToS or traffic class: value and mask.
    pub tos: Option<(u8, u8)>,
    /// Security parameter index.
    pub spi: Option<u32>,
    /// Flow label.
    pub flow_label: Option<u32>,
    /// SDF filter ID, for filters that serve both directions.
    pub id: Option<u32>,
}

impl SdfFilter {
    /// A filter of a flow description alone.
    pub fn flow(description: impl Into<String>) -> Self {
        Self { flow_description: Some(description.into()), ..Self::default() }
    }

    // Read here, as rs-pfcp keeps the flow description only.
    pub(super) fn read(ie: Ie) -> Result<Self, Fault> {
        let too_short = ie.fault(Cause::InvalidLength);
        let &[flags, _spare, ref fields @ ..] = ie.value else { return Err(too_short) };
        let mut fields = fields;
        let mut take = |len: usize| {
            let (field, rest) = fields.split_at_checked(len).ok_or(too_short)?;
            fields = rest;
            Ok::<_, Fault>(field)
        };
        let number = |field: &[u8]| field.iter().fold(0, |n, &octet| n << 8 | u32::from(octet));
        let mut filter = Self::default();
        if flags & 0x01 != 0 {
            let length = number(take(2)?) as usize;
            let text = std::str::from_utf8(take(length)?).map_err(|_| ie.fault(Cause::MandatoryIeIncorrect))?;
            filter.flow_description = Some(text.into());
        }
        if flags & 0x02 != 0 {
            let field = take(2)?;
            filter.tos = Some((field[0], field[1]));
        }
        if flags & 0x04 != 0 {
            filter.spi = Some(number(take(4)?));
        }
        if flags & 0x08 != 0 {
            filter.flow_label = Some(number(take(3)?));
        }
        if flags & 0x10 != 0 {
            filter.id = Some(number(take(4)?));
        }
        Ok(filter)
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let mut value = vec![0, 0];
        if let Some(text) = &self.flow_description {
            value[0] |= 0x01;
            value.extend_from_slice(&(text.len() as u16).to_be_bytes());
            value.extend_from_slice(text.as_bytes());
        }
        if let Some((tos, mask)) = self.tos {
            value[0] |= 0x02;
            value.extend_from_slice(&[tos, mask]);
        }
        if let Some(spi) = self.spi {
            value[0] |= 0x04;
            value.extend_from_slice(&spi.to_be_bytes());
        }
        if let Some(label) = self.flow_label {
            value[0] |= 0x08;
            value.extend_from_slice(&label.to_be_bytes()[1..]);
        }
        if let Some(id) = self.id {
            value[0] |= 0x10;
            value.extend_from_slice(&id.to_be_bytes());
        }
        out.element(IeType::SdfFilter, &value);
    }
}

/// Packet detection information (table 7.5.2.2-2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pdi {
    /// Source interface.
    pub source_interface: Interface,
    /// Local F-TEID.
    pub f_teid: Option<FTeid>,
    /// Network instance.
    pub network_instance: Option<String>,
    /// UE address.
    pub ue_ip: Option<UeIp>,
    /// SDF filters.
    pub sdf_filters: Vec<SdfFilter>,
    /// Application ID.
    pub application_id: Option<String>,
    /// QFIs.
    pub qfis: Vec<u8>,
    /// Traffic endpoints, which say what is not said here.
    pub traffic_endpoint_ids: Vec<u8>,
    /// Framed routes of either version, those of IPv4 first: networks behind the UE.
    pub framed_routes: Vec<Network>,
    /// How routes are exchanged with the UE: 0 for not at all.
    pub framed_routing: Option<u32>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

impl Pdi {
    /// Matches all packets that come in at `source_interface`.
    pub fn from_interface(source_interface: Interface) -> Self {
        Self { source_interface, ..Self::default() }
    }

    pub(super) fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            source_interface: Interface::read(ies.mandatory(IeType::SourceInterface)?)?,
            f_teid: ies.first(IeType::Fteid).map(FTeid::read).transpose()?,
            network_instance: ies.first(IeType::NetworkInstance).map(read_network_instance).transpose()?,
            ue_ip: ies.first(IeType::UeIpAddress).map(UeIp::read).transpose()?,
            sdf_filters: ies.all(IeType::SdfFilter).map(SdfFilter::read).collect::<Result<_, _>>()?,
            application_id: ies.first(IeType::ApplicationId).map(read_application_id).transpose()?,
            qfis: ies.all(IeType::Qfi).map(read_qfi).collect::<Result<_, _>>()?,
            traffic_endpoint_ids: ies.all(IeType::TrafficEndpointId).map(|ie| ie.octet()).collect::<Result<_, _>>()?,
            framed_routes: read_routes(&ies)?,
            framed_routing: ies.first(IeType::FramedRouting).map(read_routing).transpose()?,
            others: ies.others(PDI_KNOWN),
        })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.grouped(IeType::Pdi, |out| {
            out.element(IeType::SourceInterface, &[self.source_interface.value()]);
            if let Some(f_teid) = &self.f_teid {
                f_teid.write(out);
            }
            if let Some(name) = &self.network_instance {
                out.element(IeType::NetworkInstance, name.as_bytes());
            }
            if let Some(ue_ip) = &self.ue_ip {
                ue_ip.write(out);
            }
            self.sdf_filters.iter().for_each(|filter| filter.write(out));
            if let Some(id) = &self.application_id {
                out.element(IeType::ApplicationId, id.as_bytes());
            }
            self.qfis.iter().for_each(|&qfi| out.element(IeType::Qfi, &[qfi]));
            self.traffic_endpoint_ids.iter().for_each(|&id| out.element(IeType::TrafficEndpointId, &[id]));
            write_routes(&self.framed_routes, out);
            if let Some(routing) = self.framed_routing {
                out.element(IeType::FramedRouting, &routing.to_be_bytes());
            }
        });
    }
}

const PDI_KNOWN: &[IeType] = &[
    IeType::SourceInterface,
    IeType::Fteid,
    IeType::NetworkInstance,
    IeType::UeIpAddress,
    IeType::SdfFilter,
    IeType::ApplicationId,
    IeType::Qfi,
    IeType::TrafficEndpointId,
    IeType::FramedRoute,
    IeType::FramedRouting,
    IeType::FramedIpv6Route,
];
