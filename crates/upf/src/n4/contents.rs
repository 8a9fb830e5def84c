//! The rules of a session, and what a request makes of them. Nothing here has an effect on anything else.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use pfcp::rule::{self as wire, ApplyAction};
use pfcp::session::{Establishment, Modification};
use pfcp::{Cause, Fault, IeType, RuleId};
use serde::{Deserialize, Serialize};

use super::activity;
use super::address_choice::AddressChoice;
use super::addresses::UeAddress;
use super::applications::Applications;
use super::endpoints::{self, Chooser, Endpoints};
use super::particulars::Exchange;
use super::translate::{self, Choice, Filters, Place, refuse};
use super::urr::Urr;
use super::{Config, Limits};
use crate::rules::{
    self, Buffering, CpFSeid, FTeid, Far, FarAction, Forwarding, Interface, OuterHeaderCreation, Parting, Pdi, Pdr,
    Qer, Session, UeIp,
};
use crate::usage::{ACTIVITY, Usage};

/// All rules of a session, by ID.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Contents {
    pub(super) pdrs: BTreeMap<u16, Pdr>,
    fars: BTreeMap<u32, HeldFar>,
    qers: BTreeMap<u32, Qer>,
    /// With the UPF's own, [`ACTIVITY`].
    urrs: BTreeMap<u32, Urr>,
    bars: BTreeMap<u8, Bar>,
    endpoints: Endpoints,
    /// PDRs that detect an application, with its ID.
    pub(super) applications: BTreeMap<u16, String>,
    /// PDRs for which predefined rules are active, with their names.
    pub(super) predefined: BTreeMap<u16, Vec<String>>,
}

/// A buffering action rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Bar {
    /// Units of 50 ms before packets are told of.
    notification_delay: u8,
    suggested_packets: Option<u8>,
}

/// A FAR. Its parameters are kept while it drops or buffers, for when it forwards again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HeldFar {
    action: ApplyAction,
    forwarding: Option<Forwarding>,
    /// Where copies go, while it duplicates.
    copies: Vec<Forwarding>,
    bar: Option<u8>,
}

impl HeldFar {
    fn forwards(&self) -> bool {
        self.action.contains(ApplyAction::FORW)
    }

    fn duplicates(&self) -> bool {
        self.action.contains(ApplyAction::DUPL)
    }

    fn buffers(&self) -> bool {
        self.action.contains(ApplyAction::BUFF)
    }
}

/// What a request would make of a session, before the UPF has chosen what it is to choose.
#[derive(Debug)]
pub(super) struct Draft {
    pub contents: Contents,
    /// Whose F-TEID is to be chosen, in the order of the request.
    pub choices: Vec<(Chooser, Choice)>,
    /// Whose UE address is to be chosen, in the order of the request.
    pub address_choices: Vec<AddressChoice>,
}

/// What rules are checked against.
#[derive(Clone, Copy)]
pub(super) struct Surroundings<'a> {
    pub config: &'a Config,
    /// Local addresses on N3.
    pub local: &'a [IpAddr],
    /// SDF filters that others refer to by their IDs.
    pub filters: &'a Filters,
    pub applications: &'a Applications,
}

impl Surroundings<'_> {
    fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// Whether the port on this side belongs to the network instance.
    fn serves(&self, side: Interface, instance: &Option<String>) -> bool {
        let instances = match side {
            // Tunnels of N9 leave by N3's port.
            Interface::Access | Interface::Core => &self.config.access_instances,
            Interface::SgiLan => &self.config.data_instances,
        };
        instance.as_ref().is_none_or(|name| instances.is_empty() || instances.contains(name))
    }
}

impl Draft {
    /// The session that `request` asks for.
    pub fn establish(request: &Establishment, around: Surroundings) -> Result<Self, Fault> {
        refuse(Place::Message, &request.others)?;
        // Non-IP and Ethernet sessions; 1 to 3 are IPv4, IPv6 and both.
        match request.pdn_type.map(|pdn_type| pdn_type & 0b111) {
            None | Some(1..=3) => {}
            Some(4 | 5) => return Err(Fault::of(Cause::ServiceNotSupported, IeType::PdnType)),
            Some(_) => return Err(Fault::of(Cause::MandatoryIeIncorrect, IeType::PdnType)),
        }
        let mut draft = Self { contents: Contents::default(), choices: vec![], address_choices: vec![] };
        let filters = draft.contents.filters(request.create_pdrs.iter().map(|create| &create.pdi));
        let around = Surroundings { filters: &filters, ..around };
        draft.contents.create_bars(&request.create_bars)?;
        draft.create_endpoints(&request.create_endpoints, around)?;
        draft.create(&request.create_pdrs, &request.create_fars, &request.create_qers, &request.create_urrs, around)?;
        draft.contents.watch(request.inactivity_timer_s);
        draft.contents.check(around)?;
        Ok(draft)
    }

