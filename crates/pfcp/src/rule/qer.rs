//! QoS enforcement rules.

use rs_pfcp::ie::IeType;
use rs_pfcp::ie::gbr::Gbr;
use rs_pfcp::ie::mbr::Mbr;

use super::{read_qfi, write_ids};
use crate::fault::Fault;
use crate::ie::{Elements, Ie, decode};

/// Gate status (8.2.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateStatus {
    /// Uplink packets pass.
    pub uplink_open: bool,
    /// Downlink packets pass.
    pub downlink_open: bool,
}

impl GateStatus {
    fn read(ie: Ie) -> Result<Self, Fault> {
        let octet = ie.octet()?;
        // Values to come close the gate, too.
        let open = |gate: u8| gate & 0b11 == 0;
        Ok(Self { uplink_open: open(octet >> 2), downlink_open: open(octet) })
    }

    fn write(&self, out: &mut Vec<u8>) {
        let octet = u8::from(!self.uplink_open) << 2 | u8::from(!self.downlink_open);
        out.element(IeType::GateStatus, &[octet]);
    }
}

/// A bit rate for each direction (8.2.8, 8.2.9), in kbit/s, below 2^40.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitRate {
    /// Uplink.
    pub uplink_kbps: u64,
    /// Downlink.
    pub downlink_kbps: u64,
}

/// Create QER (table 7.5.2.5-1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateQer {
    /// QER ID.
    pub id: u32,
    /// Gate status.
    pub gate_status: GateStatus,
    /// Maximum bit rate.
    pub mbr: Option<BitRate>,
    /// Guaranteed bit rate.
    pub gbr: Option<BitRate>,
    /// QoS flow identifier.
    pub qfi: Option<u8>,
    /// Reflective QoS indication (8.2.88).
    pub reflective: Option<bool>,
    /// QER correlation ID (8.2.10): QERs that have the same one share their maximum bit rate.
    pub correlation_id: Option<u32>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

impl CreateQer {
    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            id: ies.mandatory(IeType::QerId)?.u32()?,
            gate_status: GateStatus::read(ies.mandatory(IeType::GateStatus)?)?,
            mbr: ies.first(IeType::Mbr).map(read_mbr).transpose()?,
            gbr: ies.first(IeType::Gbr).map(read_gbr).transpose()?,
            qfi: ies.first(IeType::Qfi).map(read_qfi).transpose()?,
            reflective: ies.first(IeType::Rqi).map(read_rqi).transpose()?,
            correlation_id: ies.first(IeType::QerCorrelationId).map(|ie| ie.u32()).transpose()?,
            others: ies.others(QER_KNOWN),
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.grouped(IeType::CreateQer, |out| {
            let Self { id, gate_status, mbr, gbr, qfi, reflective, correlation_id, others: _ } = *self;
            let update = UpdateQer {
                gate_status: Some(gate_status),
                id,
                mbr,
                gbr,
                qfi,
                reflective,
                correlation_id,
                others: vec![],
            };
            update.write_elements(out);
        });
    }
}

/// Update QER (table 7.5.4.5-1). What is present replaces what the rule had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateQer {
    /// QER ID.
    pub id: u32,
    /// Gate status.
    pub gate_status: Option<GateStatus>,
    /// Maximum bit rate.
    pub mbr: Option<BitRate>,
    /// Guaranteed bit rate.
    pub gbr: Option<BitRate>,
    /// QoS flow identifier.
    pub qfi: Option<u8>,
    /// Reflective QoS indication (8.2.88).
    pub reflective: Option<bool>,
    /// QER correlation ID (8.2.10).
    pub correlation_id: Option<u32>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

impl UpdateQer {
    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            id: ies.mandatory(IeType::QerId)?.u32()?,
            gate_status: ies.first(IeType::GateStatus).map(GateStatus::read).transpose()?,
            mbr: ies.first(IeType::Mbr).map(read_mbr).transpose()?,
            gbr: ies.first(IeType::Gbr).map(read_gbr).transpose()?,
            qfi: ies.first(IeType::Qfi).map(read_qfi).transpose()?,
            reflective: ies.first(IeType::Rqi).map(read_rqi).transpose()?,
            correlation_id: ies.first(IeType::QerCorrelationId).map(|ie| ie.u32()).transpose()?,
            others: ies.others(QER_KNOWN),
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.grouped(IeType::UpdateQer, |out| self.write_elements(out));
    }

    fn write_elements(&self, out: &mut Vec<u8>) {
        write_ids(IeType::QerId, &[self.id], out);
        write_ids(IeType::QerCorrelationId, self.correlation_id.as_slice(), out);
        if let Some(gate) = self.gate_status {
            gate.write(out);
        }
        if let Some(rate) = self.mbr {
            out.element(IeType::Mbr, &Mbr { uplink: rate.uplink_kbps, downlink: rate.downlink_kbps }.marshal());
        }
        if let Some(rate) = self.gbr {
            out.element(IeType::Gbr, &Gbr { uplink: rate.uplink_kbps, downlink: rate.downlink_kbps }.marshal());
        }
        if let Some(qfi) = self.qfi {
            out.element(IeType::Qfi, &[qfi]);
        }
        if let Some(reflective) = self.reflective {
            out.element(IeType::Rqi, &[reflective.into()]);
        }
    }
}

/// Of the octet's bits the lowest counts.
fn read_rqi(ie: Ie) -> Result<bool, Fault> {
    ie.octet().map(|octet| octet & 1 != 0)
}

fn read_mbr(ie: Ie) -> Result<BitRate, Fault> {
    decode(ie, Mbr::unmarshal).map(|mbr| BitRate { uplink_kbps: mbr.uplink, downlink_kbps: mbr.downlink })
}

fn read_gbr(ie: Ie) -> Result<BitRate, Fault> {
    decode(ie, Gbr::unmarshal).map(|gbr| BitRate { uplink_kbps: gbr.uplink, downlink_kbps: gbr.downlink })
}

const QER_KNOWN: &[IeType] =
    &[IeType::QerId, IeType::GateStatus, IeType::Mbr, IeType::Gbr, IeType::Qfi, IeType::Rqi, IeType::QerCorrelationId];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_open_by_one_of_its_values_alone() {
        for octet in 0..=u8::MAX {
            let read = GateStatus::read(Ie { kind: IeType::GateStatus as u16, value: &[octet] });
            let (uplink_open, downlink_open) = (octet >> 2 & 3 == 0, octet & 3 == 0);
            assert_eq!(read, Ok(GateStatus { uplink_open, downlink_open }));
        }
    }
}
