//! Rules of a session as messages carry them (TS 29.244, 7.5.2.2 to 7.5.2.5 and 7.5.4.2 to 7.5.4.5).
//!
//! An absent element is `None`. What an element is for is not judged here: the field `others` of a rule lists the types of
//! elements that were there but are not modelled, so that who applies the rule can refuse what it would have to ignore.

use std::net::{Ipv4Addr, Ipv6Addr};

use rs_pfcp::ie::IeType;
use rs_pfcp::ie::f_teid::Fteid;
use rs_pfcp::ie::gbr::Gbr;
use rs_pfcp::ie::mbr::Mbr;
use rs_pfcp::ie::outer_header_creation::OuterHeaderCreation as OuterHeaderCreationCodec;
use rs_pfcp::ie::outer_header_creation::OuterHeaderCreationFlags;
use rs_pfcp::ie::ue_ip_address::UeIpAddress;

use crate::fault::{Cause, Fault};
use crate::ie::{Elements, Ie, decode};
use crate::node::labels;

/// Source or destination interface (8.2.2, 8.2.24).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// Towards the RAN.
    Access,
    /// Towards the core: N9, or N6.
    Core,
    /// Towards the data network: N6.
    SgiLan,
    /// Another of the standard's values.
    Other(u8),
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

/// UE address (8.2.62).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UeIp {
    /// IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 prefix and its length in bits; 64 unless stated otherwise.
    pub v6: Option<(Ipv6Addr, u8)>,
    /// It is the packet's destination rather than its source.
    pub destination: bool,
    /// The UPF is to choose the address.
    pub choose: bool,
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

/// Packet detection information (table 7.5.2.2-2).
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// QFIs.
    pub qfis: Vec<u8>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

/// Outer header removal (8.2.64).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterHeaderRemoval {
    /// Which header, such as [`OuterHeaderRemoval::GTPU_UDP_IPV4`].
    pub description: u8,
}

#[allow(missing_docs)]
impl OuterHeaderRemoval {
    pub const GTPU_UDP_IPV4: Self = Self { description: 0 };
    pub const GTPU_UDP_IPV6: Self = Self { description: 1 };
    pub const GTPU_UDP_IP: Self = Self { description: 6 };
}

/// Create PDR (table 7.5.2.2-1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatePdr {
    /// PDR ID.
    pub id: u16,
    /// Precedence; the lowest value is matched first.
    pub precedence: u32,
    /// Packet detection information.
    pub pdi: Pdi,
    /// Outer header removal.
    pub outer_header_removal: Option<OuterHeaderRemoval>,
    /// FAR ID.
    pub far_id: Option<u32>,
    /// QER IDs.
    pub qer_ids: Vec<u32>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

/// Update PDR (table 7.5.4.2-1). What is present replaces what the rule had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdatePdr {
    /// PDR ID.
    pub id: u16,
    /// Precedence.
    pub precedence: Option<u32>,
    /// Packet detection information, as a whole.
    pub pdi: Option<Pdi>,
    /// Outer header removal.
    pub outer_header_removal: Option<OuterHeaderRemoval>,
    /// FAR ID.
    pub far_id: Option<u32>,
    /// QER IDs, all of them, if there are any.
    pub qer_ids: Vec<u32>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

/// Created PDR (table 7.5.3.2-1): what the UPF chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreatedPdr {
    /// PDR ID.
    pub id: u16,
    /// Local F-TEID, never one to be chosen.
    pub f_teid: Option<FTeid>,
}

/// Apply action flags (8.2.26); the first octet is the low one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApplyAction(pub u16);

#[allow(missing_docs)]
impl ApplyAction {
    pub const DROP: Self = Self(1);
    pub const FORW: Self = Self(1 << 1);
    pub const BUFF: Self = Self(1 << 2);
    pub const NOCP: Self = Self(1 << 3);
    pub const DUPL: Self = Self(1 << 4);
}

/// Outer header creation (8.2.56).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterHeaderCreation {
    /// Description, both octets; [`OuterHeaderCreation::GTPU_UDP_IPV4`] and the like.
    pub description: u16,
    /// TEID, with GTP-U.
    pub teid: Option<u32>,
    /// IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub v6: Option<Ipv6Addr>,
}

