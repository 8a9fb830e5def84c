//! Private memory for one burst, for queues over devices and sockets: the kernel copies frames in, functions see them as
//! they see those of shared memory.

use crate::packet::{BURST_MAX, Burst, FRAME_MAX, HEAD_MAX, Slot};

/// Room for [`BURST_MAX`] frames.
pub struct FrameStore {
    slots: Box<[Slot]>,
    rests: Box<[u8]>,
    peek: usize,
}

impl FrameStore {
    /// A store of which the first `peek` bytes of each frame (64 to [`HEAD_MAX`]) become its head.
    pub fn new(peek: usize) -> Self {
        Self {
            slots: (0..BURST_MAX).map(|_| Slot::new()).collect(),
            rests: vec![0; BURST_MAX * FRAME_MAX].into_boxed_slice(),
            peek: peek.clamp(64, HEAD_MAX),
        }
    }

    /// Where frame `i` goes: its head, and what follows. Together they hold more than the longest frame.
    #[inline]
    pub fn parts(&mut self, i: usize) -> (&mut [u8], &mut [u8]) {
        (self.slots[i].fill_head(self.peek), &mut self.rests[i * FRAME_MAX..(i + 1) * FRAME_MAX])
    }

    /// Says how long frame `i`, now in its parts, is. False where no frame has that length.
    #[must_use]
    #[inline]
    pub fn set_len(&mut self, i: usize, len: usize) -> bool {
        if !(1..=FRAME_MAX).contains(&len) {
            return false;
        }
        let head = len.min(self.peek);
        self.slots[i].fill_head(head);
        if len > head {
            // SAFETY: the bytes are this store's own and do not move; they are borrowed with the burst.
            unsafe { self.slots[i].set_rest(self.rests[i * FRAME_MAX..].as_ptr(), (len - head) as u32) };
        }
        true
    }

    /// Copies a whole frame in.
    #[must_use]
    pub fn put(&mut self, i: usize, frame: &[u8]) -> bool {
        if frame.len() > FRAME_MAX {
            return false;
        }
        let split = frame.len().min(self.peek);
        let (head, rest) = self.parts(i);
        head[..split].copy_from_slice(&frame[..split]);
        rest[..frame.len() - split].copy_from_slice(&frame[split..]);
        self.set_len(i, frame.len())
    }

    /// The first `count` frames.
    #[inline]
    pub fn burst(&mut self, count: usize) -> Burst<'_> {
        Burst::new(&mut self.slots[..count])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_every_length_come_out_as_they_went_in() {
        let mut store = FrameStore::new(100);
        for len in [1, 63, 99, 100, 101, 256, 1_500, FRAME_MAX] {
            let frame: Vec<u8> = (0..len).map(|n| n as u8).collect();
            assert!(store.put(3, &frame));
            let burst = store.burst(4);
            let packet = burst.get(3);
            assert_eq!(packet.head.len(), len.min(100));
            let mut copy = vec![0; packet.len()];
            packet.copy_to(&mut copy);
            assert_eq!(copy, frame);
        }
        assert!(!store.put(0, &[]) && !store.put(0, &[0; FRAME_MAX + 1]));
    }
}
