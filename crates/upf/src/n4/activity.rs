//! User plane inactivity (TS 29.244, 5.11): a session manager is told when no user's packet has come for a session for so
//! long. Once; and again after there were packets.
//!
//! It is watched by a usage reporting rule of the UPF's own, for start and stop of traffic, of which nobody else hears.

use pfcp::rule::{MeasurementMethod, ReportingTriggers, UrrTerms};

use super::urr::Urr;

/// The rule that watches for pauses of `timer_s`.
pub(super) fn rule(timer_s: u32) -> Urr {
    Urr {
        method: MeasurementMethod::DURAT,
        triggers: ReportingTriggers::START.and(ReportingTriggers::STOPT),
        terms: UrrTerms { inactivity_detection_time_s: Some(timer_s), ..UrrTerms::default() },
    }
}
