//! Buffering action rules.

use std::time::Duration;

use rs_pfcp::ie::IeType;
use serde::{Deserialize, Serialize};

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
    /// For how long to keep them. Only a Session Report Response has it (table 7.5.9.2-1).
    pub buffering_duration: Option<BufferingDuration>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

/// DL Buffering Duration (8.2.29): a unit in the three highest bits, and how many of it in the others. The default is that nothing
/// is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferingDuration(pub u8);

impl BufferingDuration {
    /// The time, [`Duration::MAX`] for without end; none if none is said, or the timer is stopped.
    pub fn time(self) -> Option<Duration> {
        let unit_s = match self.0 >> 5 {
            0 => 2,
            2 => 600,
            3 => 3_600,
            4 => 36_000,
            7 => return Some(Duration::MAX),
            // Those that are not assigned mean minutes, too.
            _ => 60,
        };
        let units = u64::from(self.0 & 0x1f);
        (units > 0).then(|| Duration::from_secs(units * unit_s))
    }
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
            buffering_duration: octet(IeType::DlBufferingDuration)?.map(BufferingDuration),
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
            if let Some(BufferingDuration(duration)) = self.buffering_duration {
                out.element(IeType::DlBufferingDuration, &[duration]);
            }
        });
    }
}

fn others(ies: &Ies) -> Vec<u16> {
    ies.others(&[
        IeType::BarId,
        IeType::DownlinkDataNotificationDelay,
        IeType::SuggestedBufferingPacketsCount,
        IeType::DlBufferingDuration,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffering_duration_has_a_unit_and_a_number() {
        let cases = [(0x00, None), (0x05, Some(10)), (0x3f, Some(31 * 60)), (0x42, Some(1_200)), (0x61, Some(3_600))];
        for (octet, seconds) in cases.into_iter().chain([(0x81, Some(36_000)), (0xa2, Some(120)), (0x20, None)]) {
            assert_eq!(BufferingDuration(octet).time(), seconds.map(Duration::from_secs), "{octet:#x}");
        }
        assert_eq!(BufferingDuration(0xe0).time(), Some(Duration::MAX));
    }
}