    /// What `request` makes of `contents`: first it removes, then creates, then updates.
    pub fn modify(contents: &Contents, request: &Modification, around: Surroundings) -> Result<Self, Fault> {
        refuse(Place::Message, &request.others)?;
        if request.flags & !(Modification::DROBU | Modification::SNDEM | Modification::QAURR) != 0 {
            // A pause of charging, the end of all rules of a tunnel, or multicast.
            return Err(Fault::of(Cause::ServiceNotSupported, IeType::PfcpsmReqFlags));
        }
        let mut draft = Self { contents: contents.clone(), choices: vec![], address_choices: vec![] };
        draft.contents.remove(request)?;
        let updated = request.update_pdrs.iter().filter_map(|update| update.pdi.as_ref());
        let stated = request.create_pdrs.iter().map(|create| &create.pdi).chain(updated);
        let filters = draft.contents.filters(stated);
        let around = Surroundings { filters: &filters, ..around };
        draft.contents.create_bars(&request.create_bars)?;
        draft.create_endpoints(&request.create_endpoints, around)?;
        draft.create(&request.create_pdrs, &request.create_fars, &request.create_qers, &request.create_urrs, around)?;
        for update in &request.update_endpoints {
            endpoints::update(&mut draft.contents.endpoints, update, around)?;
        }
        draft.contents.fill();
        draft.update(request, around)?;
        draft.contents.watch(request.inactivity_timer_s);
        draft.contents.check(around)?;
        Ok(draft)
    }

    fn create_endpoints(&mut self, all: &[wire::TrafficEndpoint], around: Surroundings) -> Result<(), Fault> {
        for create in all {
            let choice = endpoints::create(&mut self.contents.endpoints, create, around)?;
            self.choices.extend(choice.map(|choice| (Chooser::Endpoint(create.id), choice)));
            self.address_choices.extend(AddressChoice::of_endpoint(create));
        }
        Ok(())
    }

    fn create(
        &mut self,
        pdrs: &[wire::CreatePdr],
        fars: &[wire::CreateFar],
        qers: &[wire::CreateQer],
        urrs: &[wire::CreateUrr],
        around: Surroundings,
    ) -> Result<(), Fault> {
        for create in pdrs {
            let failed = |fault: Fault| fault.in_rule(RuleId::Pdr(create.id));
            let (pdr, choice) = new_pdr(create, &self.contents.endpoints, around).map_err(failed)?;
            if self.contents.pdrs.insert(create.id, pdr).is_some() {
                return Err(Fault::rule(RuleId::Pdr(create.id)));
            }
            self.contents.detect(create.id, create.pdi.application_id.as_ref(), around.applications)?;
            self.contents.predefined.remove(&create.id);
            self.contents.activate(create.id, &create.activate, &[], &around.config.predefined_rules)?;
            self.choices.extend(choice.map(|choice| (Chooser::Pdr(create.id), choice)));
            self.address_choices.extend(AddressChoice::of_pdr(create));
        }
        for create in fars {
            if self.contents.fars.insert(create.id, new_far(create, around)?).is_some() {
                return Err(Fault::rule(RuleId::Far(create.id)));
            }
        }
        for create in qers {
            if create.id >> 31 != 0 {
                // Those of predefined rules (8.2.75).
                return Err(Fault::of(Cause::MandatoryIeIncorrect, IeType::QerId));
            }
            if self.contents.qers.insert(create.id, translate::qer(create)?).is_some() {
                return Err(Fault::rule(RuleId::Qer(create.id)));
            }
        }
        for create in urrs {
            if create.id >> 31 != 0 {
                // Such IDs are those of rules that a UPF has of its own (8.2.54).
                return Err(Fault::of(Cause::MandatoryIeIncorrect, IeType::UrrId));
            }
            if self.contents.urrs.insert(create.id, Urr::create(create)?).is_some() {
                return Err(Fault::rule(RuleId::Urr(create.id)));
            }
        }
        Ok(())
    }

