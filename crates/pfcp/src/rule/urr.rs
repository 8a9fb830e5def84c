//! Usage reporting rules.

use rs_pfcp::ie::IeType;
use serde::{Deserialize, Serialize};

use super::{read_bits, write_bits, write_ids};
use crate::fault::Fault;
use crate::ie::{Elements, Ie, Ies};
use crate::volume::{DroppedThreshold, Volume};

/// What is measured (8.2.40): a set of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasurementMethod(pub u8);

#[allow(missing_docs)]
impl MeasurementMethod {
    pub const DURAT: Self = Self(1);
    pub const VOLUM: Self = Self(2);
    pub const EVENT: Self = Self(4);

    /// Whether all of `other` is measured.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What is reported (8.2.19): a set of bits, the first octet in bits 0 to 7.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportingTriggers(pub u32);

#[allow(missing_docs)]
impl ReportingTriggers {
    pub const PERIO: Self = Self(1);
    pub const VOLTH: Self = Self(1 << 1);
    pub const TIMTH: Self = Self(1 << 2);
    pub const QUHTI: Self = Self(1 << 3);
    pub const START: Self = Self(1 << 4);
    pub const STOPT: Self = Self(1 << 5);
    pub const DROTH: Self = Self(1 << 6);
    pub const LIUSA: Self = Self(1 << 7);
    pub const VOLQU: Self = Self(1 << 8);
    pub const TIMQU: Self = Self(1 << 9);
    pub const ENVCL: Self = Self(1 << 10);
    pub const MACAR: Self = Self(1 << 11);
    pub const EVETH: Self = Self(1 << 12);
    pub const EVEQU: Self = Self(1 << 13);
    pub const IPMJL: Self = Self(1 << 14);
    pub const QUVTI: Self = Self(1 << 15);
    pub const REEMR: Self = Self(1 << 16);
    pub const UPINT: Self = Self(1 << 17);

    /// Both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is reported.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn read(ie: Ie) -> Result<Self, Fault> {
        read_bits(ie).map(Self)
    }

    fn write(self, out: &mut Vec<u8>) {
        write_bits(IeType::ReportingTriggers, self.0, out);
    }
}

/// Create URR (table 7.5.2.4-1). Times are in seconds, and monitoring times in seconds since 1900.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreateUrr {
    /// URR ID.
    pub id: u32,
    /// Measurement method.
    pub method: Option<MeasurementMethod>,
    /// Reporting triggers.
    pub triggers: Option<ReportingTriggers>,
    /// Whatever else a URR may say.
    pub terms: UrrTerms,
    /// Types of other elements.
    pub others: Vec<u16>,
}

/// Update URR (table 7.5.4.4-1). What is present replaces what the rule had.
pub type UpdateUrr = CreateUrr;

/// The terms of a usage reporting rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UrrTerms {
    /// Measurement period.
    pub period_s: Option<u32>,
    /// Volume threshold, in octets.
    pub volume_threshold: Option<Volume>,
    /// Volume quota, in octets.
    pub volume_quota: Option<Volume>,
    /// Time threshold.
    pub time_threshold_s: Option<u32>,
    /// Time quota.
    pub time_quota_s: Option<u32>,
    /// Quota holding time.
    pub quota_holding_time_s: Option<u32>,
    /// Quota validity time.
    pub quota_validity_time_s: Option<u32>,
    /// Monitoring time.
    pub monitoring_time: Option<u32>,
    /// Volume threshold after the monitoring time.
    pub subsequent_volume_threshold: Option<Volume>,
    /// Time threshold after the monitoring time.
    pub subsequent_time_threshold_s: Option<u32>,
    /// Volume quota after the monitoring time.
    pub subsequent_volume_quota: Option<Volume>,
    /// Time quota after the monitoring time.
    pub subsequent_time_quota_s: Option<u32>,
    /// Inactivity detection time.
    pub inactivity_detection_time_s: Option<u32>,
    /// URRs whose reports are this one's occasion, too.
    pub linked_urr_ids: Vec<u32>,
    /// Dropped downlink traffic threshold.
    pub dropped_threshold: Option<DroppedThreshold>,
    /// Measurement information (8.2.68).
    pub measurement_information: Option<u8>,
    /// The FAR that applies when a quota is used up.
    pub quota_action_far_id: Option<u32>,
}

impl CreateUrr {
    /// Create URR, where method and triggers are mandatory.
    pub(crate) fn read_create(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        ies.mandatory(IeType::UrrId)?;
        ies.mandatory(IeType::MeasurementMethod)?;
        ies.mandatory(IeType::ReportingTriggers)?;
        Self::read(&ies)
    }

    /// Update URR.
    pub(crate) fn read_update(ie: Ie) -> Result<Self, Fault> {
        Self::read(&ie.group()?)
    }

