//! How long packets are: all alike, a range one after the other, or a mix.

use std::str::FromStr;

use crate::frame::{ETHERNET, IPV4, UDP};
use crate::spread::spread;
use crate::stamp::Stamp;

/// Bytes of inner UDP payload, packet by packet: a cycle that every flow goes through by itself, each from another place, so
/// that sizes and flows have nothing to do with each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    cycle: Vec<u16>,
}

/// Bytes of the payload of an Ethernet frame of `len` bytes, its check sequence (FCS) included.
const fn in_frame(len: usize) -> u16 {
    (len - 4 - ETHERNET - IPV4 - UDP) as u16
}

/// The usual simple IMIX: Ethernet frames of 64, 594 and 1,518 bytes, as they are counted where frames have a check sequence
/// (RFC 2544), at 7:4:1. It is a convention of test equipment and in no standard; RFC 6985 tells how to name others. What is
/// mixed is the user's packets: IP packets of 46, 576 and 1,500 bytes, to which a tunnel adds its own.
const IMIX: [(u16, u32); 3] = [(in_frame(64), 7), (in_frame(594), 4), (in_frame(1_518), 1)];

/// Longest payload.
pub const PAYLOAD_MAX: u16 = 9_000;
/// Most packets in a cycle.
const CYCLE_MAX: usize = 65_536;

/// Why a distribution of sizes is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizesError {
    /// It has another form.
    #[error(
        "{0} is no size; expected BYTES, FIRST..LAST/STEP (64..1472/128), BYTESxWEIGHT,... (18x7,548x4,1472x1) or imix"
    )]
    Form(String),
    /// A packet would be too short or too long.
    #[error("payloads have {min} to {PAYLOAD_MAX} bytes, not {0}: a stamp of {min} bytes goes into each", min = Stamp::LEN)]
    Range(u32),
    /// Nothing, or too much, would be sent.
    #[error("a cycle has 1 to {CYCLE_MAX} packets, not {0}: use smaller weights or larger steps")]
    Length(u64),
}

impl Sizes {
    /// All of `payload_len` bytes.
    pub fn fixed(payload_len: usize) -> Result<Self, SizesError> {
        Self::mix(&[(u16::try_from(payload_len).unwrap_or(u16::MAX), 1)])
    }

    /// From `first` on in steps of `step` bytes, up to `last` at most, and then from the beginning.
    pub fn sweep(first: u16, last: u16, step: u16) -> Result<Self, SizesError> {
        let cycle: Vec<u16> = (first..=last).step_by(step.max(1).into()).collect();
        Self::checked(cycle)
    }

    /// Sizes with their weights, as evenly mixed as whole packets can be.
    pub fn mix(parts: &[(u16, u32)]) -> Result<Self, SizesError> {
        let sum: u64 = parts.iter().map(|(_, weight)| u64::from(*weight)).sum();
        if sum > CYCLE_MAX as u64 {
            return Err(SizesError::Length(sum));
        }
        let weights: Vec<u32> = parts.iter().map(|(_, weight)| *weight).collect();
        Self::checked(spread(&weights).into_iter().map(|part| parts[part as usize].0).collect())
    }

    /// The simple IMIX: user packets of Ethernet frames of 64, 594 and 1,518 bytes at 7:4:1.
    pub fn imix() -> Self {
        Self::mix(&IMIX).expect("its payloads have room for a stamp")
    }

    fn checked(cycle: Vec<u16>) -> Result<Self, SizesError> {
        if cycle.is_empty() {
            return Err(SizesError::Length(0));
        }
        let fits = |len: &u16| (Stamp::LEN as u16..=PAYLOAD_MAX).contains(len);
        match cycle.iter().find(|len| !fits(len)) {
            Some(len) => Err(SizesError::Range((*len).into())),
            None => Ok(Self { cycle }),
        }
    }

    /// The payload, in bytes, of the packet with this sequence number in the flow of this number.
    #[inline]
    pub fn of(&self, flow: u32, sequence: u64) -> usize {
        self.cycle[flow.wrapping_add(sequence as u32) as usize % self.cycle.len()].into()
    }

    /// The payload of all packets, if they are alike.
    pub fn only(&self) -> Option<usize> {
        match &*self.cycle {
            [only] => Some((*only).into()),
            _ => None,
        }
    }

    /// The longest payload in bytes.
    pub fn largest(&self) -> usize {
        self.cycle.iter().copied().max().unwrap_or(0).into()
    }

