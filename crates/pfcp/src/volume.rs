//! Volumes: thresholds, quotas (TS 29.244, 8.2.13, 8.2.50) and measurements (8.2.44).

use rs_pfcp::ie::IeType;
use serde::{Deserialize, Serialize};

use crate::fault::{Cause, Fault};
use crate::ie::{Elements, Ie};

/// Numbers of octets, or of packets: in all, uplink, downlink. Absent ones do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Both directions together.
    pub total: Option<u64>,
    /// Uplink.
    pub uplink: Option<u64>,
    /// Downlink.
    pub downlink: Option<u64>,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMeasurement {
    /// Octets of users' IP packets.
    pub octets: Volume,
    /// Users' packets; absent unless asked for.
    pub packets: Volume,
}

/// Downlink traffic that was dropped (8.2.49): absent numbers do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedThreshold {
    /// Packets (DLPA).
    pub packets: Option<u64>,
    /// Octets (DLBY).
    pub octets: Option<u64>,
}

impl DroppedThreshold {
    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let flags = ie.octet()? & 0b11;
        let Volume { total: packets, uplink: octets, .. } = read_numbers(ie, flags, &mut 1)?;
        // As with volumes.
        if flags == 0 { Err(ie.fault(Cause::MandatoryIeIncorrect)) } else { Ok(Self { packets, octets }) }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let numbers = Volume { total: self.packets, uplink: self.octets, downlink: None };
        numbers.write(IeType::DroppedDlTrafficThreshold, out);
    }
}

/// Which of three numbers are there, in the lowest three bits; they follow in this order.
const FLAGS: u8 = 0b111;

impl Volume {
    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let flags = ie.octet()?;
        let volume = read_numbers(ie, flags & FLAGS, &mut 1)?;
        // A threshold of nothing says nothing.
        if flags & FLAGS == 0 { Err(ie.fault(Cause::MandatoryIeIncorrect)) } else { Ok(volume) }
    }

    pub(crate) fn write(&self, kind: IeType, out: &mut Vec<u8>) {
        let mut value = vec![self.flags()];
        self.write_numbers(&mut value);
        out.element(kind, &value);
    }

    fn flags(&self) -> u8 {
        let present = |number: Option<u64>, bit: u8| u8::from(number.is_some()) << bit;
        present(self.total, 0) | present(self.uplink, 1) | present(self.downlink, 2)
    }

    fn write_numbers(&self, value: &mut Vec<u8>) {
        let numbers = [self.total, self.uplink, self.downlink];
        numbers.into_iter().flatten().for_each(|number| value.extend(number.to_be_bytes()));
    }
}

impl VolumeMeasurement {
    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let (flags, mut at) = (ie.octet()?, 1);
        let octets = read_numbers(ie, flags & FLAGS, &mut at)?;
        Ok(Self { octets, packets: read_numbers(ie, flags >> 3 & FLAGS, &mut at)? })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let mut value = vec![self.octets.flags() | self.packets.flags() << 3];
        self.octets.write_numbers(&mut value);
        self.packets.write_numbers(&mut value);
        out.element(IeType::VolumeMeasurement, &value);
    }
}

/// The numbers that `flags` says are there, from octet `at` on, which is moved behind them.
fn read_numbers(ie: Ie, flags: u8, at: &mut usize) -> Result<Volume, Fault> {
    let mut number = |bit: u8| {
        if flags >> bit & 1 == 0 {
            return Ok(None);
        }
        let octets = ie.value.get(*at..).and_then(|rest| rest.first_chunk());
        *at += 8;
        octets.map(|&octets| Some(u64::from_be_bytes(octets))).ok_or(ie.fault(Cause::InvalidLength))
    };
    Ok(Volume { total: number(0)?, uplink: number(1)?, downlink: number(2)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_lacks_a_number_is_blamed_for_its_length() {
        let ie = |value| Ie { kind: IeType::VolumeThreshold as u16, value };
        let wrong = |cause| Err(Fault::of(cause, IeType::VolumeThreshold));
        assert_eq!(Volume::read(ie(&[])), wrong(Cause::InvalidLength));
        assert_eq!(Volume::read(ie(&[1, 0, 0, 0, 0, 0, 0, 1])), wrong(Cause::InvalidLength));
        assert_eq!(Volume::read(ie(&[5, 0, 0, 0, 0, 0, 0, 0, 1])), wrong(Cause::InvalidLength));
        assert_eq!(Volume::read(ie(&[0])), wrong(Cause::MandatoryIeIncorrect));
        let total = Volume { total: Some(1), ..Volume::default() };
        assert_eq!(Volume::read(ie(&[1, 0, 0, 0, 0, 0, 0, 0, 1])), Ok(total));
    }
}
