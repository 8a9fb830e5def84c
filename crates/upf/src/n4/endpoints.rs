//! Traffic endpoints: F-TEID, network instance, UE address and framed routes that several PDRs of a session have in common.
//! A PDR that names an endpoint has them as if they were its own.

use std::collections::BTreeMap;

use pfcp::rule as wire;
use pfcp::{Cause, Fault, IeType};

use super::contents::Surroundings;
use super::translate::{self, Choice};
use crate::rules::{Interface, Pdi};

/// Who has something that the UPF is to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Chooser {
    Endpoint(u8),
    Pdr(u16),
}

/// The endpoints of a session by their IDs, each as a PDI from a tunnel or from N6.
pub(super) type Endpoints = BTreeMap<u8, Pdi>;

/// Endpoints have no failed rule ID.
pub(super) fn fault(kind: IeType) -> Fault {
    Fault::of(Cause::RuleCreationModificationFailure, kind)
}

/// The PDI that has what the endpoint states, and nothing else.
fn stated(endpoint: &wire::TrafficEndpoint) -> wire::Pdi {
    wire::Pdi {
        f_teid: endpoint.f_teid,
        network_instance: endpoint.network_instance.clone(),
        // Which end of a packet it is, the PDRs say.
        ue_ip: endpoint.ue_ip.map(|ue_ip| wire::UeIp { destination: true, ..ue_ip }),
        framed_routes: endpoint.framed_routes.clone(),
        framed_routing: endpoint.framed_routing,
        qfis: endpoint.qfis.clone(),
        others: endpoint.others.clone(),
        ..wire::Pdi::from_interface(wire::Interface::Core)
    }
}

fn translated(endpoint: &wire::TrafficEndpoint, around: Surroundings) -> Result<(Pdi, Option<Choice>), Fault> {
    translate::pdi(&stated(endpoint), around.local, around.config.limits.per_pdr, around.filters)
}

/// Adds an endpoint, and returns the F-TEID that is to be chosen for it.
pub(super) fn create(
    endpoints: &mut Endpoints,
    create: &wire::TrafficEndpoint,
    around: Surroundings,
) -> Result<Option<Choice>, Fault> {
    let (endpoint, choice) = translated(create, around)?;
    if endpoints.insert(create.id, endpoint).is_some() {
        return Err(fault(IeType::CreateTrafficEndpoint));
    }
    Ok(choice)
}

/// Changes an endpoint in what `update` states.
pub(super) fn update(
    endpoints: &mut Endpoints,
    update: &wire::TrafficEndpoint,
    around: Surroundings,
) -> Result<(), Fault> {
    let endpoint = endpoints.get_mut(&update.id).ok_or(fault(IeType::UpdateTrafficEndpoint))?;
    let (new, choice) = translated(update, around)?;
    if choice.is_some() {
        return Err(Fault::of(Cause::InvalidFteidAllocationOption, IeType::Fteid));
    }
    if update.ue_ip.is_some_and(|ue_ip| ue_ip.is_choice()) {
        return Err(Fault::of(Cause::ServiceNotSupported, IeType::UeIpAddress));
    }
    if new.f_teid.is_some() && !has_tunnel(endpoint) {
        // Its PDRs are of packets from N6.
        return Err(Fault::of(Cause::MandatoryIeIncorrect, IeType::Fteid));
    }
    endpoint.f_teid = new.f_teid.or(endpoint.f_teid);
    endpoint.ue_ip = new.ue_ip.or(endpoint.ue_ip);
    endpoint.network_instance = new.network_instance.or(endpoint.network_instance.take());
    if !new.framed_routes.is_empty() {
        endpoint.framed_routes = new.framed_routes;
    }
    if !new.qfis.is_empty() {
        endpoint.qfis = new.qfis;
    }
    Ok(())
}

fn has_tunnel(endpoint: &Pdi) -> bool {
    endpoint.source_interface != Interface::SgiLan
}

/// The PDI of a PDR, and the F-TEID that is to be chosen for the PDR itself.
pub(super) fn pdi(
    pdi: &wire::Pdi,
    endpoints: &Endpoints,
    around: Surroundings,
) -> Result<(Pdi, Option<Choice>), Fault> {
    let most = around.config.limits.per_pdr;
    let id = match pdi.traffic_endpoint_ids[..] {
        [] => return translate::pdi(pdi, around.local, most, around.filters),
        [id] => id,
        // For redundant transmission.
        _ => return Err(Fault::of(Cause::ServiceNotSupported, IeType::TrafficEndpointId)),
    };
    let endpoint = endpoints.get(&id).ok_or(fault(IeType::TrafficEndpointId))?;
    if pdi.f_teid.is_some() || pdi.network_instance.is_some() || pdi.ue_ip.is_some() || !pdi.framed_routes.is_empty() {
        // What is stated twice may differ.
        return Err(Fault::of(Cause::MandatoryIeIncorrect, IeType::TrafficEndpointId));
    }
    // Whether there is a tunnel decides what the interface means.
    let f_teid = has_tunnel(endpoint).then_some(wire::FTeid::Choose { v4: true, v6: false, id: None });
    let (mut own, _) = translate::pdi(&wire::Pdi { f_teid, ..pdi.clone() }, around.local, most, around.filters)?;
    own.traffic_endpoint = Some(id);
    fill(&mut own, endpoints);
    Ok((own, None))
}

/// Gives a PDI what it has from its endpoint, if it has one.
pub(super) fn fill(pdi: &mut Pdi, endpoints: &Endpoints) {
    let Some(endpoint) = pdi.traffic_endpoint.and_then(|id| endpoints.get(&id)) else { return };
    pdi.f_teid = endpoint.f_teid;
    pdi.ue_ip = endpoint.ue_ip;
    pdi.network_instance = endpoint.network_instance.clone();
    pdi.framed_routes = endpoint.framed_routes.clone();
    if !endpoint.qfis.is_empty() {
        pdi.qfis = endpoint.qfis.clone();
    }
}