    fn update(&mut self, request: &Modification, around: Surroundings) -> Result<(), Fault> {
        for update in &request.update_pdrs {
            let pdr = self.contents.pdrs.get_mut(&update.id).ok_or(Fault::rule(RuleId::Pdr(update.id)))?;
            let failed = |fault: Fault| fault.in_rule(RuleId::Pdr(update.id));
            update_pdr(pdr, update, &self.contents.endpoints, around).map_err(failed)?;
            let (known, activate) = (&around.config.predefined_rules, &update.activate);
            self.contents.activate(update.id, activate, &update.deactivate, known)?;
            if let Some(pdi) = &update.pdi {
                self.contents.detect(update.id, pdi.application_id.as_ref(), around.applications)?;
                self.choices.retain(|(chooser, _)| *chooser != Chooser::Pdr(update.id));
                self.address_choices.retain(|choice| choice.chooser != Chooser::Pdr(update.id));
            }
        }
        for update in &request.update_fars {
            let far = self.contents.fars.get_mut(&update.id).ok_or(Fault::rule(RuleId::Far(update.id)))?;
            update_far(far, update, around)?;
        }
        for update in &request.update_qers {
            let qer = self.contents.qers.get_mut(&update.id).ok_or(Fault::rule(RuleId::Qer(update.id)))?;
            *qer = translate::update_qer(qer, update)?;
        }
        for update in &request.update_urrs {
            let urr = self.contents.urrs.get_mut(&update.id).filter(|_| update.id != ACTIVITY);
            let urr = urr.ok_or(Fault::rule(RuleId::Urr(update.id)))?;
            *urr = urr.updated(update)?;
        }
        for update in &request.update_bars {
            let bar = self.contents.bars.get_mut(&update.id).ok_or(Fault::rule(RuleId::Bar(update.id)))?;
            bar.update(update)?;
        }
        for id in &request.query_urrs {
            if !self.contents.has_urr(*id) {
                return Err(Fault::rule(RuleId::Urr(*id)));
            }
        }
        Ok(())
    }
}

fn new_pdr(
    create: &wire::CreatePdr,
    endpoints: &Endpoints,
    around: Surroundings,
) -> Result<(Pdr, Option<Choice>), Fault> {
    refuse(Place::Pdr, &create.others)?;
    let (pdi, choice) = endpoints::pdi(&create.pdi, endpoints, around)?;
    let removal = create.outer_header_removal;
    let pdr = Pdr {
        id: create.id,
        precedence: create.precedence,
        outer_header_removal: match removal {
            Some(removal) => Some(translate::outer_header_removal(removal, pdi.source_interface)?),
            None => None,
        },
        pdi,
        far_id: create.far_id.ok_or(Fault::of(Cause::ConditionalIeMissing, IeType::FarId))?,
        qer_ids: distinct(&create.qer_ids, IeType::QerId, around)?,
        urr_ids: distinct(&create.urr_ids, IeType::UrrId, around)?,
    };
    Ok((pdr, choice))
}

fn update_pdr(
    pdr: &mut Pdr,
    update: &wire::UpdatePdr,
    endpoints: &Endpoints,
    around: Surroundings,
) -> Result<(), Fault> {
    refuse(Place::Pdr, &update.others)?;
    if let Some(wire_pdi) = &update.pdi {
        let (pdi, choice) = endpoints::pdi(wire_pdi, endpoints, around)?;
        if wire_pdi.ue_ip.is_some_and(|ue_ip| ue_ip.is_choice()) {
            // So are addresses, and there is no element to tell of another one.
            return Err(Fault::of(Cause::ServiceNotSupported, IeType::UeIpAddress));
        }
        if choice.is_some() {
            // F-TEIDs are chosen when a PDR is created.
            return Err(Fault::of(Cause::InvalidFteidAllocationOption, IeType::Fteid));
        }
        if pdi.source_interface != pdr.pdi.source_interface && update.outer_header_removal.is_none() {
            // What was to be removed on the other side makes no sense on this one.
            pdr.outer_header_removal = None;
        }
        pdr.pdi = pdi;
    }
    if let Some(removal) = update.outer_header_removal {
        pdr.outer_header_removal = Some(translate::outer_header_removal(removal, pdr.pdi.source_interface)?);
    }
    pdr.precedence = update.precedence.unwrap_or(pdr.precedence);
    pdr.far_id = update.far_id.unwrap_or(pdr.far_id);
    if !update.qer_ids.is_empty() {
        pdr.qer_ids = distinct(&update.qer_ids, IeType::QerId, around)?;
    }
    if !update.urr_ids.is_empty() {
        pdr.urr_ids = distinct(&update.urr_ids, IeType::UrrId, around)?;
    }
    Ok(())
}