    /// The mean of all payloads in bytes.
    pub fn mean(&self) -> f64 {
        self.cycle.iter().map(|len| f64::from(*len)).sum::<f64>() / self.cycle.len() as f64
    }

    /// Each size that occurs, the smallest first, as sizes of its own.
    pub fn each(&self) -> Vec<Self> {
        let mut sizes = self.cycle.clone();
        sizes.sort_unstable();
        sizes.dedup();
        sizes.into_iter().map(|size| Self { cycle: vec![size] }).collect()
    }
}

impl FromStr for Sizes {
    type Err = SizesError;

    /// `64`, `64..1472/128`, `18x7,548x4,1472x1`, `imix`.
    fn from_str(text: &str) -> Result<Self, SizesError> {
        let form = || SizesError::Form(text.to_owned());
        let bytes = |text: &str| match text.parse::<u32>() {
            Ok(bytes) => u16::try_from(bytes).map_err(|_| SizesError::Range(bytes)),
            Err(_) => Err(form()),
        };
        if text == "imix" {
            return Ok(Self::imix());
        }
        if let Some((first, more)) = text.split_once("..") {
            let (last, step) = more.split_once('/').ok_or_else(form)?;
            let step = bytes(step)?;
            return if step == 0 { Err(form()) } else { Self::sweep(bytes(first)?, bytes(last)?, step) };
        }
        let part = |text: &str| match text.split_once('x') {
            Some((size, weight)) => Ok((bytes(size)?, weight.parse().map_err(|_| form())?)),
            None => Ok((bytes(text)?, 1)),
        };
        Self::mix(&text.split(',').map(part).collect::<Result<Vec<_>, _>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(sizes: &Sizes, flow: u32, packets: u64, len: usize) -> usize {
        (0..packets).filter(|sequence| sizes.of(flow, *sequence) == len).count()
    }

    #[test]
    fn imix_has_its_published_shares_in_every_flow_to_the_packet() {
        let imix = Sizes::imix();
        for flow in [0, 1, 5, 11, 4_711] {
            let shares = [18, 548, 1_472].map(|len| count(&imix, flow, 12_000, len));
            assert_eq!(shares, [7_000, 4_000, 1_000], "flow {flow}");
        }
        // Bytes of frames with check sequences, of a cycle.
        let bytes: usize = (0..12).map(|sequence| imix.of(0, sequence) + 46).sum();
        assert_eq!(bytes, 7 * 64 + 4 * 594 + 1_518);
    }

    #[test]
    fn flows_that_take_turns_are_not_all_at_the_same_size() {
        let imix = Sizes::imix();
        let shares = [18, 548, 1_472].map(|len| (0..12).filter(|flow| imix.of(*flow, 0) == len).count());
        assert_eq!(shares, [7, 4, 1]);
    }

    #[test]
    fn a_sweep_has_every_step_once() {
        let sweep: Sizes = "64..1472/128".parse().expect("a sweep");
        let seen: Vec<usize> = (0..13).map(|sequence| sweep.of(0, sequence)).collect();
        assert_eq!(seen, [64, 192, 320, 448, 576, 704, 832, 960, 1_088, 1_216, 1_344, 1_472, 64]);
        assert_eq!((sweep.largest(), sweep.each().len()), (1_472, 12));
    }

    #[test]
    fn text_says_which_sizes() {
        assert_eq!("64".parse(), Sizes::fixed(64));
        assert_eq!("imix".parse(), Ok(Sizes::imix()));
        assert_eq!("18x7,548x4,1472x1".parse(), Ok(Sizes::imix()));
        assert_eq!("100,200".parse(), Sizes::mix(&[(100, 1), (200, 1)]));
    }

    #[test]
    fn what_is_no_distribution_is_refused_with_the_reason() {
        let error = |text: &str| text.parse::<Sizes>().expect_err("no sizes").to_string();
        for text in ["", "x", "64x", "x64", "1..2", "64..128", "64..x/1", "-1", "IMIX"] {
            assert!(error(text).contains("expected BYTES"), "{text}: {}", error(text));
        }
        for text in ["17", "9001", "70000", "10..100/10", "64x1,9001x1"] {
            assert!(error(text).contains("18 to 9000 bytes"), "{text}: {}", error(text));
        }
        for text in ["100..64/8", "64x0", "64x65537", "64x4294967295,65x4294967295"] {
            assert!(error(text).contains("cycle has 1 to 65536"), "{text}: {}", error(text));
        }
    }
}
