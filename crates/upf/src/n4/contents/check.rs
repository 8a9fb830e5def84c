//! Whether the rules of a session fit each other, and what the UPF is set up for.

use pfcp::{Cause, Fault, IeType, RuleId};

use super::super::translate;
use super::super::urr::Urr;
use super::Contents;
use super::draft::Surroundings;
use super::far::HeldFar;
use crate::rules::{Forwarding, Interface, OuterHeaderCreation, Pdr};
use crate::usage::ACTIVITY;

impl Contents {
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

    /// What UEs send does not wait.
    fn check_buffering(&self, pdr: &Pdr, far: &HeldFar) -> Result<(), Fault> {
        if pdr.pdi.source_interface == Interface::Access {
            return Err(Fault::of(Cause::ServiceNotSupported, IeType::ApplyAction));
        }
        match far.bar {
            Some(id) if !self.bars.contains_key(&id) => {
                Err(Fault { offending_ie: Some(IeType::BarId as u16), ..Fault::rule(RuleId::Far(pdr.far_id)) })
            }
            _ => Ok(()),
        }
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
    match (tunnel, to) {
        (Some(_), Interface::SgiLan) => Err(Fault::of(Cause::ServiceNotSupported, IeType::OuterHeaderCreation)),
        // The RAN's end of a downlink tunnel becomes known later; until then packets have no tunnel, and are dropped.
        (None, Interface::Access) if from != Interface::Access => Ok(()),
        (None, Interface::Access | Interface::Core) => {
            Err(Fault::of(Cause::ConditionalIeMissing, IeType::OuterHeaderCreation))
        }
        _ => Ok(()),
    }
}