    fn read(ies: &Ies) -> Result<Self, Fault> {
        Ok(Self {
            id: ies.mandatory(IeType::UrrId)?.u32()?,
            method: ies.first(IeType::MeasurementMethod).map(|ie| ie.octet().map(MeasurementMethod)).transpose()?,
            triggers: ies.first(IeType::ReportingTriggers).map(ReportingTriggers::read).transpose()?,
            terms: UrrTerms::read(ies)?,
            others: ies.others(URR_KNOWN),
        })
    }

    pub(crate) fn write(&self, kind: IeType, out: &mut Vec<u8>) {
        out.grouped(kind, |out| {
            write_ids(IeType::UrrId, &[self.id], out);
            if let Some(method) = self.method {
                out.element(IeType::MeasurementMethod, &[method.0]);
            }
            if let Some(triggers) = self.triggers {
                triggers.write(out);
            }
            self.terms.write(out);
        });
    }
}

impl UrrTerms {
    fn read(ies: &Ies) -> Result<Self, Fault> {
        let number = |kind| ies.first(kind).map(|ie: Ie| ie.u32()).transpose();
        let volume = |kind| ies.first(kind).map(Volume::read).transpose();
        Ok(Self {
            period_s: number(IeType::MeasurementPeriod)?,
            volume_threshold: volume(IeType::VolumeThreshold)?,
            volume_quota: volume(IeType::VolumeQuota)?,
            time_threshold_s: number(IeType::TimeThreshold)?,
            time_quota_s: number(IeType::TimeQuota)?,
            quota_holding_time_s: number(IeType::QuotaHoldingTime)?,
            quota_validity_time_s: number(IeType::QuotaValidityTime)?,
            monitoring_time: number(IeType::MonitoringTime)?,
            subsequent_volume_threshold: volume(IeType::SubsequentVolumeThreshold)?,
            subsequent_time_threshold_s: number(IeType::SubsequentTimeThreshold)?,
            subsequent_volume_quota: volume(IeType::SubsequentVolumeQuota)?,
            subsequent_time_quota_s: number(IeType::SubsequentTimeQuota)?,
            inactivity_detection_time_s: number(IeType::InactivityDetectionTime)?,
            linked_urr_ids: ies.all(IeType::LinkedUrrId).map(|ie| ie.u32()).collect::<Result<_, _>>()?,
            dropped_threshold: ies.first(IeType::DroppedDlTrafficThreshold).map(DroppedThreshold::read).transpose()?,
            measurement_information: ies.first(IeType::MeasurementInformation).map(|ie| ie.octet()).transpose()?,
            quota_action_far_id: number(IeType::FarId)?,
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        let volume = |kind, volume: &Option<Volume>, out: &mut Vec<u8>| {
            if let Some(volume) = volume {
                volume.write(kind, out);
            }
        };
        write_ids(IeType::MeasurementPeriod, self.period_s.as_slice(), out);
        volume(IeType::VolumeThreshold, &self.volume_threshold, out);
        volume(IeType::VolumeQuota, &self.volume_quota, out);
        write_ids(IeType::TimeThreshold, self.time_threshold_s.as_slice(), out);
        write_ids(IeType::TimeQuota, self.time_quota_s.as_slice(), out);
        write_ids(IeType::QuotaHoldingTime, self.quota_holding_time_s.as_slice(), out);
        write_ids(IeType::QuotaValidityTime, self.quota_validity_time_s.as_slice(), out);
        write_ids(IeType::MonitoringTime, self.monitoring_time.as_slice(), out);
        volume(IeType::SubsequentVolumeThreshold, &self.subsequent_volume_threshold, out);
        write_ids(IeType::SubsequentTimeThreshold, self.subsequent_time_threshold_s.as_slice(), out);
        volume(IeType::SubsequentVolumeQuota, &self.subsequent_volume_quota, out);
        write_ids(IeType::SubsequentTimeQuota, self.subsequent_time_quota_s.as_slice(), out);
        write_ids(IeType::InactivityDetectionTime, self.inactivity_detection_time_s.as_slice(), out);
        write_ids(IeType::LinkedUrrId, &self.linked_urr_ids, out);
        if let Some(threshold) = &self.dropped_threshold {
            threshold.write(out);
        }
        if let Some(information) = self.measurement_information {
            out.element(IeType::MeasurementInformation, &[information]);
        }
        write_ids(IeType::FarId, self.quota_action_far_id.as_slice(), out);
    }
}

const URR_KNOWN: &[IeType] = &[
    IeType::UrrId,
    IeType::MeasurementMethod,
    IeType::ReportingTriggers,
    IeType::MeasurementPeriod,
    IeType::VolumeThreshold,
    IeType::VolumeQuota,
    IeType::TimeThreshold,
    IeType::TimeQuota,
    IeType::QuotaHoldingTime,
    IeType::QuotaValidityTime,
    IeType::MonitoringTime,
    IeType::SubsequentVolumeThreshold,
    IeType::SubsequentTimeThreshold,
    IeType::SubsequentVolumeQuota,
    IeType::SubsequentTimeQuota,
    IeType::InactivityDetectionTime,
    IeType::LinkedUrrId,
    IeType::DroppedDlTrafficThreshold,
    IeType::MeasurementInformation,
    IeType::FarId,
];