/// IDs of rules that a PDR names, each once.
fn distinct(ids: &[u32], kind: IeType, around: Surroundings) -> Result<Vec<u32>, Fault> {
    if ids.len() > around.limits().per_pdr {
        return Err(Fault::of(Cause::NoResourcesAvailable, kind));
    }
    let mut distinct = Vec::with_capacity(ids.len());
    ids.iter().for_each(|id| {
        if !distinct.contains(id) {
            distinct.push(*id);
        }
    });
    Ok(distinct)
}

fn new_far(create: &wire::CreateFar, around: Surroundings) -> Result<HeldFar, Fault> {
    refuse(Place::Far, &create.others)?;
    let action = translate::action(create.apply_action)?;
    check_copies(create.duplicating_parameters.len(), IeType::DuplicatingParameters)?;
    let copies = create.duplicating_parameters.iter().map(|copy| translate::copy(copy, around.local));
    let copies = copies.collect::<Result<Vec<_>, _>>()?;
    let forwarding = match &create.forwarding_parameters {
        Some(parameters) => Some(translate::forwarding(parameters, around.local)?),
        None => None,
    };
    let far = HeldFar { action, forwarding, copies, bar: create.bar_id };
    if far.forwards() && far.forwarding.is_none() {
        return Err(Fault::of(Cause::ConditionalIeMissing, IeType::ForwardingParameters));
    }
    if far.duplicates() && far.copies.is_empty() {
        return Err(Fault::of(Cause::ConditionalIeMissing, IeType::DuplicatingParameters));
    }
    Ok(far)
}

fn update_far(far: &mut HeldFar, update: &wire::UpdateFar, around: Surroundings) -> Result<(), Fault> {
    refuse(Place::Far, &update.others)?;
    check_copies(update.duplicating_parameters.len(), IeType::UpdateDuplicatingParameters)?;
    if let Some(action) = update.apply_action {
        far.action = translate::action(action)?;
    }
    far.bar = update.bar_id.or(far.bar);
    if !update.duplicating_parameters.is_empty() {
        let updates = update.duplicating_parameters.iter().enumerate();
        let copies = updates.map(|(at, copy)| translate::update_copy(far.copies.get(at), copy, around.local));
        far.copies = copies.collect::<Result<_, _>>()?;
    }
    if let Some(parameters) = &update.forwarding_parameters {
        far.forwarding = Some(translate::update_forwarding(far.forwarding.as_ref(), parameters, around.local)?);
    }
    if far.forwards() && far.forwarding.is_none() {
        return Err(Fault::of(Cause::ConditionalIeMissing, IeType::UpdateForwardingParameters));
    }
    if far.duplicates() && far.copies.is_empty() {
        return Err(Fault::of(Cause::ConditionalIeMissing, IeType::UpdateDuplicatingParameters));
    }
    Ok(())
}

/// Most places that a FAR's copies go to.
const COPIES_MAX: usize = 8;

fn check_copies(copies: usize, kind: IeType) -> Result<(), Fault> {
    if copies > COPIES_MAX { Err(Fault::of(Cause::NoResourcesAvailable, kind)) } else { Ok(()) }
}

