//! Forwarding action rules.

use std::net::{Ipv4Addr, Ipv6Addr};

use rs_pfcp::ie::IeType;
use rs_pfcp::ie::outer_header_creation::OuterHeaderCreation as OuterHeaderCreationCodec;
use rs_pfcp::ie::outer_header_creation::OuterHeaderCreationFlags;
use serde::{Deserialize, Serialize};

use super::pdi::Interface;
use super::{read_network_instance, write_ids};
use crate::fault::Fault;
use crate::ie::{Elements, Ie, decode};

/// Apply action flags (8.2.26); the first octet is the low one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyAction(pub u16);

#[allow(missing_docs)]
impl ApplyAction {
    pub const DROP: Self = Self(1);
    pub const FORW: Self = Self(1 << 1);
    pub const BUFF: Self = Self(1 << 2);
    pub const NOCP: Self = Self(1 << 3);
    pub const DUPL: Self = Self(1 << 4);
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

/// Forwarding Parameters (table 7.5.2.3-2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardingParameters {
    /// Destination interface.
    pub destination_interface: Interface,
    /// Network instance.
    pub network_instance: Option<String>,
    /// Outer header creation.
    pub outer_header_creation: Option<OuterHeaderCreation>,
    /// ToS or traffic class of outer headers: value and mask (8.2.12).
    pub transport_level_marking: Option<(u8, u8)>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

impl ForwardingParameters {
    fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            destination_interface: Interface::read(ies.mandatory(IeType::DestinationInterface)?)?,
            network_instance: ies.first(IeType::NetworkInstance).map(read_network_instance).transpose()?,
            outer_header_creation: ies.first(IeType::OuterHeaderCreation).map(OuterHeaderCreation::read).transpose()?,
            transport_level_marking: ies.first(IeType::TransportLevelMarking).map(read_marking).transpose()?,
            others: ies.others(FORWARDING_KNOWN),
        })
    }

    fn write(&self, kind: IeType, out: &mut Vec<u8>) {
        let parts = Forwarding {
            destination: Some(self.destination_interface),
            network_instance: &self.network_instance,
            creation: &self.outer_header_creation,
            marking: self.transport_level_marking,
            send_end_marker: false,
        };
        parts.write(kind, out);
    }
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
    /// ToS or traffic class of outer headers: value and mask (8.2.12).
    pub transport_level_marking: Option<(u8, u8)>,
    /// Whether the tunnel that is left gets an end marker (SNDEM of 8.2.36).
    pub send_end_marker: bool,
    /// Types of other elements.
    pub others: Vec<u16>,
}

const SNDEM: u8 = 1 << 1;

