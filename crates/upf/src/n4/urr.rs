//! Usage reporting rules as session managers state them (TS 29.244, 7.5.2.4, 7.5.4.4).

use pfcp::rule::{CreateUrr, MeasurementMethod, ReportingTriggers, UpdateUrr, UrrTerms};
use pfcp::{Cause, DroppedThreshold, Fault, IeType, RuleId, Volume};
use serde::{Deserialize, Serialize};

use super::translate::{Place, refuse};

/// A usage reporting rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Urr {
    pub method: MeasurementMethod,
    pub triggers: ReportingTriggers,
    pub terms: UrrTerms,
}

/// Reports that this UPF makes.
const SUPPORTED: ReportingTriggers = ReportingTriggers::PERIO
    .and(ReportingTriggers::VOLTH)
    .and(ReportingTriggers::TIMTH)
    .and(ReportingTriggers::QUHTI)
    .and(ReportingTriggers::START)
    .and(ReportingTriggers::STOPT)
    .and(ReportingTriggers::DROTH)
    .and(ReportingTriggers::LIUSA)
    .and(ReportingTriggers::VOLQU)
    .and(ReportingTriggers::TIMQU)
    .and(ReportingTriggers::QUVTI);

/// Measurement information: what QoS enforcement stops counts, too.
const MBQE: u8 = 1;
/// Measurement information: inactive measurement.
const INAM: u8 = 1 << 1;
/// Measurement information: the time counts from now on, not from the first packet.
const ISTM: u8 = 1 << 3;
/// Measurement information: packets are counted, too.
const MNOP: u8 = 1 << 4;

impl Urr {
    pub fn create(create: &CreateUrr) -> Result<Self, Fault> {
        refuse(Place::Urr, &create.others)?;
        let missing = |kind| Fault::of(Cause::MandatoryIeMissing, kind);
        let urr = Self {
            method: create.method.ok_or(missing(IeType::MeasurementMethod))?,
            triggers: create.triggers.ok_or(missing(IeType::ReportingTriggers))?,
            terms: create.terms.clone(),
        };
        urr.check()?;
        Ok(urr)
    }

    /// What `update` makes of the rule.
    pub fn updated(&self, update: &UpdateUrr) -> Result<Self, Fault> {
        refuse(Place::Urr, &update.others)?;
        let (new, old) = (&update.terms, &self.terms);
        let urr = Self {
            method: update.method.unwrap_or(self.method),
            triggers: update.triggers.unwrap_or(self.triggers),
            terms: UrrTerms {
                period_s: new.period_s.or(old.period_s),
                volume_threshold: new.volume_threshold.or(old.volume_threshold),
                volume_quota: new.volume_quota.or(old.volume_quota),
                time_threshold_s: new.time_threshold_s.or(old.time_threshold_s),
                time_quota_s: new.time_quota_s.or(old.time_quota_s),
                quota_holding_time_s: new.quota_holding_time_s.or(old.quota_holding_time_s),
                quota_validity_time_s: new.quota_validity_time_s.or(old.quota_validity_time_s),
                monitoring_time: new.monitoring_time.or(old.monitoring_time),
                subsequent_volume_threshold: new.subsequent_volume_threshold.or(old.subsequent_volume_threshold),
                subsequent_time_threshold_s: new.subsequent_time_threshold_s.or(old.subsequent_time_threshold_s),
                subsequent_volume_quota: new.subsequent_volume_quota.or(old.subsequent_volume_quota),
                subsequent_time_quota_s: new.subsequent_time_quota_s.or(old.subsequent_time_quota_s),
                inactivity_detection_time_s: new.inactivity_detection_time_s.or(old.inactivity_detection_time_s),
                dropped_threshold: new.dropped_threshold.or(old.dropped_threshold),
                linked_urr_ids: if new.linked_urr_ids.is_empty() { &old.linked_urr_ids } else { &new.linked_urr_ids }
                    .clone(),
                measurement_information: new.measurement_information.or(old.measurement_information),
                quota_action_far_id: new.quota_action_far_id.or(old.quota_action_far_id),
            },
        };
        urr.check()?;
        Ok(urr)
    }

