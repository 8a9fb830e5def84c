//! Association set-up, update and release (TS 29.244, 7.4.4), from either side.

use std::net::IpAddr;
use std::time::Duration;

use rs_pfcp::ie::IeType;

use super::{NodeId, RecoveryTimeStamp, address, labels, read_outcome, write_labels, write_outcome};
use crate::fault::{Cause, Fault};
use crate::ie::{Elements, Ie, Ies};

/// Association Setup Request (7.4.4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssociationSetup {
    /// The sender.
    pub node_id: NodeId,
    /// Its start.
    pub recovery: RecoveryTimeStamp,
    /// What the sender can do, if it is a UPF: octets of the UP Function Features (8.2.25).
    pub up_features: Option<Vec<u8>>,
    /// What the sender is, if it is an SMF.
    pub manager: Manager,
    /// Sessions of a former association that the sender still has, if it asks to keep any (table 7.4.4.1-3): those whose
    /// CP F-SEID has one of these addresses; all, where there are none.
    pub retain: Option<Vec<IpAddr>>,
}

/// What an SMF tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manager {
    /// What it can do: octets of the CP Function Features (8.2.58).
    pub cp_features: Option<Vec<u8>>,
    /// The set that it is one of (8.2.131).
    pub set_id: Option<String>,
    /// Other addresses at which its sessions may be reported (8.2.129), preferred ones first.
    pub alternatives: Vec<IpAddr>,
}

/// Association Setup Response (7.4.4.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssociationSetupResponse {
    /// The sender.
    pub node_id: NodeId,
    /// Whether there is an association now.
    pub outcome: Result<(), Fault>,
    /// The sender's start.
    pub recovery: RecoveryTimeStamp,
    /// What the sender can do, if it is a UPF: octets of the UP Function Features (8.2.25).
    pub up_features: Option<Vec<u8>>,
    /// What the sender is, if it is an SMF.
    pub manager: Manager,
    /// Whether sessions were kept as asked (PSREI, 8.2.144).
    pub retained: bool,
}

/// Association Update Request (7.4.4.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssociationUpdate {
    /// The sender.
    pub node_id: NodeId,
    /// What the sender can do now, if it is a UPF.
    pub up_features: Option<Vec<u8>>,
    /// What the sender is now, if it is an SMF.
    pub manager: Manager,
    /// A UPF asks for the release of the association (SARR, 8.2.77).
    pub release: bool,
    /// How long it goes on working until then (8.2.78).
    pub graceful_release: Option<Duration>,
    /// The association is going to be released, and all usage is to be reported before (PARPS, 8.2.120).
    pub prepares_release: bool,
}

/// Association Release Request (7.4.4.5), which only an SMF sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssociationRelease {
    /// The sender.
    pub node_id: NodeId,
}

const PSREI: u8 = 1;
const SARR: u8 = 1;
const PARPS: u8 = 1;
/// Alternative SMF IP address: it is preferred.
const PPE: u8 = 1 << 2;

impl AssociationSetup {
    /// As a node asks that tells no more of itself than it must.
    pub fn new(node_id: NodeId, recovery: RecoveryTimeStamp) -> Self {
        Self { node_id, recovery, up_features: None, manager: Manager::default(), retain: None }
    }