impl Contents {
    fn remove(&mut self, request: &Modification) -> Result<(), Fault> {
        for id in &request.remove_pdrs {
            self.pdrs.remove(id).ok_or(Fault::rule(RuleId::Pdr(*id)))?;
            self.applications.remove(id);
            self.predefined.remove(id);
        }
        for id in &request.remove_fars {
            self.fars.remove(id).ok_or(Fault::rule(RuleId::Far(*id)))?;
        }
        for id in &request.remove_qers {
            self.qers.remove(id).ok_or(Fault::rule(RuleId::Qer(*id)))?;
        }
        for id in &request.remove_urrs {
            self.urrs.remove(id).filter(|_| *id != ACTIVITY).ok_or(Fault::rule(RuleId::Urr(*id)))?;
        }
        for id in &request.remove_bars {
            self.bars.remove(id).ok_or(Fault::rule(RuleId::Bar(*id)))?;
        }
        for id in &request.remove_endpoints {
            self.endpoints.remove(id).ok_or(endpoints::fault(IeType::RemoveTrafficEndpoint))?;
            // With it go all PDRs that name it (table 7.5.4.1-1).
            self.pdrs.retain(|_, pdr| pdr.pdi.traffic_endpoint != Some(*id));
            self.predefined.retain(|pdr, _| self.pdrs.contains_key(pdr));
            self.applications.retain(|pdr, _| self.pdrs.contains_key(pdr));
        }
        Ok(())
    }

    /// Whether the rules fit each other, and are not too many.
    pub fn check(&self, around: Surroundings) -> Result<(), Fault> {
        let limits = around.limits();
        let too_many = |kind| Err(Fault::of(Cause::NoResourcesAvailable, kind));
        if self.pdrs.len() > limits.pdrs {
            return too_many(IeType::CreatePdr);
        }
        if self.endpoints.len() > limits.pdrs {
            return too_many(IeType::CreateTrafficEndpoint);
        }
        if self.fars.len() > limits.fars {
            return too_many(IeType::CreateFar);
        }
        if self.qers.len() > limits.qers {
            return too_many(IeType::CreateQer);
        }
        if self.urrs.range(..ACTIVITY).count() > limits.urrs {
            return too_many(IeType::CreateUrr);
        }
        for (&id, urr) in &self.urrs {
            if urr.terms.linked_urr_ids.len() > limits.urrs {
                return too_many(IeType::LinkedUrrId);
            }
            urr.check_links(id, |linked| self.has_urr(linked))?;
            self.check_quota_far(id, urr)?;
        }
        translate::check_correlated(self.qers.values())?;
        self.check_predefined(&around.config.predefined_rules)?;
        self.pdrs.values().try_for_each(|pdr| self.check_pdr(pdr, around))?;
        self.check_reachable()
    }

    /// Whether a packet that `pdr` matches can be treated as its rules say.
    fn check_pdr(&self, pdr: &Pdr, around: Surroundings) -> Result<(), Fault> {
        let failed = Fault::rule(RuleId::Pdr(pdr.id));
        let blamed = |kind: IeType| Fault { offending_ie: Some(kind as u16), ..failed };
        if pdr.qer_ids.iter().any(|id| !self.qers.contains_key(id)) {
            return Err(blamed(IeType::QerId));
        }
        if pdr.urr_ids.iter().any(|&id| !self.has_urr(id)) {
            return Err(blamed(IeType::UrrId));
        }
        if !around.serves(pdr.pdi.source_interface, &pdr.pdi.network_instance) {
            return Err(blamed(IeType::NetworkInstance));
        }
        let far = self.fars.get(&pdr.far_id).ok_or(blamed(IeType::FarId))?;
        let quota_fars = pdr.urr_ids.iter().filter_map(|id| self.urrs.get(id)?.terms.quota_action_far_id);
        quota_fars
            .filter_map(|id| Some((id, self.fars.get(&id)?)))
            .try_for_each(|(id, far)| check_forwarding(pdr, id, far, around))?;
        if far.buffers() {
            return self.check_buffering(pdr, far);
        }
        check_forwarding(pdr, pdr.far_id, far, around)
    }

    /// The FAR for a used quota has to be there, and to send or discard.
    fn check_quota_far(&self, id: u32, urr: &Urr) -> Result<(), Fault> {
        let Some(far_id) = urr.terms.quota_action_far_id else { return Ok(()) };
        match self.fars.get(&far_id) {
            None => Err(Fault { offending_ie: Some(IeType::FarId as u16), ..Fault::rule(RuleId::Urr(id)) }),
            Some(far) if far.buffers() => Err(Fault::of(Cause::ServiceNotSupported, IeType::ApplyAction)),
            Some(_) => Ok(()),
        }
    }

