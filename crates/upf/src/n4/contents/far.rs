//! FARs as a session holds them, and the BARs by which some of them buffer.

use pfcp::rule::{self as wire, ApplyAction};
use pfcp::{Cause, Fault, IeType};
use serde::{Deserialize, Serialize};

use super::super::translate::{self, Place, refuse};
use super::draft::Surroundings;
use crate::rules::Forwarding;

/// Most places that a FAR's copies go to.
const COPIES_MAX: usize = 8;

/// A buffering action rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Bar {
    /// Units of 50 ms before packets are told of.
    pub notification_delay: u8,
    pub suggested_packets: Option<u8>,
}

/// A FAR. Its parameters are kept while it drops or buffers, for when it forwards again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HeldFar {
    pub action: ApplyAction,
    pub forwarding: Option<Forwarding>,
    /// Where copies go, while it duplicates.
    pub copies: Vec<Forwarding>,
    pub bar: Option<u8>,
}

impl HeldFar {
    pub fn new(create: &wire::CreateFar, around: Surroundings) -> Result<Self, Fault> {
        refuse(Place::Far, &create.others)?;
        let action = translate::action(create.apply_action)?;
        check_copies(create.duplicating_parameters.len(), IeType::DuplicatingParameters)?;
        let copies = create.duplicating_parameters.iter().map(|copy| translate::copy(copy, around.local));
        let copies = copies.collect::<Result<Vec<_>, _>>()?;
        let forwarding = match &create.forwarding_parameters {
            Some(parameters) => Some(translate::forwarding(parameters, around.local)?),
            None => None,
        };
        let far = Self { action, forwarding, copies, bar: create.bar_id };
        far.check(IeType::ForwardingParameters, IeType::DuplicatingParameters)?;
        Ok(far)
    }

    pub fn update(&mut self, update: &wire::UpdateFar, around: Surroundings) -> Result<(), Fault> {
        refuse(Place::Far, &update.others)?;
        check_copies(update.duplicating_parameters.len(), IeType::UpdateDuplicatingParameters)?;
        if let Some(action) = update.apply_action {
            self.action = translate::action(action)?;
        }
        self.bar = update.bar_id.or(self.bar);
        if !update.duplicating_parameters.is_empty() {
            let updates = update.duplicating_parameters.iter().enumerate();
            let copies = updates.map(|(at, copy)| translate::update_copy(self.copies.get(at), copy, around.local));
            self.copies = copies.collect::<Result<_, _>>()?;
        }
        if let Some(parameters) = &update.forwarding_parameters {
            self.forwarding = Some(translate::update_forwarding(self.forwarding.as_ref(), parameters, around.local)?);
        }
        self.check(IeType::UpdateForwardingParameters, IeType::UpdateDuplicatingParameters)
    }

    /// Whether it has what its action needs; or which element is missing.
    fn check(&self, forwarding: IeType, duplicating: IeType) -> Result<(), Fault> {
        let missing = |kind| Err(Fault::of(Cause::ConditionalIeMissing, kind));
        if self.forwards() && self.forwarding.is_none() {
            return missing(forwarding);
        }
        if self.duplicates() && self.copies.is_empty() {
            return missing(duplicating);
        }
        Ok(())
    }

    pub fn forwards(&self) -> bool {
        self.action.contains(ApplyAction::FORW)
    }

    pub fn duplicates(&self) -> bool {
        self.action.contains(ApplyAction::DUPL)
    }

    pub fn buffers(&self) -> bool {
        self.action.contains(ApplyAction::BUFF)
    }
}

impl Bar {
    pub fn update(&mut self, update: &wire::UpdateBar) -> Result<(), Fault> {
        refuse(Place::Bar, &update.others)?;
        self.notification_delay = update.notification_delay.unwrap_or(self.notification_delay);
        self.suggested_packets = update.suggested_packets.or(self.suggested_packets);
        Ok(())
    }
}

fn check_copies(copies: usize, kind: IeType) -> Result<(), Fault> {
    if copies > COPIES_MAX { Err(Fault::of(Cause::NoResourcesAvailable, kind)) } else { Ok(()) }
}
