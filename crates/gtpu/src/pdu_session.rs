//! The PDU session container (TS 38.415, 5.5.2): which QoS flow a packet belongs to.

use crate::header::ParseError;

/// What a PDU session container says, as far as a UPF acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduSession {
    /// The PDU type.
    pub direction: Direction,
    /// QoS flow identifier, 0..=63.
    pub qfi: u8,
    /// Reflective QoS indicator; downlink only.
    pub rqi: bool,
}

/// Type of a PDU session information frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// DL PDU SESSION INFORMATION, type 0.
    Downlink,
    /// UL PDU SESSION INFORMATION, type 1.
    Uplink,
}

impl PduSession {
    /// Octets of the extension header that [`PduSession::write`] makes.
    pub const LEN: usize = 4;

    /// Reads the content of the extension header. Optional fields behind the QFI (delay measurement, sequence numbers)
    /// are left alone.
    #[inline]
    pub(crate) fn parse(content: &[u8]) -> Result<Self, ParseError> {
        let &[kind, flags, ..] = content else { return Err(ParseError::PduSession) };
        let direction = match kind >> 4 {
            0 => Direction::Downlink,
            1 => Direction::Uplink,
            _ => return Err(ParseError::PduSession),
        };
        Ok(Self { direction, qfi: flags & 0x3f, rqi: direction == Direction::Downlink && flags & 0x40 != 0 })
    }

    /// QFI in the low six bits, reflective QoS indicator in bit 6, as on the wire.
    #[inline]
    pub fn flow(&self) -> u8 {
        u8::from(self.rqi) << 6 | self.qfi
    }

    /// Writes direction and QoS flow into the content of an extension header which has others of the same direction. What else there
    /// is stays: paging policy, delay measurement, sequence numbers.
    pub(crate) fn overwrite(&self, content: &mut [u8]) {
        let mask = match self.direction {
            Direction::Downlink => 0x7f,
            Direction::Uplink => 0x3f,
        };
        if let Some(flags) = content.get_mut(1) {
            *flags = *flags & !mask | self.flow() & mask;
        }
    }

    /// The extension header with this content and nothing after it.
    pub fn write(&self) -> [u8; Self::LEN] {
        let kind = match self.direction {
            Direction::Downlink => 0x00,
            Direction::Uplink => 0x10,
        };
        [1, kind, u8::from(self.rqi) << 6 | self.qfi & 0x3f, 0]
    }
}