#[allow(missing_docs)]
impl OuterHeaderCreation {
    pub const GTPU_UDP_IPV4: u16 = 0x0100;
    pub const GTPU_UDP_IPV6: u16 = 0x0200;
}

/// Forwarding Parameters (table 7.5.2.3-2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardingParameters {
    /// Destination interface.
    pub destination_interface: Interface,
    /// Network instance.
    pub network_instance: Option<String>,
    /// Outer header creation.
    pub outer_header_creation: Option<OuterHeaderCreation>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

/// Update Forwarding Parameters (table 7.5.4.3-2). What is present replaces what the rule had.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct UpdateForwardingParameters {
    /// Destination interface.
    pub destination_interface: Option<Interface>,
    /// Network instance; an empty one removes it.
    pub network_instance: Option<String>,
    /// Outer header creation.
    pub outer_header_creation: Option<OuterHeaderCreation>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

/// Create FAR (table 7.5.2.3-1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateFar {
    /// FAR ID.
    pub id: u32,
    /// Apply action.
    pub apply_action: ApplyAction,
    /// Forwarding parameters.
    pub forwarding_parameters: Option<ForwardingParameters>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

/// Update FAR (table 7.5.4.3-1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateFar {
    /// FAR ID.
    pub id: u32,
    /// Apply action.
    pub apply_action: Option<ApplyAction>,
    /// Forwarding parameters.
    pub forwarding_parameters: Option<UpdateForwardingParameters>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

/// Gate status (8.2.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateStatus {
    /// Uplink packets pass.
    pub uplink_open: bool,
    /// Downlink packets pass.
    pub downlink_open: bool,
}

/// A bit rate for each direction (8.2.8, 8.2.9), in kbit/s, below 2^40.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitRate {
    /// Uplink.
    pub uplink_kbps: u64,
    /// Downlink.
    pub downlink_kbps: u64,
}

/// Create QER (table 7.5.2.5-1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateQer {
    /// QER ID.
    pub id: u32,
    /// Gate status.
    pub gate_status: GateStatus,
    /// Maximum bit rate.
    pub mbr: Option<BitRate>,
    /// Guaranteed bit rate.
    pub gbr: Option<BitRate>,
    /// QoS flow identifier.
    pub qfi: Option<u8>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

/// Update QER (table 7.5.4.5-1). What is present replaces what the rule had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateQer {
    /// QER ID.
    pub id: u32,
    /// Gate status.
    pub gate_status: Option<GateStatus>,
    /// Maximum bit rate.
    pub mbr: Option<BitRate>,
    /// Guaranteed bit rate.
    pub gbr: Option<BitRate>,
    /// QoS flow identifier.
    pub qfi: Option<u8>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

impl Interface {
    fn read(ie: Ie) -> Result<Self, Fault> {
        // The upper half is spare.
        Ok(match ie.octet()? & 0x0f {
            0 => Self::Access,
            1 => Self::Core,
            2 => Self::SgiLan,
            other => Self::Other(other),
        })
    }

    fn value(self) -> u8 {
        match self {
            Self::Access => 0,
            Self::Core => 1,
            Self::SgiLan => 2,
            Self::Other(value) => value & 0x0f,
        }
    }
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

    fn write(&self, out: &mut Vec<u8>) {
        let codec = match *self {
            Self::Given { teid, v4, v6 } => Fteid::new(v4.is_some(), v6.is_some(), teid, v4, v6, 0),
            Self::Choose { v4, v6, id } => {
                Fteid::new_with_choose(v4, v6, true, id.is_some(), 0, None, None, id.unwrap_or(0))
            }
        };
        out.element(IeType::Fteid, &codec.marshal());
    }
}

impl UeIp {
    /// Length of a UE's IPv6 prefix unless stated otherwise.
    pub const DEFAULT_PREFIX: u8 = 64;

