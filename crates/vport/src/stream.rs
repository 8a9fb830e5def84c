//! Records written past the caches, straight to memory.

use crate::packet::PacketRef;

const WORD: usize = 8;

/// Writes `first` and, behind it, the packet. What is written is seen by others only after [`fence`].
///
/// # Safety
/// `to` must be a multiple of 8 and mapped for writing for 8 bytes and the packet's length, rounded up to a multiple of 8.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn record(first: u64, packet: &PacketRef<'_>, to: *mut u8) {
    let (head, rest) = (packet.head, packet.rest);
    let (head_words, rest_start) = (head.len() / WORD, WORD - head.len() % WORD);
    // SAFETY: all words lie within what `to` is mapped for, and each source within its part of the packet.
    unsafe {
        let body = to.add(WORD);
        put(to, first);
        words(head.as_ptr(), body, head_words);
        if rest.is_empty() {
            last(&head[head_words * WORD..], [].as_ptr(), 0, body.add(head_words * WORD));
            return;
        }
        // The word in which the two parts meet; where the head ends on a word, it is the rest's first.
        let meeting = rest_start.min(rest.len());
        last(&head[head_words * WORD..], rest.as_ptr(), meeting, body.add(head_words * WORD));
        let (from, left) = (rest.as_ptr().add(meeting), rest.len() - meeting);
        let to = body.add((head_words + 1) * WORD);
        words(from, to, left / WORD);
        last(&[], from.add(left / WORD * WORD), left % WORD, to.add(left / WORD * WORD));
    }
}

/// Elsewhere there is no such store in stable Rust.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn record(_first: u64, _packet: &PacketRef<'_>, _to: *mut u8) {
    unreachable!("records are streamed on x86-64 only")
}

/// Whether this processor can.
pub(crate) const POSSIBLE: bool = cfg!(target_arch = "x86_64");

/// Makes what was streamed visible before whatever is written from here on.
#[inline(always)]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of every x86-64.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}

/// # Safety
/// Both must be mapped for `count` words, `to` aligned to 8.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn words(from: *const u8, to: *mut u8, count: usize) {
    for at in (0..count).map(|word| word * WORD) {
        // SAFETY: by contract.
        unsafe { put(to.add(at), from.add(at).cast::<u64>().read_unaligned()) };
    }
}

/// Writes one word of fewer than 8 bytes `before` and `count` bytes `from`, filled up with zeros; none if both are empty.
///
/// # Safety
/// The bytes must be at most 8 together; `to` is aligned to 8 and mapped for them rounded up.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn last(before: &[u8], from: *const u8, count: usize, to: *mut u8) {
    if before.len() + count == 0 {
        return;
    }
    let mut word = [0; WORD];
    word[..before.len()].copy_from_slice(before);
    // SAFETY: by contract.
    unsafe {
        core::ptr::copy_nonoverlapping(from, word.as_mut_ptr().add(before.len()), count);
        put(to, u64::from_ne_bytes(word));
    }
}

/// # Safety
/// `to` must be mapped and aligned to 8.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn put(to: *mut u8, word: u64) {
    // SAFETY: by contract.
    unsafe { core::arch::x86_64::_mm_stream_si64(to.cast(), word as i64) }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::packet::Rest;

    /// Every way in which head and rest can lie over words: the record holds the frame, and no byte behind it is touched
    /// but the padding of its last word.
    #[test]
    fn a_streamed_record_holds_the_frame_and_ends_with_its_last_word() {
        let bytes: Vec<u8> = (1..=96).collect();
        for head in 0..=40 {
            for rest in 0..=40 {
                if head + rest == 0 {
                    continue;
                }
                let (head, rest) = bytes[..head + rest].split_at(head);
                let packet = PacketRef { head, rest: Rest::from_slice(rest) };
                let mut memory = [u64::from_ne_bytes([0xee; 8]); 16];
                // SAFETY: 16 words hold the header and 80 bytes.
                unsafe { record(0x1234, &packet, memory.as_mut_ptr().cast()) };
                fence();
                let len = head.len() + rest.len();
                let written: Vec<u8> = memory.iter().flat_map(|word| word.to_ne_bytes()).collect();
                assert_eq!(memory[0], 0x1234);
                assert_eq!(written[8..8 + len], bytes[..len], "{} and {}", head.len(), rest.len());
                let end = 8 + len.next_multiple_of(8);
                assert!(written[8 + len..end].iter().all(|byte| *byte == 0));
                assert!(written[end..].iter().all(|byte| *byte == 0xee), "{} and {}", head.len(), rest.len());
            }
        }
    }
}
