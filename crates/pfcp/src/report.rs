//! Reports: usage (TS 29.244, 7.5.8.3, 7.5.5.2, 7.5.7.2), and the Session Report Request that the UPF sends (7.5.8).

use rs_pfcp::ie::IeType;
use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::ie::{Elements, Ie, Ies};
use crate::node::{read_outcome, write_outcome};
use crate::rule::{FTeid, ReportingTriggers, UpdateBar, read_bits, write_bits};
use crate::session::FSeid;
use crate::volume::VolumeMeasurement;

/// Why usage is reported (8.2.41): a set of bits, the first octet in bits 0 to 7.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReportTrigger(pub u32);

#[allow(missing_docs)]
impl UsageReportTrigger {
    pub const PERIO: Self = Self(1);
    pub const VOLTH: Self = Self(1 << 1);
    pub const TIMTH: Self = Self(1 << 2);
    pub const QUHTI: Self = Self(1 << 3);
    pub const START: Self = Self(1 << 4);
    pub const STOPT: Self = Self(1 << 5);
    pub const DROTH: Self = Self(1 << 6);
    /// On the SMF's request.
    pub const IMMER: Self = Self(1 << 7);
    pub const VOLQU: Self = Self(1 << 8);
    pub const TIMQU: Self = Self(1 << 9);
    pub const LIUSA: Self = Self(1 << 10);
    /// The rule, or its session, has ended.
    pub const TERMR: Self = Self(1 << 11);
    pub const MONIT: Self = Self(1 << 12);
    pub const ENVCL: Self = Self(1 << 13);
    pub const MACAR: Self = Self(1 << 14);
    pub const EVETH: Self = Self(1 << 15);
    pub const EVEQU: Self = Self(1 << 16);
    /// The UPF ends the session.
    pub const TEBUR: Self = Self(1 << 17);
    pub const IPMJL: Self = Self(1 << 18);
    pub const QUVTI: Self = Self(1 << 19);
    pub const EMRRE: Self = Self(1 << 20);
    pub const UPINT: Self = Self(1 << 21);

    /// Both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is in it.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn read(ie: Ie) -> Result<Self, Fault> {
        read_bits(ie).map(Self)
    }
}

/// The reasons of a report that a rule must ask for by the trigger of the same name.
impl From<ReportingTriggers> for UsageReportTrigger {
    fn from(triggers: ReportingTriggers) -> Self {
        use ReportingTriggers as Asked;
        let pairs = [
            (Asked::PERIO, Self::PERIO),
            (Asked::VOLTH, Self::VOLTH),
            (Asked::TIMTH, Self::TIMTH),
            (Asked::QUHTI, Self::QUHTI),
            (Asked::START, Self::START),
            (Asked::STOPT, Self::STOPT),
            (Asked::DROTH, Self::DROTH),
            (Asked::LIUSA, Self::LIUSA),
            (Asked::VOLQU, Self::VOLQU),
            (Asked::TIMQU, Self::TIMQU),
            (Asked::ENVCL, Self::ENVCL),
            (Asked::MACAR, Self::MACAR),
            (Asked::EVETH, Self::EVETH),
            (Asked::EVEQU, Self::EVEQU),
            (Asked::IPMJL, Self::IPMJL),
            (Asked::QUVTI, Self::QUVTI),
            (Asked::REEMR, Self::EMRRE),
            (Asked::UPINT, Self::UPINT),
        ];
        let asked = pairs.into_iter().filter(|&(asked, _)| triggers.contains(asked));
        asked.fold(Self::default(), |all, (_, reason)| all.and(reason))
    }
}

/// The occasion of a usage report: of which message it is a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// Session Modification Response.
    Modification,
    /// Session Deletion Response.
    Deletion,
    /// Session Report Request.
    Report,
}

impl Occasion {
    fn kind(self) -> IeType {
        match self {
            Self::Modification => IeType::UsageReportWithinSessionModificationResponse,
            Self::Deletion => IeType::UsageReportWithinSessionDeletionResponse,
            Self::Report => IeType::UsageReportWithinSessionReportRequest,
        }
    }
}