    fn read(ie: Ie) -> Result<Self, Fault> {
        let read = decode(ie, UeIpAddress::unmarshal)?;
        let wrong = ie.fault(Cause::MandatoryIeIncorrect);
        let prefix = match (read.ipv6_prefix_length, read.ipv6_prefix_delegation_bits) {
            (Some(length), _) => length,
            // So many bits shorter, for the UE to delegate.
            (None, Some(bits)) => Self::DEFAULT_PREFIX.checked_sub(bits).ok_or(wrong)?,
            (None, None) => Self::DEFAULT_PREFIX,
        };
        if prefix == 0 || prefix > 128 {
            return Err(wrong);
        }
        Ok(Self {
            v4: read.ipv4_address,
            v6: read.ipv6_address.map(|address| (address, prefix)),
            destination: read.source_destination,
            choose: read.choose_ipv4 || read.choose_ipv6,
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        let mut codec = UeIpAddress::new(self.v4, self.v6.map(|(address, _)| address));
        codec.source_destination = self.destination;
        codec.choose_ipv4 = self.choose && self.v4.is_none() && self.v6.is_none();
        if let Some((_, length)) = self.v6.filter(|&(_, length)| length != Self::DEFAULT_PREFIX) {
            codec.ipv6_prefix_length_present = true;
            codec.ipv6_prefix_length = Some(length);
        }
        out.element(IeType::UeIpAddress, &codec.marshal());
    }
}

impl SdfFilter {
    /// A filter of a flow description alone.
    pub fn flow(description: impl Into<String>) -> Self {
        Self { flow_description: Some(description.into()), ..Self::default() }
    }

    // Read here, as rs-pfcp keeps the flow description only.
    fn read(ie: Ie) -> Result<Self, Fault> {
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

    fn write(&self, out: &mut Vec<u8>) {
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

/// Text, or labels as of an access point name, which some session managers send.
fn read_network_instance(ie: Ie) -> Result<String, Fault> {
    let is_labels = ie.value.first().is_some_and(|&octet| octet < b' ');
    match labels(ie.value).filter(|_| is_labels) {
        Some(name) => Ok(name),
        None => String::from_utf8(ie.value.to_vec()).map_err(|_| ie.fault(Cause::MandatoryIeIncorrect)),
    }
}

/// The upper bits are spare.
fn read_qfi(ie: Ie) -> Result<u8, Fault> {
    ie.octet().map(|octet| octet & 0x3f)
}

fn read_removal(ie: Ie) -> Result<OuterHeaderRemoval, Fault> {
    Ok(OuterHeaderRemoval { description: ie.octet()? })
}

fn write_ids(kind: IeType, ids: &[u32], out: &mut Vec<u8>) {
    ids.iter().for_each(|id| out.element(kind, &id.to_be_bytes()));
}

const PDI_KNOWN: &[IeType] = &[
    IeType::SourceInterface,
    IeType::Fteid,
    IeType::NetworkInstance,
    IeType::UeIpAddress,
    IeType::SdfFilter,
    IeType::Qfi,
];

impl Pdi {
    /// Matches all packets that come in at `source_interface`.
    pub fn from_interface(source_interface: Interface) -> Self {
        Self {
            source_interface,
            f_teid: None,
            network_instance: None,
            ue_ip: None,
            sdf_filters: vec![],
            qfis: vec![],
            others: vec![],
        }
    }

    fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            source_interface: Interface::read(ies.mandatory(IeType::SourceInterface)?)?,
            f_teid: ies.first(IeType::Fteid).map(FTeid::read).transpose()?,
            network_instance: ies.first(IeType::NetworkInstance).map(read_network_instance).transpose()?,
            ue_ip: ies.first(IeType::UeIpAddress).map(UeIp::read).transpose()?,
            sdf_filters: ies.all(IeType::SdfFilter).map(SdfFilter::read).collect::<Result<_, _>>()?,
            qfis: ies.all(IeType::Qfi).map(read_qfi).collect::<Result<_, _>>()?,
            others: ies.others(PDI_KNOWN),
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
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
            self.qfis.iter().for_each(|&qfi| out.element(IeType::Qfi, &[qfi]));
        });
    }
}

const PDR_KNOWN: &[IeType] =
    &[IeType::PdrId, IeType::Precedence, IeType::Pdi, IeType::OuterHeaderRemoval, IeType::FarId, IeType::QerId];

impl CreatePdr {
    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            id: ies.mandatory(IeType::PdrId)?.u16()?,
            precedence: ies.mandatory(IeType::Precedence)?.u32()?,
            pdi: Pdi::read(ies.mandatory(IeType::Pdi)?)?,
            outer_header_removal: ies.first(IeType::OuterHeaderRemoval).map(read_removal).transpose()?,
            far_id: ies.first(IeType::FarId).map(|ie| ie.u32()).transpose()?,
            qer_ids: ies.all(IeType::QerId).map(|ie| ie.u32()).collect::<Result<_, _>>()?,
            others: ies.others(PDR_KNOWN),
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.grouped(IeType::CreatePdr, |out| {
            out.element(IeType::PdrId, &self.id.to_be_bytes());
            out.element(IeType::Precedence, &self.precedence.to_be_bytes());
            self.pdi.write(out);
            if let Some(removal) = self.outer_header_removal {
                out.element(IeType::OuterHeaderRemoval, &[removal.description]);
            }
            write_ids(IeType::FarId, self.far_id.as_slice(), out);
            write_ids(IeType::QerId, &self.qer_ids, out);
        });
    }
}

impl UpdatePdr {
    /// Changes nothing yet.
    pub fn new(id: u16) -> Self {
        Self {
            id,
            precedence: None,
            pdi: None,
            outer_header_removal: None,
            far_id: None,
            qer_ids: vec![],
            others: vec![],
        }
    }

    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            id: ies.mandatory(IeType::PdrId)?.u16()?,
            precedence: ies.first(IeType::Precedence).map(|ie| ie.u32()).transpose()?,
            pdi: ies.first(IeType::Pdi).map(Pdi::read).transpose()?,
            outer_header_removal: ies.first(IeType::OuterHeaderRemoval).map(read_removal).transpose()?,
            far_id: ies.first(IeType::FarId).map(|ie| ie.u32()).transpose()?,
            qer_ids: ies.all(IeType::QerId).map(|ie| ie.u32()).collect::<Result<_, _>>()?,
            others: ies.others(PDR_KNOWN),
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.grouped(IeType::UpdatePdr, |out| {
            out.element(IeType::PdrId, &self.id.to_be_bytes());
            if let Some(removal) = self.outer_header_removal {
                out.element(IeType::OuterHeaderRemoval, &[removal.description]);
            }
            write_ids(IeType::Precedence, self.precedence.as_slice(), out);
            if let Some(pdi) = &self.pdi {
                pdi.write(out);
            }
            write_ids(IeType::FarId, self.far_id.as_slice(), out);
            write_ids(IeType::QerId, &self.qer_ids, out);
        });
    }
}