    /// Whether it is one that is carried out in full.
    fn check(&self) -> Result<(), Fault> {
        let fault = |cause, kind| Err(Fault::of(cause, kind));
        if self.method.0 & 0b111 == 0 {
            return fault(Cause::MandatoryIeIncorrect, IeType::MeasurementMethod);
        }
        if self.method.contains(MeasurementMethod::EVENT) {
            return fault(Cause::ServiceNotSupported, IeType::MeasurementMethod);
        }
        if self.triggers.0 & !SUPPORTED.0 != 0 {
            return fault(Cause::ServiceNotSupported, IeType::ReportingTriggers);
        }
        if self.terms.measurement_information.is_some_and(|bits| bits & !(MBQE | INAM | ISTM | MNOP) != 0) {
            return fault(Cause::ServiceNotSupported, IeType::MeasurementInformation);
        }
        self.check_triggers()
    }

    /// Whether each trigger has what it needs.
    fn check_triggers(&self) -> Result<(), Fault> {
        use ReportingTriggers as Trigger;
        let terms = &self.terms;
        let needs = [
            (Trigger::PERIO, terms.period_s.map(u64::from), IeType::MeasurementPeriod),
            (Trigger::VOLTH, terms.volume_threshold.map(least), IeType::VolumeThreshold),
            (Trigger::TIMTH, terms.time_threshold_s.map(u64::from), IeType::TimeThreshold),
            (Trigger::DROTH, terms.dropped_threshold.map(least_dropped), IeType::DroppedDlTrafficThreshold),
            (Trigger::QUHTI, terms.quota_holding_time_s.map(u64::from), IeType::QuotaHoldingTime),
            (Trigger::QUVTI, terms.quota_validity_time_s.map(u64::from), IeType::QuotaValidityTime),
        ];
        let may_have = [
            (Trigger::VOLTH, terms.subsequent_volume_threshold.map(least), IeType::SubsequentVolumeThreshold),
            (Trigger::TIMTH, terms.subsequent_time_threshold_s.map(u64::from), IeType::SubsequentTimeThreshold),
            (Trigger::STOPT, terms.inactivity_detection_time_s.map(u64::from), IeType::InactivityDetectionTime),
        ];
        let is_asked = |(trigger, ..): &(Trigger, Option<u64>, IeType)| self.triggers.contains(*trigger);
        if let Some((.., kind)) = needs.into_iter().filter(is_asked).find(|(_, value, _)| value.is_none()) {
            return Err(Fault::of(Cause::ConditionalIeMissing, kind));
        }
        // It would be reached for ever.
        let is_zero = |(_, value, _): &(Trigger, Option<u64>, IeType)| *value == Some(0);
        if let Some((.., kind)) = needs.into_iter().chain(may_have).filter(is_asked).find(is_zero) {
            return Err(Fault::of(Cause::MandatoryIeIncorrect, kind));
        }
        Ok(())
    }

    /// Whether packets are counted at present.
    pub fn measures(&self) -> bool {
        self.terms.measurement_information.is_none_or(|bits| bits & INAM == 0)
    }

    /// Whether packets count that QoS enforcement stops.
    pub fn counts_before_qos(&self) -> bool {
        self.terms.measurement_information.is_some_and(|bits| bits & MBQE != 0)
    }

    /// Whether time counts without a packet.
    pub fn starts_at_once(&self) -> bool {
        self.terms.measurement_information.is_some_and(|bits| bits & ISTM != 0)
    }

    /// Whether numbers of packets are reported.
    pub fn counts_packets(&self) -> bool {
        self.terms.measurement_information.is_some_and(|bits| bits & MNOP != 0)
    }

    /// Whether the rule's reports are this one's occasion, too.
    pub fn is_linked_to(&self, id: u32) -> bool {
        self.triggers.contains(ReportingTriggers::LIUSA) && self.terms.linked_urr_ids.contains(&id)
    }

    /// A rule that names others must find them.
    pub fn check_links(&self, id: u32, is_there: impl Fn(u32) -> bool) -> Result<(), Fault> {
        if self.terms.linked_urr_ids.iter().all(|&linked| is_there(linked)) {
            return Ok(());
        }
        Err(Fault { offending_ie: Some(IeType::LinkedUrrId as u16), ..Fault::rule(RuleId::Urr(id)) })
    }
}

/// The least of its numbers.
fn least_dropped(threshold: DroppedThreshold) -> u64 {
    [threshold.packets, threshold.octets].into_iter().flatten().min().unwrap_or(0)
}

/// The least of a volume's numbers.
fn least(volume: Volume) -> u64 {
    [volume.total, volume.uplink, volume.downlink].into_iter().flatten().min().unwrap_or(0)
}
