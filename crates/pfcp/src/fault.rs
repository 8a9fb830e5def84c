//! Why a request is rejected: cause, offending element, failed rule.

use std::fmt;

use rs_pfcp::ie::IeType;
pub use rs_pfcp::ie::cause::CauseValue as Cause;

use crate::ie::Elements;

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
    /// Buffering action rule.
    Bar(u8),
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

    /// The same; where a rule could not be created or modified and none is named yet, it is this one.
    #[must_use]
    pub fn in_rule(self, rule: RuleId) -> Self {
        let failed_rule = (self.cause == Cause::RuleCreationModificationFailure).then_some(rule);
        Self { failed_rule: self.failed_rule.or(failed_rule), ..self }
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
            let (kind, id) = match rule {
                RuleId::Pdr(id) => (0, &id.to_be_bytes()[..]),
                RuleId::Far(id) => (1, &id.to_be_bytes()[..]),
                RuleId::Qer(id) => (2, &id.to_be_bytes()[..]),
                RuleId::Urr(id) => (3, &id.to_be_bytes()[..]),
                RuleId::Bar(id) => (4, &[id][..]),
            };
            out.element(IeType::FailedRuleId, &[&[kind], id].concat());
        }
    }
}

impl RuleId {
    /// Type and ID (8.2.80). The upper half of the type is spare.
    pub(crate) fn read(ie: crate::ie::Ie) -> Result<Self, Fault> {
        match *ie.value {
            [kind, a, b] if kind & 15 == 0 => Ok(Self::Pdr(u16::from_be_bytes([a, b]))),
            [kind, a, b, c, d] if (1..=3).contains(&(kind & 15)) => {
                let id = u32::from_be_bytes([a, b, c, d]);
                Ok([Self::Far, Self::Qer, Self::Urr][usize::from(kind & 15) - 1](id))
            }
            [kind, id] if kind & 15 == 4 => Ok(Self::Bar(id)),
            _ => Err(ie.fault(Cause::MandatoryIeIncorrect)),
        }
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
            Self::Bar(id) => write!(f, "BAR {id}"),
        }
    }
}