impl CreatedPdr {
    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            id: ies.mandatory(IeType::PdrId)?.u16()?,
            f_teid: ies.first(IeType::Fteid).map(FTeid::read).transpose()?,
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.grouped(IeType::CreatedPdr, |out| {
            out.element(IeType::PdrId, &self.id.to_be_bytes());
            if let Some(f_teid) = &self.f_teid {
                f_teid.write(out);
            }
        });
    }
}

impl ApplyAction {
    fn read(ie: Ie) -> Result<Self, Fault> {
        let low = ie.octet()?;
        Ok(Self(u16::from_le_bytes([low, ie.value.get(1).copied().unwrap_or(0)])))
    }

    fn write(self, out: &mut Vec<u8>) {
        let octets = self.0.to_le_bytes();
        out.element(IeType::ApplyAction, if octets[1] == 0 { &octets[..1] } else { &octets });
    }

    /// Whether all flags of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl OuterHeaderCreation {
    /// A GTP-U tunnel to `address`.
    pub fn gtpu(teid: u32, address: std::net::IpAddr) -> Self {
        match address {
            std::net::IpAddr::V4(v4) => {
                Self { description: Self::GTPU_UDP_IPV4, teid: Some(teid), v4: Some(v4), v6: None }
            }
            std::net::IpAddr::V6(v6) => {
                Self { description: Self::GTPU_UDP_IPV6, teid: Some(teid), v4: None, v6: Some(v6) }
            }
        }
    }

