//! From single rules as messages state them to rules as the UPF applies them. Whatever a rule asks for that is not applied
//! is refused, never ignored: an accepted request does all that it says.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pfcp::rule::{self as wire, ApplyAction};
use pfcp::{Cause, Fault, IeType, RuleId};

use super::filter::parse_flow_description;
use crate::log::Escaped;
use crate::marking::Marking;
use crate::rules::{FTeid, Forwarding, Interface, OuterHeaderCreation, OuterHeaderRemoval, Pdi, Qer, SdfFilter, UeIp};
use crate::side;

/// A part of a message, as far as it matters for what elements in it ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Message,
    Pdr,
    Pdi,
    Far,
    ForwardingParameters,
    Qer,
    Urr,
    Bar,
}

/// Refuses elements that ask for what this UPF does not do. Elements that only inform, and those that the standard does
/// not know, are passed over (TS 29.244, 7.6.9).
pub(super) fn refuse(place: Place, others: &[u16]) -> Result<(), Fault> {
    let refusal = |kind: u16| Some(Fault::of_raw(cause_of_refusal(place, kind.into())?, kind));
    match others.iter().copied().find_map(refusal) {
        Some(fault) => Err(fault),
        None => Ok(()),
    }
}

fn cause_of_refusal(place: Place, kind: IeType) -> Option<Cause> {
    use IeType::*;
    // There is an element of that name too.
    use pfcp::Cause;
    let refused = match place {
        Place::Message => matches!(
            kind,
            // Reports of other kinds than usage.
            CreateSrr | UpdateSrr | RemoveSrr
            // Features not advertised: MPTCP and ATSSS-LL, TRACE, TSCTS, RDS, L2TP, MBSN4.
            | CreateMar | UpdateMar | RemoveMar | ProvideAtsssControlInformation
            | TraceInformation
            | CreateBridgeInfoForTsc | TscManagementInformationWithinSessionModificationRequest
            | ProvideRdsConfigurationInformation
            | L2tpTunnelInformation | L2tpSessionInformation
            | EthernetContextInformation | QueryPacketRateStatusWithinSessionModificationRequest
            | MbsSessionN4mbControlInformation | MbsSessionN4ControlInformation
        ),
        Place::Pdr => matches!(
            kind,
            ActivationTime
                | DeactivationTime
                | MarId
                | TrafficEndpointId
                | PacketReplicationAndDetectionCarryOnInformation
                | IpMulticastAddressingInfo
                | UeIpAddressPoolIdentity
                | TransportDelayReporting
        ),
        Place::Pdi => matches!(
            kind,
            EthernetPduSessionInformation
                | EthernetPacketFilter
                | IpMulticastAddressingInfo
                | RedundantTransmissionParameters
                | DnsQueryResponseFilter
                | MbsSessionIdentifier
                | AreaSessionId
                | LocalIngressTunnel
        ),
        Place::Far => matches!(
            kind,
            RedundantTransmissionForwardingParameters
                | MbsMulticastParameters
                | AddMbsUnicastParameters
                | RemoveMbsUnicastParameters
        ),
        Place::ForwardingParameters => match kind {
            ForwardingPolicy => return Some(Cause::InvalidForwardingPolicy),
            RedirectInformation | HeaderEnrichment | TrafficEndpointId | Proxying => true,
            IpAddressAndPortNumberReplacement => true,
            _ => false,
        },
        // Paging of machines that sleep long.
        Place::Bar => matches!(kind, MtedtControlInformation),
        // Its events, and features not advertised, such as aggregation.
        Place::Urr => matches!(
            kind,
            // Exemptions from quotas.
            ApplicationId
                | SdfFilter
                | EventThreshold
                | EventQuota
                | SubsequentEventThreshold
                | SubsequentEventQuota
                | EthernetInactivityTimer
                | AdditionalMonitoringTime
                | AggregatedUrrs
                | TimeQuotaMechanism
                | NumberOfReports
                | UserPlaneInactivityTimer
        ),
        Place::Qer => matches!(
            kind,
            // Limits on packets of machines, LTE's marking, and paging by the kind of packets.
            PacketRate
                | PacketRateStatus
                | DlFlowLevelMarking
                | PagingPolicyIndicator
                | QerControlIndications
                | QerIndications
        ),
    };
    refused.then_some(Cause::ServiceNotSupported)
}