impl UpdateForwardingParameters {
    fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            destination_interface: ies.first(IeType::DestinationInterface).map(Interface::read).transpose()?,
            network_instance: ies.first(IeType::NetworkInstance).map(read_network_instance).transpose()?,
            outer_header_creation: ies.first(IeType::OuterHeaderCreation).map(OuterHeaderCreation::read).transpose()?,
            transport_level_marking: ies.first(IeType::TransportLevelMarking).map(read_marking).transpose()?,
            send_end_marker: match ies.first(IeType::PfcpsmReqFlags) {
                Some(flags) => flags.octet()? & SNDEM != 0,
                None => false,
            },
            others: ies.others(UPDATE_FORWARDING_KNOWN),
        })
    }

    fn write(&self, kind: IeType, out: &mut Vec<u8>) {
        let parts = Forwarding {
            destination: self.destination_interface,
            network_instance: &self.network_instance,
            creation: &self.outer_header_creation,
            marking: self.transport_level_marking,
            send_end_marker: self.send_end_marker,
        };
        parts.write(kind, out);
    }
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
    /// Where copies of packets go (table 7.5.2.3-3).
    pub duplicating_parameters: Vec<ForwardingParameters>,
    /// The BAR that says how to buffer.
    pub bar_id: Option<u8>,
    /// Types of other elements.
    pub others: Vec<u16>,
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
            duplicating_parameters: ies
                .all(IeType::DuplicatingParameters)
                .map(ForwardingParameters::read)
                .collect::<Result<_, _>>()?,
            bar_id: ies.first(IeType::BarId).map(|ie| ie.octet()).transpose()?,
            others: ies.others(&[
                IeType::FarId,
                IeType::ApplyAction,
                IeType::ForwardingParameters,
                IeType::DuplicatingParameters,
                IeType::BarId,
            ]),
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.grouped(IeType::CreateFar, |out| {
            write_ids(IeType::FarId, &[self.id], out);
            self.apply_action.write(out);
            if let Some(parameters) = &self.forwarding_parameters {
                parameters.write(IeType::ForwardingParameters, out);
            }
            self.duplicating_parameters.iter().for_each(|copy| copy.write(IeType::DuplicatingParameters, out));
            if let Some(id) = self.bar_id {
                out.element(IeType::BarId, &[id]);
            }
        });
    }
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
    /// Where copies of packets go (table 7.5.4.3-3); all of these, if there are any.
    pub duplicating_parameters: Vec<UpdateForwardingParameters>,
    /// The BAR that says how to buffer.
    pub bar_id: Option<u8>,
    /// Types of other elements.
    pub others: Vec<u16>,
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
            duplicating_parameters: ies
                .all(IeType::UpdateDuplicatingParameters)
                .map(UpdateForwardingParameters::read)
                .collect::<Result<_, _>>()?,
            bar_id: ies.first(IeType::BarId).map(|ie| ie.octet()).transpose()?,
            others: ies.others(&[
                IeType::FarId,
                IeType::ApplyAction,
                IeType::UpdateForwardingParameters,
                IeType::UpdateDuplicatingParameters,
                IeType::BarId,
            ]),
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.grouped(IeType::UpdateFar, |out| {
            write_ids(IeType::FarId, &[self.id], out);
            if let Some(action) = self.apply_action {
                action.write(out);
            }
            if let Some(parameters) = &self.forwarding_parameters {
                parameters.write(IeType::UpdateForwardingParameters, out);
            }
            self.duplicating_parameters.iter().for_each(|copy| copy.write(IeType::UpdateDuplicatingParameters, out));
            if let Some(id) = self.bar_id {
                out.element(IeType::BarId, &[id]);
            }
        });
    }
}

const FORWARDING_KNOWN: &[IeType] = &[
    IeType::DestinationInterface,
    IeType::NetworkInstance,
    IeType::OuterHeaderCreation,
    IeType::TransportLevelMarking,
];

const UPDATE_FORWARDING_KNOWN: &[IeType] = &[
    IeType::DestinationInterface,
    IeType::NetworkInstance,
    IeType::OuterHeaderCreation,
    IeType::TransportLevelMarking,
    IeType::PfcpsmReqFlags,
];

/// What Forwarding Parameters and their update have in common.
struct Forwarding<'a> {
    destination: Option<Interface>,
    network_instance: &'a Option<String>,
    creation: &'a Option<OuterHeaderCreation>,
    marking: Option<(u8, u8)>,
    send_end_marker: bool,
}

impl Forwarding<'_> {
    fn write(&self, kind: IeType, out: &mut Vec<u8>) {
        out.grouped(kind, |out| {
            if let Some(interface) = self.destination {
                out.element(IeType::DestinationInterface, &[interface.value()]);
            }
            if let Some(name) = self.network_instance {
                out.element(IeType::NetworkInstance, name.as_bytes());
            }
            if let Some(creation) = self.creation {
                creation.write(out);
            }
            if let Some((tos, mask)) = self.marking {
                out.element(IeType::TransportLevelMarking, &[tos, mask]);
            }
            if self.send_end_marker {
                out.element(IeType::PfcpsmReqFlags, &[SNDEM]);
            }
        });
    }
}

fn read_marking(ie: Ie) -> Result<(u8, u8), Fault> {
    ie.u16().map(|octets| octets.to_be_bytes().into())
}