    fn read(ie: Ie) -> Result<Self, Fault> {
        let description = ie.u16()?;
        let read = decode(ie, OuterHeaderCreationCodec::unmarshal)?;
        Ok(Self { description, teid: read.teid.map(|teid| teid.0), v4: read.ipv4_address, v6: read.ipv6_address })
    }

    /// Only GTP-U is written; the rest of what the description can say is for reading.
    fn write(&self, out: &mut Vec<u8>) {
        let flags = OuterHeaderCreationFlags {
            gtpu_udp_ipv4: self.description & Self::GTPU_UDP_IPV4 != 0,
            gtpu_udp_ipv6: self.description & Self::GTPU_UDP_IPV6 != 0,
            ..OuterHeaderCreationFlags::new()
        };
        let mut codec = OuterHeaderCreationCodec::new(flags);
        codec.teid = self.teid.map(Into::into);
        codec.ipv4_address = self.v4;
        codec.ipv6_address = self.v6;
        out.element(IeType::OuterHeaderCreation, &codec.marshal());
    }
}

const FORWARDING_KNOWN: &[IeType] =
    &[IeType::DestinationInterface, IeType::NetworkInstance, IeType::OuterHeaderCreation];

impl ForwardingParameters {
    fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            destination_interface: Interface::read(ies.mandatory(IeType::DestinationInterface)?)?,
            network_instance: ies.first(IeType::NetworkInstance).map(read_network_instance).transpose()?,
            outer_header_creation: ies.first(IeType::OuterHeaderCreation).map(OuterHeaderCreation::read).transpose()?,
            others: ies.others(FORWARDING_KNOWN),
        })
    }
}

impl UpdateForwardingParameters {
    fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            destination_interface: ies.first(IeType::DestinationInterface).map(Interface::read).transpose()?,
            network_instance: ies.first(IeType::NetworkInstance).map(read_network_instance).transpose()?,
            outer_header_creation: ies.first(IeType::OuterHeaderCreation).map(OuterHeaderCreation::read).transpose()?,
            others: ies.others(FORWARDING_KNOWN),
        })
    }
}

fn write_forwarding(
    kind: IeType,
    destination: Option<Interface>,
    network_instance: &Option<String>,
    creation: &Option<OuterHeaderCreation>,
    out: &mut Vec<u8>,
) {
    out.grouped(kind, |out| {
        if let Some(interface) = destination {
            out.element(IeType::DestinationInterface, &[interface.value()]);
        }
        if let Some(name) = network_instance {
            out.element(IeType::NetworkInstance, name.as_bytes());
        }
        if let Some(creation) = creation {
            creation.write(out);
        }
    });
}

impl CreateFar {
    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            id: ies.mandatory(IeType::FarId)?.u32()?,
            apply_action: ApplyAction::read(ies.mandatory(IeType::ApplyAction)?)?,
            forwarding_parameters: ies
                .first(IeType::ForwardingParameters)
                .map(ForwardingParameters::read)
                .transpose()?,
            others: ies.others(&[IeType::FarId, IeType::ApplyAction, IeType::ForwardingParameters]),
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.grouped(IeType::CreateFar, |out| {
            write_ids(IeType::FarId, &[self.id], out);
            self.apply_action.write(out);
            if let Some(p) = &self.forwarding_parameters {
                let destination = Some(p.destination_interface);
                let kind = IeType::ForwardingParameters;
                write_forwarding(kind, destination, &p.network_instance, &p.outer_header_creation, out);
            }
        });
    }
}