/// A PDI, and what the UPF is to choose for it.
pub(super) fn pdi(
    pdi: &wire::Pdi,
    local: &[IpAddr],
    most: usize,
    filters: &Filters,
) -> Result<(Pdi, Option<Choice>), Fault> {
    refuse(Place::Pdi, &pdi.others)?;
    let too_many = |kind| Fault::of(Cause::NoResourcesAvailable, kind);
    if pdi.sdf_filters.len() > most {
        return Err(too_many(IeType::SdfFilter));
    }
    if pdi.qfis.len() > most {
        return Err(too_many(IeType::Qfi));
    }
    if pdi.framed_routes.len() > most {
        return Err(too_many(IeType::FramedRoute));
    }
    match pdi.framed_routing {
        None | Some(0) => {}
        // The UPF speaks no routing protocol with UEs.
        Some(1..=3) => return Err(Fault::of(Cause::ServiceNotSupported, IeType::FramedRouting)),
        Some(_) => return Err(Fault::of(Cause::MandatoryIeIncorrect, IeType::FramedRouting)),
    }
    let source_interface = source_interface(pdi)?;
    let (f_teid, choice) = match pdi.f_teid {
        None => (None, None),
        Some(wire::FTeid::Given { teid, v4, v6 }) => (Some(given_f_teid(teid, v4, v6, local)?), None),
        Some(wire::FTeid::Choose { v4, v6, id }) => (None, Some(Choice { v4, v6, id })),
    };
    let translated = Pdi {
        source_interface,
        network_instance: pdi.network_instance.clone(),
        f_teid,
        ue_ip: pdi.ue_ip.as_ref().map(|ue_ip| translate_ue_ip(ue_ip, source_interface)).transpose()?,
        sdf_filters: pdi.sdf_filters.iter().map(|filter| sdf_filter(filter, filters)).collect::<Result<_, _>>()?,
        qfis: pdi.qfis.clone(),
        framed_routes: pdi.framed_routes.iter().map(|&(net, length)| (side::network(net, length), length)).collect(),
        traffic_endpoint: None,
    };
    Ok((translated, choice))
}

/// An F-TEID that the UPF is to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub v4: bool,
    pub v6: bool,
    /// Choices of a message with the same ID are one.
    pub id: Option<u8>,
}

/// Source and destination interface *CP function* (8.2.2, 8.2.24).
const CP_FUNCTION: u8 = 3;
/// Destination interface *LI function* (8.2.24).
const LI_FUNCTION: u8 = 4;

/// *Core* is N6 unless there is a tunnel, which is N9's.
fn source_interface(pdi: &wire::Pdi) -> Result<Interface, Fault> {
    match (pdi.source_interface, pdi.f_teid) {
        (wire::Interface::Access, Some(_)) => Ok(Interface::Access),
        (wire::Interface::Access, None) => Err(Fault::of(Cause::ConditionalIeMissing, IeType::Fteid)),
        (wire::Interface::Core | wire::Interface::SgiLan, None) => Ok(Interface::SgiLan),
        (wire::Interface::Core, Some(_)) => Ok(Interface::Core),
        (wire::Interface::SgiLan, Some(_)) => Err(Fault::of(Cause::MandatoryIeIncorrect, IeType::Fteid)),
        // The session manager's own packets, and those that it has kept, come by a tunnel like N9's.
        (wire::Interface::Other(CP_FUNCTION), Some(_)) => Ok(Interface::Core),
        (wire::Interface::Other(CP_FUNCTION), None) => Err(Fault::of(Cause::ConditionalIeMissing, IeType::Fteid)),
        // A 5G virtual network's.
        (wire::Interface::Other(4), _) => Err(Fault::of(Cause::ServiceNotSupported, IeType::SourceInterface)),
        (wire::Interface::Other(_), _) => Err(Fault::of(Cause::MandatoryIeIncorrect, IeType::SourceInterface)),
    }
}

/// An F-TEID of the session manager's choice must still be one that leads here.
fn given_f_teid(teid: u32, v4: Option<Ipv4Addr>, v6: Option<Ipv6Addr>, local: &[IpAddr]) -> Result<FTeid, Fault> {
    let ours = v4.map(IpAddr::V4).into_iter().chain(v6.map(IpAddr::V6)).all(|address| local.contains(&address));
    if teid == 0 || !ours {
        return Err(Fault::of(Cause::MandatoryIeIncorrect, IeType::Fteid));
    }
    Ok(FTeid { teid, v4, v6 })
}

