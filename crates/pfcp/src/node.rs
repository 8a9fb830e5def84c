//! Messages that concern nodes (TS 29.244, 7.4): heartbeats and what all such messages share, associations, reports.

mod address;
mod association;
mod features;
mod report;

use std::fmt;
use std::net::IpAddr;
use std::time::SystemTime;

use rs_pfcp::ie::IeType;
use rs_pfcp::ie::node_id::NodeId as NodeIdCodec;
use rs_pfcp::ie::recovery_time_stamp::RecoveryTimeStamp as RecoveryTimeStampCodec;

pub use association::{AssociationRelease, AssociationSetup, AssociationSetupResponse, AssociationUpdate, Manager};
pub use features::{CpFeature, CpFeatures, UpFeature, UpFeatures, cp_features, has_cp_feature, up_features};
pub use report::{NodeReport, RemoteGtpuPeer};

use crate::fault::{Cause, Fault};
use crate::ie::{Elements, Ie, Ies, decode};

/// A node's name (8.2.38).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeId {
    /// An address.
    Address(IpAddr),
    /// A fully qualified domain name, without a trailing dot.
    Fqdn(String),
}

/// When a node last started (8.2.65), in seconds since 1900 (NTP). A change tells that it lost its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecoveryTimeStamp(pub u32);

/// Heartbeat Request and Response (7.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The sender's start.
    pub recovery: RecoveryTimeStamp,
}

/// Association Update Response (7.4.4.4), Association Release Response (7.4.4.6), Node Report Response (7.4.5.2) or Session
/// Set Deletion Response (7.4.6.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeOutcome {
    /// The sender.
    pub node_id: NodeId,
    /// Whether it was done.
    pub outcome: Result<(), Fault>,
}

impl NodeId {
    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let mut value = ie.value.to_vec();
        if let Some(kind) = value.first_mut() {
            // The upper half is spare.
            *kind &= 0x0f;
        }
        Ok(match decode(Ie { value: &value, ..ie }, NodeIdCodec::unmarshal)? {
            NodeIdCodec::IPv4(address) => Self::Address(address.into()),
            NodeIdCodec::IPv6(address) => Self::Address(address.into()),
            NodeIdCodec::FQDN(_) => {
                let name = labels(&ie.value[1..]).ok_or(ie.fault(Cause::MandatoryIeIncorrect))?;
                Self::Fqdn(name.to_ascii_lowercase())
            }
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let value = match self {
            Self::Address(IpAddr::V4(address)) => NodeIdCodec::new_ipv4(*address).marshal(),
            Self::Address(IpAddr::V6(address)) => NodeIdCodec::new_ipv6(*address).marshal(),
            Self::Fqdn(name) => fqdn_value(name),
        };
        out.element(IeType::NodeId, &value);
    }
}

/// A domain name in labels as in DNS messages, without the root; rs-pfcp writes it as plain text.
fn fqdn_value(name: &str) -> Vec<u8> {
    let mut value = vec![2];
    write_labels(name, &mut value);
    value
}

fn write_labels(name: &str, value: &mut Vec<u8>) {
    for label in name.trim_end_matches('.').split('.').filter(|label| !label.is_empty()) {
        let label = &label.as_bytes()[..label.len().min(63)];
        value.push(label.len() as u8);
        value.extend_from_slice(label);
    }
}

/// Reads a name in labels, joined by dots; `None` where that is not what it is.
pub(crate) fn labels(mut value: &[u8]) -> Option<String> {
    let mut name = String::new();
    while let Some((&length, rest)) = value.split_first() {
        if length == 0 && rest.is_empty() {
            break;
        }
        let (label, rest) = rest.split_at_checked(length.into())?;
        if label.is_empty() || length > 63 || !label.iter().all(|octet| octet.is_ascii_graphic() && *octet != b'.') {
            return None;
        }
        if !name.is_empty() {
            name.push('.');
        }
        name.push_str(std::str::from_utf8(label).ok()?);
        value = rest;
    }
    (!name.is_empty() && name.len() <= 253).then_some(name)
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Fqdn(name) => f.write_str(name),
        }
    }
}

impl RecoveryTimeStamp {
    /// The current time.
    pub fn now() -> Self {
        Self(RecoveryTimeStampCodec::new(SystemTime::now()).ntp_seconds())
    }