    /// Only what comes from N6 waits.
    fn check_buffering(&self, pdr: &Pdr, far: &HeldFar) -> Result<(), Fault> {
        if pdr.pdi.source_interface != Interface::SgiLan {
            return Err(Fault::of(Cause::ServiceNotSupported, IeType::ApplyAction));
        }
        match far.bar {
            Some(id) if !self.bars.contains_key(&id) => {
                Err(Fault { offending_ie: Some(IeType::BarId as u16), ..Fault::rule(RuleId::Far(pdr.far_id)) })
            }
            _ => Ok(()),
        }
    }

    fn create_bars(&mut self, bars: &[wire::CreateBar]) -> Result<(), Fault> {
        for create in bars {
            let mut bar = Bar::default();
            bar.update(create)?;
            if self.bars.insert(create.id, bar).is_some() {
                return Err(Fault::rule(RuleId::Bar(create.id)));
            }
        }
        Ok(())
    }

    /// How long N4 waits before it tells of packets that wait by this PDR; none if it does not tell.
    pub fn notification_delay(&self, pdr: u16) -> Option<Duration> {
        let far = self.fars.get(&self.pdrs.get(&pdr)?.far_id)?;
        let tells = far.buffers() && far.action.contains(ApplyAction::NOCP);
        let units = self.bar(far).notification_delay;
        tells.then(|| Duration::from_millis(50) * u32::from(units))
    }

    fn bar(&self, far: &HeldFar) -> Bar {
        far.bar.and_then(|id| self.bars.get(&id)).copied().unwrap_or_default()
    }

    /// Tunnels to peers, by address and TEID, whether or not packets go into them at present.
    pub fn tunnels(&self) -> BTreeSet<(IpAddr, u32)> {
        let all = self.fars.values().flat_map(|far| far.forwarding.iter().chain(&far.copies));
        let tunnels = all.filter_map(|forwarding| forwarding.outer_header_creation);
        tunnels.map(|tunnel| (tunnel.address, tunnel.teid)).collect()
    }

    /// Tunnels that `after` leaves, of the FARs that `request` wants end markers for.
    pub fn left_tunnels(&self, after: &Self, request: &Modification) -> Vec<Forwarding> {
        let way = |id: u32| self.fars.get(&id).filter(|far| far.forwards()).and_then(|far| far.forwarding.clone());
        let tunnel = |contents: &Self, id: u32| {
            let far = contents.fars.get(&id).filter(|far| far.forwards());
            far.and_then(|far| far.forwarding.as_ref()?.outer_header_creation)
        };
        let marked = request.update_fars.iter().filter(|update| {
            update.forwarding_parameters.as_ref().is_some_and(|parameters| parameters.send_end_marker)
        });
        marked
            .filter(|update| tunnel(self, update.id).is_some_and(|left| tunnel(after, update.id) != Some(left)))
            .filter_map(|update| way(update.id))
            .collect()
    }

    /// Packets from N6 find their session by the UE's address, or by a network behind it.
    fn check_reachable(&self) -> Result<(), Fault> {
        let mut downlink = self.pdrs.values().filter(|pdr| pdr.pdi.source_interface == Interface::SgiLan).peekable();
        if downlink.peek().is_some() && downlink.all(|pdr| pdr.pdi.ue_ip.is_none() && pdr.pdi.framed_routes.is_empty())
        {
            return Err(Fault::of(Cause::ConditionalIeMissing, IeType::UeIpAddress));
        }
        Ok(())
    }

    /// Gives all PDRs what they have from their traffic endpoints.
    fn fill(&mut self) {
        self.pdrs.values_mut().for_each(|pdr| endpoints::fill(&mut pdr.pdi, &self.endpoints));
    }

