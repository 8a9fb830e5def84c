//! Predefined rules of PDRs: which are active, and what that makes of a session.

use std::collections::BTreeMap;

use pfcp::{Cause, Fault, IeType};

use super::contents::Contents;
use crate::predefined::PredefinedRule;
use crate::rules::{Pdr, Session};

/// The rules that there are, by their names.
type Known = BTreeMap<String, PredefinedRule>;

/// Most rules that are active for a PDR.
const ACTIVE_MAX: usize = 16;

impl Contents {
    /// Activates and deactivates rules of the PDR by their names.
    pub(super) fn activate(
        &mut self,
        pdr: u16,
        activate: &[String],
        deactivate: &[String],
        known: &Known,
    ) -> Result<(), Fault> {
        let unknown = |kind| Fault::of(Cause::UnknownPredefinedRule, kind);
        let mut active = self.predefined.remove(&pdr).unwrap_or_default();
        for name in deactivate {
            let at = active.iter().position(|active| active == name);
            active.remove(at.ok_or(unknown(IeType::DeactivatePredefinedRules))?);
        }
        for name in activate {
            if !known.contains_key(name) {
                return Err(unknown(IeType::ActivatePredefinedRules));
            }
            if !active.contains(name) {
                active.push(name.clone());
            }
        }
        if active.len() > ACTIVE_MAX {
            return Err(Fault::of(Cause::NoResourcesAvailable, IeType::ActivatePredefinedRules));
        }
        if !active.is_empty() {
            self.predefined.insert(pdr, active);
        }
        Ok(())
    }

    /// Whether all rules that are active are there.
    pub(super) fn check_predefined(&self, known: &Known) -> Result<(), Fault> {
        match self.predefined.values().flatten().all(|name| known.contains_key(name)) {
            true => Ok(()),
            false => Err(Fault::of(Cause::UnknownPredefinedRule, IeType::ActivatePredefinedRules)),
        }
    }

    /// Puts what the names of predefined rules stand for in place of them: before its PDR, a PDR for each with the rule's
    /// filters and QER.
    pub(super) fn expand(&self, session: &mut Session, known: &Known) {
        if self.predefined.is_empty() {
            return;
        }
        for pdr in std::mem::take(&mut session.pdrs) {
            let names = self.predefined.get(&pdr.id).into_iter().flatten();
            let mut active: Vec<_> = names.filter_map(|name| known.get(name)).collect();
            // What any packet of the PDR matches comes after what only some do.
            active.sort_by_key(|rule| rule.filters.is_empty());
            let stands = active.is_empty() || !pdr.pdi.sdf_filters.is_empty();
            for rule in active {
                session.pdrs.push(derived(&pdr, rule));
                let qer = rule.qer.filter(|qer| session.qers.iter().all(|other| other.id != qer.id));
                // In front, as the QFI of the first QER counts.
                session.qers.splice(..0, qer);
            }
            if stands {
                session.pdrs.push(pdr);
            }
        }
    }
}

/// What the rule makes of the PDR.
fn derived(pdr: &Pdr, rule: &PredefinedRule) -> Pdr {
    let mut derived = pdr.clone();
    if !rule.filters.is_empty() {
        derived.pdi.sdf_filters = rule.filters.clone();
    }
    derived.qer_ids.extend(rule.qer.map(|qer| qer.id));
    derived
}