    /// Whether it is later than `other`. The count begins anew in 2036.
    pub fn is_after(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) > 0
    }

    fn read(ie: Ie) -> Result<Self, Fault> {
        ie.u32().map(Self)
    }

    fn write(self, out: &mut Vec<u8>) {
        out.element(IeType::RecoveryTimeStamp, &self.0.to_be_bytes());
    }
}

impl Heartbeat {
    pub(crate) fn read(ies: &Ies) -> Result<Self, Fault> {
        Ok(Self { recovery: RecoveryTimeStamp::read(ies.mandatory(IeType::RecoveryTimeStamp)?)? })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        self.recovery.write(out);
    }
}

impl NodeOutcome {
    pub(crate) fn read(ies: &Ies) -> Result<Self, Fault> {
        Ok(Self { node_id: NodeId::read(ies.mandatory(IeType::NodeId)?)?, outcome: read_outcome(ies)? })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        self.node_id.write(out);
        write_outcome(&self.outcome, out);
    }
}

/// Cause and, in a rejection, what comes with it. The outer fault is one of the response itself.
pub(crate) fn read_outcome(ies: &Ies) -> Result<Result<(), Fault>, Fault> {
    let cause = ies.mandatory(IeType::Cause)?.octet()?;
    if cause < Cause::RequestRejected as u8 {
        return Ok(Ok(()));
    }
    Ok(Err(Fault {
        cause: cause.into(),
        offending_ie: ies.first(IeType::OffendingIe).map(|ie| ie.u16()).transpose()?,
        failed_rule: ies.first(IeType::FailedRuleId).map(crate::RuleId::read).transpose()?,
    }))
}

pub(crate) fn write_outcome(outcome: &Result<(), Fault>, out: &mut Vec<u8>) {
    match outcome {
        Ok(()) => out.element(IeType::Cause, &[Cause::RequestAccepted as u8]),
        Err(fault) => fault.write(out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(id: &NodeId) -> Vec<u8> {
        let mut out = vec![];
        id.write(&mut out);
        out
    }

    #[test]
    fn node_ids_are_read_as_written() {
        let names = [NodeId::Fqdn("smf.example.org".into()), NodeId::Fqdn("smf".into())];
        let addresses = ["10.4.0.2", "2001:db8::2"].map(|text| NodeId::Address(text.parse().unwrap()));
        for id in names.into_iter().chain(addresses) {
            let bytes = written(&id);
            assert_eq!(NodeId::read(Ies::parse(&bytes).unwrap().first(IeType::NodeId).unwrap()), Ok(id));
        }
    }

    #[test]
    fn spare_bits_of_a_node_id_do_not_matter() {
        let ie = Ie { kind: IeType::NodeId as u16, value: &[0xf0, 10, 4, 0, 2] };
        assert_eq!(NodeId::read(ie), Ok(NodeId::Address("10.4.0.2".parse().unwrap())));
    }

    #[test]
    fn time_stamps_are_in_order_when_their_count_begins_anew() {
        let stamp = RecoveryTimeStamp;
        assert!(stamp(2).is_after(stamp(1)) && !stamp(1).is_after(stamp(1)) && !stamp(1).is_after(stamp(2)));
        assert!(stamp(1).is_after(stamp(u32::MAX)));
    }

    #[test]
    fn a_name_is_written_in_labels() {
        assert_eq!(written(&NodeId::Fqdn("a.bc".into())), [0, 60, 0, 6, 2, 1, b'a', 2, b'b', b'c']);
    }

    #[test]
    fn bad_node_ids_are_blamed_for_what_is_bad() {
        let cases: [(&[u8], Cause); 6] = [
            (&[], Cause::InvalidLength),
            (&[0, 1, 2, 3], Cause::InvalidLength),
            (&[1, 1, 2, 3], Cause::InvalidLength),
            (&[2], Cause::MandatoryIeIncorrect),
            (&[2, 9, b'a'], Cause::MandatoryIeIncorrect),
            (&[7, 1, 2, 3, 4], Cause::MandatoryIeIncorrect),
        ];
        for (value, cause) in cases {
            let ie = Ie { kind: IeType::NodeId as u16, value };
            assert_eq!(NodeId::read(ie), Err(Fault::of(cause, IeType::NodeId)), "{value:?}");
        }
    }
}
