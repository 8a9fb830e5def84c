//! Why a request is rejected: cause, offending element, failed rule.

use std::fmt;

use rs_pfcp::ie::IeType;
pub use rs_pfcp::ie::cause::CauseValue as Cause;
use rs_pfcp::ie::failed_rule_id::{FailedRuleId, RuleIdType};

use crate::ie::{Elements, decode};

/// A rejection, as a response carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Cause (TS 29.244, 8.2.1).
    pub cause: Cause,
    /// Type of the offending element (8.2.22).
    pub offending_ie: Option<u16>,
    /// The rule that failed (8.2.80), with cause *Rule creation/modification failure*.
    pub failed_rule: Option<RuleId>,
}

/// A rule of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleId {
    /// Packet detection rule.
    Pdr(u16),
    /// Forwarding action rule.
    Far(u32),
    /// QoS enforcement rule.
    Qer(u32),
    /// Usage reporting rule.
    Urr(u32),
}

impl Fault {
    /// A rejection for `cause` alone.
    pub const fn new(cause: Cause) -> Self {
        Self { cause, offending_ie: None, failed_rule: None }
    }

    /// A rejection for `cause`, to blame on elements of type `kind`.
    pub const fn of(cause: Cause, kind: IeType) -> Self {
        Self::of_raw(cause, kind as u16)
    }

    /// A rejection for `cause`, to blame on elements of the type `kind`, known or not.
    pub const fn of_raw(cause: Cause, kind: u16) -> Self {
        Self { cause, offending_ie: Some(kind), failed_rule: None }
    }

    /// The rule could not be created or modified.
    pub const fn rule(rule: RuleId) -> Self {
        Self { cause: Cause::RuleCreationModificationFailure, offending_ie: None, failed_rule: Some(rule) }
    }

    /// Writes the elements that tell of it, in the order of the response tables: cause, offending IE.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.element(IeType::Cause, &[self.cause as u8]);
        if let Some(kind) = self.offending_ie {
            out.element(IeType::OffendingIe, &kind.to_be_bytes());
        }
    }

    /// Writes the failed rule, if there is one.
    pub(crate) fn write_failed_rule(&self, out: &mut Vec<u8>) {
        if let Some(rule) = self.failed_rule {
            let id = match rule {
                RuleId::Pdr(id) => FailedRuleId::pdr(id),
                RuleId::Far(id) => FailedRuleId::far(id),
                RuleId::Qer(id) => FailedRuleId::qer(id),
                RuleId::Urr(id) => FailedRuleId::urr(id),
            };
            out.element(IeType::FailedRuleId, &id.marshal());
        }
    }
}

impl RuleId {
    pub(crate) fn read(ie: crate::ie::Ie) -> Result<Self, Fault> {
        let id = decode(ie, FailedRuleId::unmarshal)?;
        Ok(match id.rule_type() {
            RuleIdType::Pdr => Self::Pdr(id.rule_id() as u16),
            RuleIdType::Far => Self::Far(id.rule_id()),
            RuleIdType::Qer => Self::Qer(id.rule_id()),
            RuleIdType::Urr => Self::Urr(id.rule_id()),
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({})", self.cause, self.cause as u8)?;
        if let Some(kind) = self.offending_ie {
            write!(f, ", offending IE {:?} ({kind})", IeType::from(kind))?;
        }
        if let Some(rule) = self.failed_rule {
            write!(f, ", {rule}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pdr(id) => write!(f, "PDR {id}"),
            Self::Far(id) => write!(f, "FAR {id}"),
            Self::Qer(id) => write!(f, "QER {id}"),
            Self::Urr(id) => write!(f, "URR {id}"),
        }
    }
}