impl UpdateFar {
    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            id: ies.mandatory(IeType::FarId)?.u32()?,
            apply_action: ies.first(IeType::ApplyAction).map(ApplyAction::read).transpose()?,
            forwarding_parameters: ies
                .first(IeType::UpdateForwardingParameters)
                .map(UpdateForwardingParameters::read)
                .transpose()?,
            others: ies.others(&[IeType::FarId, IeType::ApplyAction, IeType::UpdateForwardingParameters]),
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.grouped(IeType::UpdateFar, |out| {
            write_ids(IeType::FarId, &[self.id], out);
            if let Some(action) = self.apply_action {
                action.write(out);
            }
            if let Some(p) = &self.forwarding_parameters {
                let kind = IeType::UpdateForwardingParameters;
                write_forwarding(kind, p.destination_interface, &p.network_instance, &p.outer_header_creation, out);
            }
        });
    }
}

impl GateStatus {
    fn read(ie: Ie) -> Result<Self, Fault> {
        let octet = ie.octet()?;
        let open = |gate: u8| match gate & 0b11 {
            0 => Ok(true),
            1 => Ok(false),
            _ => Err(ie.fault(Cause::MandatoryIeIncorrect)),
        };
        Ok(Self { uplink_open: open(octet >> 2)?, downlink_open: open(octet)? })
    }

    fn write(&self, out: &mut Vec<u8>) {
        let octet = u8::from(!self.uplink_open) << 2 | u8::from(!self.downlink_open);
        out.element(IeType::GateStatus, &[octet]);
    }
}

fn read_mbr(ie: Ie) -> Result<BitRate, Fault> {
    decode(ie, Mbr::unmarshal).map(|mbr| BitRate { uplink_kbps: mbr.uplink, downlink_kbps: mbr.downlink })
}

fn read_gbr(ie: Ie) -> Result<BitRate, Fault> {
    decode(ie, Gbr::unmarshal).map(|gbr| BitRate { uplink_kbps: gbr.uplink, downlink_kbps: gbr.downlink })
}

const QER_KNOWN: &[IeType] = &[IeType::QerId, IeType::GateStatus, IeType::Mbr, IeType::Gbr, IeType::Qfi];

fn write_qer(
    id: u32,
    gate: Option<GateStatus>,
    mbr: Option<BitRate>,
    gbr: Option<BitRate>,
    qfi: Option<u8>,
    out: &mut Vec<u8>,
) {
    write_ids(IeType::QerId, &[id], out);
    if let Some(gate) = gate {
        gate.write(out);
    }
    if let Some(rate) = mbr {
        out.element(IeType::Mbr, &Mbr { uplink: rate.uplink_kbps, downlink: rate.downlink_kbps }.marshal());
    }
    if let Some(rate) = gbr {
        out.element(IeType::Gbr, &Gbr { uplink: rate.uplink_kbps, downlink: rate.downlink_kbps }.marshal());
    }
    if let Some(qfi) = qfi {
        out.element(IeType::Qfi, &[qfi]);
    }
}

impl CreateQer {
    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            id: ies.mandatory(IeType::QerId)?.u32()?,
            gate_status: GateStatus::read(ies.mandatory(IeType::GateStatus)?)?,
            mbr: ies.first(IeType::Mbr).map(read_mbr).transpose()?,
            gbr: ies.first(IeType::Gbr).map(read_gbr).transpose()?,
            qfi: ies.first(IeType::Qfi).map(read_qfi).transpose()?,
            others: ies.others(QER_KNOWN),
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.grouped(IeType::CreateQer, |out| {
            write_qer(self.id, Some(self.gate_status), self.mbr, self.gbr, self.qfi, out);
        });
    }
}

impl UpdateQer {
    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            id: ies.mandatory(IeType::QerId)?.u32()?,
            gate_status: ies.first(IeType::GateStatus).map(GateStatus::read).transpose()?,
            mbr: ies.first(IeType::Mbr).map(read_mbr).transpose()?,
            gbr: ies.first(IeType::Gbr).map(read_gbr).transpose()?,
            qfi: ies.first(IeType::Qfi).map(read_qfi).transpose()?,
            others: ies.others(QER_KNOWN),
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.grouped(IeType::UpdateQer, |out| {
            write_qer(self.id, self.gate_status, self.mbr, self.gbr, self.qfi, out);
        });
    }
}
