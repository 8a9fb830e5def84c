//! Buffering action rules.

use rs_pfcp::ie::IeType;

use crate::fault::Fault;
use crate::ie::{Elements, Ie, Ies};

/// Create BAR (table 7.5.2.6-1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreateBar {
    /// BAR ID.
    pub id: u8,
    /// How long to wait before packets are told of, in units of 50 ms (8.2.28).
    pub notification_delay: Option<u8>,
    /// How many packets to keep (8.2.100).
    pub suggested_packets: Option<u8>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

/// Update BAR (tables 7.5.4.11-1 and 7.5.9.2-1). What is present replaces what the rule had.
pub type UpdateBar = CreateBar;

impl CreateBar {
    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        let octet = |kind| ies.first(kind).map(|ie: Ie| ie.octet()).transpose();
        Ok(Self {
            id: ies.mandatory(IeType::BarId)?.octet()?,
            notification_delay: octet(IeType::DownlinkDataNotificationDelay)?,
            suggested_packets: octet(IeType::SuggestedBufferingPacketsCount)?,
            others: others(&ies),
        })
    }

    pub(crate) fn write(&self, kind: IeType, out: &mut Vec<u8>) {
        out.grouped(kind, |out| {
            out.element(IeType::BarId, &[self.id]);
            if let Some(delay) = self.notification_delay {
                out.element(IeType::DownlinkDataNotificationDelay, &[delay]);
            }
            if let Some(packets) = self.suggested_packets {
                out.element(IeType::SuggestedBufferingPacketsCount, &[packets]);
            }
        });
    }
}

fn others(ies: &Ies) -> Vec<u16> {
    ies.others(&[IeType::BarId, IeType::DownlinkDataNotificationDelay, IeType::SuggestedBufferingPacketsCount])
}