    pub(crate) fn read(ies: &Ies) -> Result<Self, Fault> {
        Ok(Self {
            node_id: NodeId::read(ies.mandatory(IeType::NodeId)?)?,
            recovery: RecoveryTimeStamp::read(ies.mandatory(IeType::RecoveryTimeStamp)?)?,
            up_features: octets(ies, IeType::UpFunctionFeatures),
            manager: Manager::read(ies)?,
            retain: ies.first(IeType::PfcpSessionRetentionInformation).map(read_retention).transpose()?,
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        self.node_id.write(out);
        self.recovery.write(out);
        write_octets(IeType::UpFunctionFeatures, &self.up_features, out);
        self.manager.write(out);
        if let Some(addresses) = &self.retain {
            out.grouped(IeType::PfcpSessionRetentionInformation, |out| {
                address::write_all(IeType::CpPfcpEntityIpAddress, addresses, out);
            });
        }
    }
}

fn read_retention(ie: Ie) -> Result<Vec<IpAddr>, Fault> {
    address::read_all(&ie.group()?, IeType::CpPfcpEntityIpAddress)
}

fn octets(ies: &Ies, kind: IeType) -> Option<Vec<u8>> {
    ies.first(kind).map(|ie| ie.value.to_vec())
}

fn write_octets(kind: IeType, octets: &Option<Vec<u8>>, out: &mut Vec<u8>) {
    if let Some(octets) = octets {
        out.element(kind, octets);
    }
}

fn flag(ies: &Ies, kind: IeType, flag: u8) -> Result<bool, Fault> {
    Ok(ies.first(kind).map(|ie| ie.octet()).transpose()?.is_some_and(|octet| octet & flag != 0))
}

impl Manager {
    fn read(ies: &Ies) -> Result<Self, Fault> {
        let set_id = |ie: Ie| {
            let (_spare, name) = ie.value.split_first().ok_or(ie.fault(Cause::InvalidLength))?;
            labels(name).map(|name| name.to_ascii_lowercase()).ok_or(ie.fault(Cause::MandatoryIeIncorrect))
        };
        let (mut preferred, mut others) = (vec![], vec![]);
        for ie in ies.all(IeType::AlternativeSmfIpAddress) {
            let list = if ie.octet()? & PPE != 0 { &mut preferred } else { &mut others };
            list.extend(address::split(ie)?.0);
        }
        preferred.extend(others);
        Ok(Self {
            cp_features: octets(ies, IeType::CpFunctionFeatures),
            set_id: ies.first(IeType::SmfSetId).map(set_id).transpose()?,
            alternatives: preferred,
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_octets(IeType::CpFunctionFeatures, &self.cp_features, out);
        address::write_all(IeType::AlternativeSmfIpAddress, &self.alternatives, out);
        if let Some(name) = &self.set_id {
            let mut value = vec![0];
            write_labels(name, &mut value);
            out.element(IeType::SmfSetId, &value);
        }
    }
}

impl AssociationSetupResponse {
    /// As a node answers that tells no more of itself than it must.
    pub fn new(node_id: NodeId, outcome: Result<(), Fault>, recovery: RecoveryTimeStamp) -> Self {
        Self { node_id, outcome, recovery, up_features: None, manager: Manager::default(), retained: false }
    }

    pub(crate) fn read(ies: &Ies) -> Result<Self, Fault> {
        Ok(Self {
            node_id: NodeId::read(ies.mandatory(IeType::NodeId)?)?,
            outcome: read_outcome(ies)?,
            recovery: RecoveryTimeStamp::read(ies.mandatory(IeType::RecoveryTimeStamp)?)?,
            up_features: octets(ies, IeType::UpFunctionFeatures),
            manager: Manager::read(ies)?,
            retained: flag(ies, IeType::PfcpasRspFlags, PSREI)?,
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        self.node_id.write(out);
        write_outcome(&self.outcome, out);
        self.recovery.write(out);
        write_octets(IeType::UpFunctionFeatures, &self.up_features, out);
        self.manager.write(out);
        if self.retained {
            out.element(IeType::PfcpasRspFlags, &[PSREI]);
        }
    }
}

impl AssociationUpdate {
    /// Tells nothing yet.
    pub fn new(node_id: NodeId) -> Self {
        let manager = Manager::default();
        let (release, graceful_release, prepares_release) = (false, None, false);
        Self { node_id, up_features: None, manager, release, graceful_release, prepares_release }
    }

    pub(crate) fn read(ies: &Ies) -> Result<Self, Fault> {
        Ok(Self {
            node_id: NodeId::read(ies.mandatory(IeType::NodeId)?)?,
            up_features: octets(ies, IeType::UpFunctionFeatures),
            manager: Manager::read(ies)?,
            release: flag(ies, IeType::PfcpAssociationReleaseRequest, SARR)?,
            graceful_release: match ies.first(IeType::GracefulReleasePeriod) {
                Some(ie) => read_timer(ie.octet()?),
                None => None,
            },
            prepares_release: flag(ies, IeType::PfcpauReqFlags, PARPS)?,
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        self.node_id.write(out);
        write_octets(IeType::UpFunctionFeatures, &self.up_features, out);
        self.manager.write(out);
        if self.release {
            out.element(IeType::PfcpAssociationReleaseRequest, &[SARR]);
        }
        if let Some(period) = self.graceful_release {
            out.element(IeType::GracefulReleasePeriod, &[timer(period)]);
        }
        if self.prepares_release {
            out.element(IeType::PfcpauReqFlags, &[PARPS]);
        }
    }
}

/// Seconds that a timer's unit stands for (8.2.35), by its upper three bits; others are minutes.
const UNITS_S: [u64; 5] = [2, 60, 600, 3_600, 36_000];

/// A time in a timer's octet, in the finest unit that has room for it, rounded up.
fn timer(time: Duration) -> u8 {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    for (unit, &unit_s) in UNITS_S.iter().enumerate() {
        let value = seconds.div_ceil(unit_s);
        if value <= 31 {
            return (unit as u8) << 5 | value as u8;
        }
    }
    // For ever.
    0b111 << 5
}

/// None where there is no limit.
fn read_timer(octet: u8) -> Option<Duration> {
    let unit_s = match octet >> 5 {
        0b111 => return None,
        unit => UNITS_S.get(usize::from(unit)).copied().unwrap_or(60),
    };
    Some(Duration::from_secs(unit_s * u64::from(octet & 31)))
}

impl AssociationRelease {
    pub(crate) fn read(ies: &Ies) -> Result<Self, Fault> {
        Ok(Self { node_id: NodeId::read(ies.mandatory(IeType::NodeId)?)? })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        self.node_id.write(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_stated_in_the_finest_unit_that_has_room_for_it() {
        for (seconds, octet, read) in [(0, 0, 0), (1, 1, 2), (62, 31, 62), (63, 0x22, 120), (3_600, 0x46, 3_600)] {
            assert_eq!(timer(Duration::from_secs(seconds)), octet, "{seconds} s");
            assert_eq!(read_timer(octet), Some(Duration::from_secs(read)));
        }
        assert_eq!((timer(Duration::from_secs(1 << 30)), read_timer(0xe0)), (0xe0, None));
    }

    #[test]
    fn preferred_addresses_come_first() {
        let mut body = vec![];
        out_of_order(&mut body);
        let manager = Manager::read(&Ies::parse(&body).unwrap()).unwrap();
        assert_eq!(manager.alternatives, ["10.4.0.3", "10.4.0.2"].map(|text| text.parse::<IpAddr>().unwrap()));
    }

    fn out_of_order(body: &mut Vec<u8>) {
        let element = |text: &str, flags| address::value(text.parse().unwrap(), flags);
        body.element(IeType::AlternativeSmfIpAddress, &element("10.4.0.2", 0));
        body.element(IeType::AlternativeSmfIpAddress, &element("10.4.0.3", PPE));
    }

    #[test]
    fn a_set_without_a_name_and_addresses_without_a_version_are_blamed() {
        let read = |kind: IeType, value: &[u8]| {
            let mut body = vec![];
            body.element(kind, value);
            Manager::read(&Ies::parse(&body).unwrap()).map(|_| ())
        };
        assert_eq!(read(IeType::SmfSetId, &[]), Err(Fault::of(Cause::InvalidLength, IeType::SmfSetId)));
        assert_eq!(read(IeType::SmfSetId, &[0]), Err(Fault::of(Cause::MandatoryIeIncorrect, IeType::SmfSetId)));
        let address = IeType::AlternativeSmfIpAddress;
        assert_eq!(read(address, &[0]), Err(Fault::of(Cause::MandatoryIeIncorrect, address)));
        assert_eq!(read(address, &[2, 10, 4, 0]), Err(Fault::of(Cause::InvalidLength, address)));
    }
}