    /// SDF filters that have IDs: those in force, and those that `stated` adds. What is wrong with one is told by whoever
    /// states it.
    fn filters<'p>(&self, stated: impl Iterator<Item = &'p wire::Pdi>) -> Filters {
        let held = self.pdrs.values().flat_map(|pdr| &pdr.pdi.sdf_filters).cloned();
        let new = stated.flat_map(|pdi| &pdi.sdf_filters);
        let new = new.filter_map(|filter| translate::sdf_filter(filter, &Filters::new()).ok());
        held.chain(new).filter_map(|filter| Some((filter.id?, filter))).collect()
    }

    /// The PDI that tells where packets come from for which something is chosen: a traffic endpoint leaves that to its PDRs.
    pub fn place(&self, chooser: Chooser) -> Option<&Pdi> {
        match chooser {
            Chooser::Pdr(id) => self.pdrs.get(&id).map(|pdr| &pdr.pdi),
            Chooser::Endpoint(id) => {
                let mut pdis = self.pdrs.values().map(|pdr| &pdr.pdi);
                pdis.find(|pdi| pdi.traffic_endpoint == Some(id)).or(self.endpoints.get(&id))
            }
        }
    }

    fn pdi_of(&mut self, chooser: Chooser) -> Option<&mut Pdi> {
        match chooser {
            Chooser::Pdr(id) => self.pdrs.get_mut(&id).map(|pdr| &mut pdr.pdi),
            Chooser::Endpoint(id) => self.endpoints.get_mut(&id),
        }
    }

    /// Sets what was chosen.
    pub fn set_f_teid(&mut self, chooser: Chooser, f_teid: FTeid) {
        if let Some(pdi) = self.pdi_of(chooser) {
            pdi.f_teid = Some(f_teid);
            self.fill();
        }
    }

    /// Sets an address that was chosen, beside those that are there.
    pub fn set_ue_address(&mut self, chooser: Chooser, address: UeAddress) {
        if let Some(ue_ip) = self.pdi_of(chooser).and_then(|pdi| pdi.ue_ip.as_mut()) {
            match address {
                UeAddress::V4(v4) => ue_ip.v4 = Some(v4),
                UeAddress::V6(net, length) => ue_ip.v6 = Some((net, length)),
            }
            self.fill();
        }
    }

    /// The PDIs of PDRs and of traffic endpoints.
    fn pdis(&self) -> impl Iterator<Item = &Pdi> {
        self.pdrs.values().map(|pdr| &pdr.pdi).chain(self.endpoints.values())
    }

    /// Whether a network with this address is behind the UE.
    pub fn has_framed_route(&self, network: IpAddr) -> bool {
        self.find_pdr(|pdi| pdi.framed_routes.iter().any(|&(net, _)| net == network)).is_some()
    }

    /// All UE addresses that the rules name.
    pub fn ue_addresses(&self) -> BTreeSet<UeAddress> {
        self.pdis().filter_map(|pdi| pdi.ue_ip).flat_map(|ue_ip| UeAddress::of(&ue_ip)).collect()
    }

    /// The address that decides about the session's home: the UE's as downlink rules state it, or else uplink rules.
    pub fn ue_ip(&self) -> Option<UeIp> {
        let of = |interface| {
            self.pdrs.values().filter(move |pdr| pdr.pdi.source_interface == interface).find_map(|pdr| pdr.pdi.ue_ip)
        };
        of(Interface::SgiLan).or_else(|| of(Interface::Access)).or_else(|| of(Interface::Core))
    }

    /// What sessions with otherwise the same rules do not have in common.
    pub fn exchange(&mut self, with: &mut Exchange) {
        self.pdrs.values_mut().for_each(|pdr| with.pdi(&mut pdr.pdi));
        for far in self.fars.values_mut() {
            far.forwarding.iter_mut().chain(&mut far.copies).for_each(|forwarding| with.forwarding(forwarding));
        }
        for urr in self.urrs.values_mut() {
            urr.terms.monitoring_time.iter_mut().for_each(|at| with.word(at));
        }
        self.endpoints.values_mut().for_each(|pdi| with.pdi(pdi));
    }

    /// Whether any PDR or traffic endpoint has this TEID.
    pub fn uses_teid(&self, teid: u32) -> bool {
        self.pdis().any(|pdi| pdi.f_teid.is_some_and(|f_teid| f_teid.teid == teid))
    }

    /// The first PDR that `is_meant` says is meant.
    pub fn find_pdr(&self, is_meant: impl Fn(&Pdi) -> bool) -> Option<u16> {
        self.pdrs.values().find(|pdr| is_meant(&pdr.pdi)).map(|pdr| pdr.id)
    }

    /// Whether the session manager has made such a usage reporting rule.
    fn has_urr(&self, id: u32) -> bool {
        id != ACTIVITY && self.urrs.contains_key(&id)
    }

    /// Watches whether packets come, from now on, if that is asked for.
    fn watch(&mut self, timer_s: Option<u32>) {
        match timer_s {
            None => {}
            Some(0) => drop(self.urrs.remove(&ACTIVITY)),
            Some(timer_s) => drop(self.urrs.insert(ACTIVITY, activity::rule(timer_s))),
        }
    }

    /// The usage reporting rules, by ID, with the UPF's own.
    pub fn urrs(&self) -> &BTreeMap<u32, Urr> {
        &self.urrs
    }

    /// The session in the form that the tables take. `usage` has the counters of the URRs. `config` says how many packets
    /// wait where no BAR suggests a number, and what predefined rules are.
    pub fn session(&self, up_seid: u64, cp_f_seid: CpFSeid, config: &Config, usage: impl Fn(u32) -> Usage) -> Session {
        let max_packets = config.max_buffered_packets;
        let mut pdrs: Vec<_> = self.pdrs.values().cloned().collect();
        pdrs.sort_by_key(|pdr| pdr.precedence);
        let action = |far: &HeldFar| match &far.forwarding {
            Some(forwarding) if far.forwards() => FarAction::Forward(forwarding.clone()),
            _ if far.buffers() => FarAction::Buffer(Buffering {
                notify: far.action.contains(ApplyAction::NOCP),
                max_packets: self.bar(far).suggested_packets.map_or(max_packets, u16::from),
            }),
            _ => FarAction::Drop,
        };
        let copies = |far: &HeldFar| if far.duplicates() { far.copies.clone() } else { vec![] };
        let fars = self.fars.iter().map(|(&id, far)| Far { id, action: action(far), copies: copies(far) }).collect();
        let urr = |(&id, urr): (&u32, &Urr)| {
            let quota_far_id = urr.terms.quota_action_far_id;
            rules::Urr { id, measures: urr.measures(), usage: usage(id), quota_far_id }
        };
        let qers = self.qers.values().copied().collect();
        let activity = self.urrs.contains_key(&ACTIVITY).then(|| usage(ACTIVITY));
        let urrs = self.urrs.range(..ACTIVITY).map(urr).collect();
        let mut session = Session { up_seid, cp_f_seid, pdrs, fars, qers, urrs, activity, parting: Parting::default() };
        self.expand(&mut session, &config.predefined_rules);
        session
    }
}