fn translate_ue_ip(ue_ip: &wire::UeIp, source: Interface) -> Result<UeIp, Fault> {
    let wrong = Fault::of(Cause::MandatoryIeIncorrect, IeType::UeIpAddress);
    let none = ue_ip.v4.is_none() && ue_ip.v6.is_none() && !ue_ip.is_choice();
    let unusable_v4 = ue_ip.v4.is_some_and(|v4| v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast());
    let unusable_v6 = ue_ip.v6.is_some_and(|(v6, _)| v6.is_unspecified() || v6.is_multicast());
    // A UE sends from its address, and is sent to at it.
    let is_destination = source != Interface::Access;
    if none || unusable_v4 || unusable_v6 || ue_ip.destination != is_destination {
        return Err(wrong);
    }
    Ok(UeIp { v4: ue_ip.v4, v6: ue_ip.v6 })
}

/// SDF filters of a session by their IDs.
pub(super) type Filters = BTreeMap<u32, SdfFilter>;

/// A filter; one by its ID alone is that of another PDR. Which way a filter is turned is each PDR's own.
pub(super) fn sdf_filter(filter: &wire::SdfFilter, known: &Filters) -> Result<SdfFilter, Fault> {
    let says = filter.tos.is_some() || filter.spi.is_some() || filter.flow_label.is_some();
    if let (Some(id), None, false) = (filter.id, &filter.flow_description, says) {
        let unknown = Fault::of(Cause::RuleCreationModificationFailure, IeType::SdfFilter);
        return known.get(&id).cloned().ok_or(unknown);
    }
    let wrong = Fault::of(Cause::MandatoryIeIncorrect, IeType::SdfFilter);
    let text = match &filter.flow_description {
        Some(text) => text,
        None if says => "permit out ip from any to assigned",
        None => return Err(wrong),
    };
    let parsed = parse_flow_description(text).map_err(|error| {
        tracing::debug!(text = %Escaped(text), %error, "no flow description");
        wrong
    })?;
    // The label's upper four bits are spare.
    let flow_label = filter.flow_label.map(|label| label & 0xf_ffff);
    Ok(SdfFilter { tos: filter.tos, spi: filter.spi, flow_label, id: filter.id, ..parsed })
}

/// The header to remove. Only tunnelled packets have one.
pub(super) fn outer_header_removal(
    removal: wire::OuterHeaderRemoval,
    source: Interface,
) -> Result<OuterHeaderRemoval, Fault> {
    let fault = |cause| Err(Fault::of(cause, IeType::OuterHeaderRemoval));
    match removal.description {
        _ if source == Interface::SgiLan => fault(Cause::MandatoryIeIncorrect),
        0 => Ok(OuterHeaderRemoval::GtpuUdpIpv4),
        1 => Ok(OuterHeaderRemoval::GtpuUdpIpv6),
        6 => Ok(OuterHeaderRemoval::GtpuUdpIp),
        // UDP/IP, IP and VLAN tags.
        2..=5 | 7 | 8 => fault(Cause::ServiceNotSupported),
        _ => fault(Cause::MandatoryIeIncorrect),
    }
}

/// Drop, forward, or buffer with or without notification, each with or without duplicates. Of the basic actions exactly one is to be set (8.2.26).
pub(super) fn action(action: ApplyAction) -> Result<ApplyAction, Fault> {
    use ApplyAction as Action;
    const NOT_SUPPORTED: u16 = !(Action::DROP.0 | Action::FORW.0 | Action::BUFF.0 | Action::NOCP.0 | Action::DUPL.0);
    /// Drop, forward, buffer, join and leave a multicast group.
    const BASIC: u16 = 0b110_0111;
    let fault = |cause| Err(Fault::of(cause, IeType::ApplyAction));
    let notifies_of_nothing = action.contains(Action::NOCP) && !action.contains(Action::BUFF);
    if (action.0 & BASIC).count_ones() != 1 || notifies_of_nothing {
        return fault(Cause::MandatoryIeIncorrect);
    }
    if action.0 & NOT_SUPPORTED != 0 {
        return fault(Cause::ServiceNotSupported);
    }
    Ok(action)
}

