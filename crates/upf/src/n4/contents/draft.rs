//! What a request would make of a session: what is removed, created and updated, in this order.

use std::net::IpAddr;

use pfcp::rule as wire;
use pfcp::session::{Establishment, Modification};
use pfcp::{Cause, Fault, IeType, RuleId};

use super::super::address_choice::AddressChoice;
use super::super::applications::Applications;
use super::super::endpoints::{self, Chooser};
use super::super::translate::{self, Choice, Filters, Place, refuse};
use super::super::urr::Urr;
use super::super::{Config, Limits};
use super::far::{Bar, HeldFar};
use super::{Contents, pdr};
use crate::rules::Interface;
use crate::usage::ACTIVITY;

/// What a request would make of a session, before the UPF has chosen what it is to choose.
#[derive(Debug)]
pub(in super::super) struct Draft {
    pub contents: Contents,
    /// Whose F-TEID is to be chosen, in the order of the request.
    pub choices: Vec<(Chooser, Choice)>,
    /// Whose UE address is to be chosen, in the order of the request.
    pub address_choices: Vec<AddressChoice>,
}

/// What rules are checked against.
#[derive(Clone, Copy)]
pub(in super::super) struct Surroundings<'a> {
    pub config: &'a Config,
    /// Local addresses on N3.
    pub local: &'a [IpAddr],
    /// SDF filters that others refer to by their IDs.
    pub filters: &'a Filters,
    pub applications: &'a Applications,
}

impl Surroundings<'_> {
    pub(super) fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// Whether the port on this side belongs to the network instance.
    pub(super) fn serves(&self, side: Interface, instance: &Option<String>) -> bool {
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
        if contents.is_told_to_act(request) {
            // It was said of what waited then (7.5.9.2).
            draft.contents.durations.clear();
        }
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
            let (pdr, choice) = pdr::create(create, &self.contents.endpoints, around).map_err(failed)?;
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
            if self.contents.fars.insert(create.id, HeldFar::new(create, around)?).is_some() {
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
            pdr::update(pdr, update, &self.contents.endpoints, around).map_err(failed)?;
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
            far.update(update, around)?;
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
            self.contents.durations.extend(update.buffering_duration.map(|duration| (update.id, duration)));
        }
        for id in &request.query_urrs {
            if !self.contents.has_urr(*id) {
                return Err(Fault::rule(RuleId::Urr(*id)));
            }
        }
        Ok(())
    }
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
            self.durations.remove(id);
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
}