/// Usage of one rule between two reports. Times are in seconds since 1900.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReport {
    /// URR ID.
    pub urr_id: u32,
    /// Number of the report among all of its rule.
    pub sequence: u32,
    /// Why it is sent.
    pub trigger: UsageReportTrigger,
    /// When the measurement began.
    pub start: Option<u32>,
    /// When it ended.
    pub end: Option<u32>,
    /// Volume.
    pub volume: Option<VolumeMeasurement>,
    /// Duration of use, in seconds.
    pub duration_s: Option<u32>,
    /// When the first packet came.
    pub first_packet: Option<u32>,
    /// When the last packet came.
    pub last_packet: Option<u32>,
    /// Usage information (8.2.62).
    pub information: Option<u8>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

impl UsageReport {
    /// All reports that a message on such an occasion has.
    pub(crate) fn read_all(ies: &Ies, occasion: Occasion) -> Result<Vec<Self>, Fault> {
        ies.all(occasion.kind()).map(Self::read).collect()
    }

    fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        let number = |kind| ies.first(kind).map(|ie: Ie| ie.u32()).transpose();
        Ok(Self {
            urr_id: ies.mandatory(IeType::UrrId)?.u32()?,
            sequence: ies.mandatory(IeType::UrSeqn)?.u32()?,
            trigger: UsageReportTrigger::read(ies.mandatory(IeType::UsageReportTrigger)?)?,
            start: number(IeType::StartTime)?,
            end: number(IeType::EndTime)?,
            volume: ies.first(IeType::VolumeMeasurement).map(VolumeMeasurement::read).transpose()?,
            duration_s: number(IeType::DurationMeasurement)?,
            first_packet: number(IeType::TimeOfFirstPacket)?,
            last_packet: number(IeType::TimeOfLastPacket)?,
            information: ies.first(IeType::UsageInformation).map(|ie| ie.octet()).transpose()?,
            others: ies.others(USAGE_REPORT_KNOWN),
        })
    }

    pub(crate) fn write(&self, occasion: Occasion, out: &mut Vec<u8>) {
        out.grouped(occasion.kind(), |out| {
            let number = |kind, number: Option<u32>, out: &mut Vec<u8>| {
                if let Some(number) = number {
                    out.element(kind, &number.to_be_bytes());
                }
            };
            number(IeType::UrrId, Some(self.urr_id), out);
            number(IeType::UrSeqn, Some(self.sequence), out);
            write_bits(IeType::UsageReportTrigger, self.trigger.0, out);
            number(IeType::StartTime, self.start, out);
            number(IeType::EndTime, self.end, out);
            if let Some(volume) = &self.volume {
                volume.write(out);
            }
            number(IeType::DurationMeasurement, self.duration_s, out);
            number(IeType::TimeOfFirstPacket, self.first_packet, out);
            number(IeType::TimeOfLastPacket, self.last_packet, out);
            if let Some(information) = self.information {
                out.element(IeType::UsageInformation, &[information]);
            }
        });
    }
}

const USAGE_REPORT_KNOWN: &[IeType] = &[
    IeType::UrrId,
    IeType::UrSeqn,
    IeType::UsageReportTrigger,
    IeType::StartTime,
    IeType::EndTime,
    IeType::VolumeMeasurement,
    IeType::DurationMeasurement,
    IeType::TimeOfFirstPacket,
    IeType::TimeOfLastPacket,
    IeType::UsageInformation,
];

/// Session Report Request (7.5.8).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionReport {
    /// Packets wait for a UE that has to be paged.
    pub downlink_data: Option<DownlinkDataReport>,
    /// Usage.
    pub usage: Vec<UsageReport>,
    /// Tunnels that their peers do not know: the peers' F-TEIDs (table 7.5.8.4-1).
    pub unknown_tunnels: Vec<FTeid>,
    /// No user's packet came for as long as the session manager has said (UPIR).
    pub inactive: bool,
    /// Types of other elements.
    pub others: Vec<u16>,
}

/// Downlink Data Report (table 7.5.8.2-1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DownlinkDataReport {
    /// PDRs that matched the packets.
    pub pdr_ids: Vec<u16>,
}

const DLDR: u8 = 1;
const USAR: u8 = 1 << 1;
const ERIR: u8 = 1 << 2;
const UPIR: u8 = 1 << 3;