impl Bar {
    fn update(&mut self, update: &wire::UpdateBar) -> Result<(), Fault> {
        refuse(Place::Bar, &update.others)?;
        self.notification_delay = update.notification_delay.unwrap_or(self.notification_delay);
        self.suggested_packets = update.suggested_packets.or(self.suggested_packets);
        Ok(())
    }
}

/// Whether the FAR with this ID can be applied to packets of the PDR.
fn check_forwarding(pdr: &Pdr, id: u32, far: &HeldFar, around: Surroundings) -> Result<(), Fault> {
    let Some(forwarding) = far.forwarding.as_ref().filter(|_| far.forwards()) else { return Ok(()) };
    if !around.serves(forwarding.destination_interface, &forwarding.network_instance) {
        return Err(Fault { offending_ie: Some(IeType::NetworkInstance as u16), ..Fault::rule(RuleId::Far(id)) });
    }
    check_path(pdr, forwarding)
}

/// Out of a tunnel or from N6, into a tunnel or to N6, but not from N6 back to it.
fn check_path(pdr: &Pdr, forwarding: &Forwarding) -> Result<(), Fault> {
    let tunnel: Option<OuterHeaderCreation> = forwarding.outer_header_creation;
    let (from, to) = (pdr.pdi.source_interface, forwarding.destination_interface);
    if from == Interface::SgiLan && to == Interface::SgiLan {
        return Err(Fault::of(Cause::ServiceNotSupported, IeType::DestinationInterface));
    }
    if from != Interface::SgiLan && pdr.outer_header_removal.is_none() {
        return Err(Fault::of(Cause::ConditionalIeMissing, IeType::OuterHeaderRemoval));
    }
    match tunnel {
        Some(_) if to == Interface::SgiLan => Err(Fault::of(Cause::ServiceNotSupported, IeType::OuterHeaderCreation)),
        None if to != Interface::SgiLan => Err(Fault::of(Cause::ConditionalIeMissing, IeType::OuterHeaderCreation)),
        _ => Ok(()),
    }
}