pub(super) fn forwarding(parameters: &wire::ForwardingParameters, local: &[IpAddr]) -> Result<Forwarding, Fault> {
    refuse(Place::ForwardingParameters, &parameters.others)?;
    Ok(Forwarding {
        destination_interface: destination_interface(
            parameters.destination_interface,
            parameters.outer_header_creation.is_some(),
        )?,
        network_instance: parameters.network_instance.clone(),
        outer_header_creation: match &parameters.outer_header_creation {
            Some(creation) => Some(outer_header_creation(creation, local)?),
            None => None,
        },
        marking: parameters.transport_level_marking.map_or(Marking::default(), marking),
    })
}

/// Where copies go: into a tunnel on N3's side, whoever has its other end.
pub(super) fn copy(parameters: &wire::ForwardingParameters, local: &[IpAddr]) -> Result<Forwarding, Fault> {
    let update = wire::UpdateForwardingParameters {
        destination_interface: Some(parameters.destination_interface),
        outer_header_creation: parameters.outer_header_creation,
        transport_level_marking: parameters.transport_level_marking,
        others: parameters.others.clone(),
        ..wire::UpdateForwardingParameters::default()
    };
    update_copy(None, &update, local)
}

/// Applies `update` to what there was; without anything before it must be complete.
pub(super) fn update_copy(
    before: Option<&Forwarding>,
    update: &wire::UpdateForwardingParameters,
    local: &[IpAddr],
) -> Result<Forwarding, Fault> {
    let is_for_lawful_interception = update.destination_interface == Some(wire::Interface::Other(LI_FUNCTION));
    let known = wire::Interface::Other(CP_FUNCTION);
    let destination_interface = if is_for_lawful_interception { Some(known) } else { update.destination_interface };
    let update = wire::UpdateForwardingParameters { destination_interface, network_instance: None, ..update.clone() };
    let copy = update_forwarding(before, &update, local)?;
    if copy.destination_interface == Interface::SgiLan {
        return Err(Fault::of(Cause::ServiceNotSupported, IeType::DestinationInterface));
    }
    if copy.outer_header_creation.is_none() {
        return Err(Fault::of(Cause::ConditionalIeMissing, IeType::OuterHeaderCreation));
    }
    Ok(copy)
}

/// Applies `update` to what there was; without anything before it must be complete.
pub(super) fn update_forwarding(
    before: Option<&Forwarding>,
    update: &wire::UpdateForwardingParameters,
    local: &[IpAddr],
) -> Result<Forwarding, Fault> {
    refuse(Place::ForwardingParameters, &update.others)?;
    let missing = Fault::of(Cause::ConditionalIeMissing, IeType::DestinationInterface);
    let has_tunnel =
        update.outer_header_creation.is_some() || before.is_some_and(|before| before.outer_header_creation.is_some());
    let destination = update.destination_interface.map(|to| destination_interface(to, has_tunnel)).transpose()?;
    let created = update.outer_header_creation.as_ref();
    let created = created.map(|creation| outer_header_creation(creation, local)).transpose()?;
    let network_instance = match &update.network_instance {
        Some(name) => Some(name.clone()).filter(|name| !name.is_empty()),
        None => before.and_then(|before| before.network_instance.clone()),
    };
    Ok(Forwarding {
        destination_interface: destination.or(before.map(|b| b.destination_interface)).ok_or(missing)?,
        network_instance,
        outer_header_creation: created.or(before.and_then(|before| before.outer_header_creation)),
        marking: update
            .transport_level_marking
            .map(marking)
            .or(before.map(|before| before.marking))
            .unwrap_or_default(),
    })
}

fn marking((tos, mask): (u8, u8)) -> Marking {
    Marking { tos, mask }
}

/// *Core* is N6 unless there is a tunnel, which is N9's.
fn destination_interface(interface: wire::Interface, has_tunnel: bool) -> Result<Interface, Fault> {
    match interface {
        wire::Interface::Access => Ok(Interface::Access),
        wire::Interface::Core if has_tunnel => Ok(Interface::Core),
        wire::Interface::Core | wire::Interface::SgiLan => Ok(Interface::SgiLan),
        // Into a tunnel of the session manager's, as into N9's.
        wire::Interface::Other(CP_FUNCTION) => Ok(Interface::Core),
        // LI function, 5G virtual network.
        wire::Interface::Other(4 | 5) => Err(Fault::of(Cause::ServiceNotSupported, IeType::DestinationInterface)),
        wire::Interface::Other(_) => Err(Fault::of(Cause::MandatoryIeIncorrect, IeType::DestinationInterface)),
    }
}