impl SessionReport {
    pub(crate) fn read(ies: &Ies) -> Result<Self, Fault> {
        let kind = ies.mandatory(IeType::ReportType)?.octet()?;
        let data = ies.first(IeType::DownlinkDataReport).filter(|_| kind & DLDR != 0);
        let known = [
            IeType::ReportType,
            IeType::DownlinkDataReport,
            IeType::UsageReportWithinSessionReportRequest,
            IeType::ErrorIndicationReport,
        ];
        Ok(Self {
            downlink_data: data.map(DownlinkDataReport::read).transpose()?,
            usage: if kind & USAR == 0 { vec![] } else { UsageReport::read_all(ies, Occasion::Report)? },
            unknown_tunnels: match ies.first(IeType::ErrorIndicationReport).filter(|_| kind & ERIR != 0) {
                Some(report) => read_unknown_tunnels(report)?,
                None => vec![],
            },
            inactive: kind & UPIR != 0,
            others: ies.others(&known),
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let data = if self.downlink_data.is_some() { DLDR } else { 0 };
        let usage = if self.usage.is_empty() { 0 } else { USAR };
        let unknown = if self.unknown_tunnels.is_empty() { 0 } else { ERIR };
        let inactive = if self.inactive { UPIR } else { 0 };
        out.element(IeType::ReportType, &[data | usage | unknown | inactive]);
        if let Some(report) = &self.downlink_data {
            out.grouped(IeType::DownlinkDataReport, |out| {
                report.pdr_ids.iter().for_each(|id| out.element(IeType::PdrId, &id.to_be_bytes()));
            });
        }
        self.usage.iter().for_each(|report| report.write(Occasion::Report, out));
        if !self.unknown_tunnels.is_empty() {
            out.grouped(IeType::ErrorIndicationReport, |out| {
                self.unknown_tunnels.iter().for_each(|f_teid| f_teid.write(out));
            });
        }
    }
}

fn read_unknown_tunnels(ie: Ie) -> Result<Vec<FTeid>, Fault> {
    let ies = ie.group()?;
    ies.mandatory(IeType::Fteid)?;
    ies.all(IeType::Fteid).map(FTeid::read).collect()
}

impl DownlinkDataReport {
    fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        ies.mandatory(IeType::PdrId)?;
        Ok(Self { pdr_ids: ies.all(IeType::PdrId).map(|ie| ie.u16()).collect::<Result<_, _>>()? })
    }
}

/// Session Report Response (7.5.9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionReportResponse {
    /// Whether the SMF has taken it in.
    pub outcome: Result<(), Fault>,
    /// BARs to change.
    pub update_bars: Vec<UpdateBar>,
    /// Whether packets that wait are to be discarded (DROBU, 8.2.32).
    pub drop_buffered: bool,
    /// The sender's end of the session, where that changes.
    pub cp_f_seid: Option<FSeid>,
}

const DROBU: u8 = 1;

impl SessionReportResponse {
    /// A response that asks for nothing.
    pub fn new(outcome: Result<(), Fault>) -> Self {
        Self { outcome, update_bars: vec![], drop_buffered: false, cp_f_seid: None }
    }

    pub(crate) fn read(ies: &Ies) -> Result<Self, Fault> {
        let update_bars = ies.all(IeType::UpdateBarWithinSessionReportResponse).map(UpdateBar::read);
        let flags = ies.first(IeType::PfcpsrrspFlags).map(|ie| ie.octet()).transpose()?;
        Ok(Self {
            outcome: read_outcome(ies)?,
            update_bars: update_bars.collect::<Result<_, _>>()?,
            drop_buffered: flags.is_some_and(|flags| flags & DROBU != 0),
            cp_f_seid: ies.first(IeType::Fseid).map(FSeid::read).transpose()?,
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        write_outcome(&self.outcome, out);
        self.update_bars.iter().for_each(|bar| bar.write(IeType::UpdateBarWithinSessionReportResponse, out));
        if self.drop_buffered {
            out.element(IeType::PfcpsrrspFlags, &[DROBU]);
        }
        if let Some(f_seid) = &self.cp_f_seid {
            f_seid.write(out);
        }
    }
}
