//! Where the packets lie that will be received next.
//!
//! A line that another core has written, or that lies in memory, comes late. Asked for while packets are received, all lines of a burst
//! are waited for together; asked for one by one while the packets of the burst before are changed, they come meanwhile.

use crate::prefetch;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The packets of the next burst, as far as one can tell: so many, and as long, as those of this one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coming {
    start: *const u8,
    /// Bytes from one packet to the next.
    step: usize,
    /// More is read of each than a line.
    long: bool,
}

impl Coming {
    /// None that are known: what is asked for is at hand.
    #[inline(always)]
    pub(crate) fn nothing(at_hand: *const u8) -> Self {
        Self { start: at_hand, step: 0, long: false }
    }

    /// Packets that begin at `start`, `step` bytes apart. These addresses are asked for only, so they may lie anywhere.
    #[inline(always)]
    pub(crate) fn new(start: *const u8, step: usize) -> Self {
        // Where packets lie close together, the next one's first line is nearly all of this one's second.
        Self { start, step, long: step > LINE + LINE / 2 }
    }

    /// Packet `i` of this burst is at hand: asks for that of the next one, as far as functions look at packets. In few instructions,
    /// since that is done for every packet: no loop over lines, and no question whether there are any.
    #[inline(always)]
    pub(crate) fn ask(self, i: usize) {
        let first = self.first(i);
        prefetch::to_read(first);
        if self.long {
            prefetch::to_read(first.wrapping_add(LINE));
            prefetch::to_read(first.wrapping_add(2 * LINE));
        }
    }

    #[inline(always)]
    fn first(self, i: usize) -> *const u8 {
        self.start.wrapping_add(i.wrapping_mul(self.step))
    }

    /// Where so many packets are expected to begin; nothing where none are.
    #[cfg(test)]
    pub(crate) fn places(self, packets: usize) -> Vec<*const u8> {
        let packets = if self.step == 0 { 0 } else { packets };
        (0..packets).map(|i| self.first(i)).collect()
    }
}