/// A tunnel; over IPv4 where the peer offers both versions and this UPF has both.
fn outer_header_creation(creation: &wire::OuterHeaderCreation, local: &[IpAddr]) -> Result<OuterHeaderCreation, Fault> {
    const GTPU: u16 = wire::OuterHeaderCreation::GTPU_UDP_IPV4 | wire::OuterHeaderCreation::GTPU_UDP_IPV6;
    let fault = |cause| Fault::of(cause, IeType::OuterHeaderCreation);
    if creation.description == 0 {
        return Err(fault(Cause::MandatoryIeIncorrect));
    }
    if creation.description & !GTPU != 0 {
        return Err(fault(Cause::ServiceNotSupported));
    }
    let offered = creation.v4.map(IpAddr::V4).into_iter().chain(creation.v6.map(IpAddr::V6));
    let has_version = |address: &IpAddr| local.iter().any(|own| own.is_ipv4() == address.is_ipv4());
    let address = offered.into_iter().find(has_version).ok_or(fault(Cause::ServiceNotSupported))?;
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    let teid = creation.teid.unwrap_or(0);
    if teid == 0 || address.is_unspecified() || address.is_multicast() || broadcast {
        return Err(fault(Cause::MandatoryIeIncorrect));
    }
    Ok(OuterHeaderCreation { teid, address })
}

pub(super) fn qer(create: &wire::CreateQer) -> Result<Qer, Fault> {
    refuse(Place::Qer, &create.others)?;
    checked(Qer {
        id: create.id,
        uplink_gate_open: create.gate_status.uplink_open,
        downlink_gate_open: create.gate_status.downlink_open,
        uplink_mbr_bps: create.mbr.map(|mbr| mbr.uplink_kbps * 1_000),
        downlink_mbr_bps: create.mbr.map(|mbr| mbr.downlink_kbps * 1_000),
        qfi: create.qfi,
        reflective: create.reflective.unwrap_or(false),
        correlation_id: create.correlation_id,
    })
}

/// The indication is one beside the QoS flow, so there must be one.
fn checked(qer: Qer) -> Result<Qer, Fault> {
    if qer.reflective && qer.qfi.is_none() {
        return Err(Fault::of(Cause::ConditionalIeMissing, IeType::Qfi));
    }
    Ok(qer)
}

/// QERs that share a maximum bit rate have to state the same one.
pub(super) fn check_correlated<'q>(qers: impl Iterator<Item = &'q Qer>) -> Result<(), Fault> {
    let mut shared = HashMap::new();
    for (id, qer) in qers.filter_map(|qer| Some((qer.correlation_id?, qer))) {
        let rates = (qer.uplink_mbr_bps, qer.downlink_mbr_bps);
        if *shared.entry(id).or_insert(rates) != rates {
            return Err(Fault { offending_ie: Some(IeType::Mbr as u16), ..Fault::rule(RuleId::Qer(qer.id)) });
        }
    }
    Ok(())
}

pub(super) fn update_qer(before: &Qer, update: &wire::UpdateQer) -> Result<Qer, Fault> {
    refuse(Place::Qer, &update.others)?;
    let gate = |gate: fn(&wire::GateStatus) -> bool, before| update.gate_status.as_ref().map_or(before, gate);
    let rate = |kbps: fn(&wire::BitRate) -> u64, before| update.mbr.as_ref().map(|mbr| kbps(mbr) * 1_000).or(before);
    checked(Qer {
        id: before.id,
        uplink_gate_open: gate(|gate| gate.uplink_open, before.uplink_gate_open),
        downlink_gate_open: gate(|gate| gate.downlink_open, before.downlink_gate_open),
        uplink_mbr_bps: rate(|mbr| mbr.uplink_kbps, before.uplink_mbr_bps),
        downlink_mbr_bps: rate(|mbr| mbr.downlink_kbps, before.downlink_mbr_bps),
        qfi: update.qfi.or(before.qfi),
        reflective: update.reflective.unwrap_or(before.reflective),
        correlation_id: update.correlation_id.or(before.correlation_id),
    })
}
