//! A lone frame that is taken while the next one is put in its place.

use std::sync::Arc;

use super::{Depth, check, thread, without_fences};
use crate::lone::{LONE_MAX, Words, find, show};
use crate::packet::Slot;
#[cfg(loom)]
use crate::sync::{Weak, checked};

/// Three words: two in the head's line, one in the other.
const LEN: usize = 24;

/// What a model does not do right, on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Broken {
    #[cfg(loom)]
    words: Option<Weak>,
    writer_without_fences: bool,
    reader_without_fences: bool,
}

/// Where the record of frame `n` is.
fn position(n: u8) -> u64 {
    32 * u64::from(n)
}

/// Shows frame `n`, each byte of which is `n`.
fn show_frame(words: &Words, n: u8) {
    // SAFETY: as long as the longest.
    unsafe { show(words, position(n), LEN, [n; LONE_MAX].as_ptr()) }
}

/// One thread shows frames up to `last`, the other looks for each of them in turn so many times: it finds all of one, or
/// nothing.
fn replaced(depth: Depth, last: u8, looks: usize, broken: Broken) {
    check(depth, move || {
        #[cfg(loom)]
        checked::begin();
        let words: Arc<Words> = Arc::default();
        show_frame(&words, 1);
        share(&words, broken);
        let writer = thread::spawn({
            let words = words.clone();
            move || {
                if broken.writer_without_fences {
                    without_fences();
                }
                (2..=last).for_each(|n| show_frame(&words, n));
            }
        });
        if broken.reader_without_fences {
            without_fences();
        }
        let mut slot = Slot::new();
        for n in (1..=last).cycle().take(looks) {
            if let Some(len) = find(&words, position(n), &mut slot) {
                assert_eq!((len, slot.head()), (LEN, &[n; LEN][..]), "a frame of two parts");
            }
        }
        writer.join().unwrap();
        assert_eq!(find(&words, position(last), &mut slot), Some(LEN));
    });
}

/// The tags, and as many words as the frame has.
#[cfg(loom)]
fn share(words: &Words, broken: Broken) {
    let used = words[..=LEN / 8].iter().chain(words.last());
    used.for_each(|word| checked::share(word, broken.words));
}

#[cfg(not(loom))]
fn share(_: &Words, _: Broken) {}

#[test]
fn a_frame_is_taken_whole_or_not_at_all() {
    replaced(Depth::Whole, 2, 2, Broken::default());
    replaced(Depth::Interruptions(2), 3, 3, Broken::default());
}

/// Each ordering on which that rests, taken away.
#[cfg(loom)]
mod noticed {
    use super::*;

    fn broken(broken: Broken) {
        replaced(Depth::Whole, 2, 2, broken);
    }

    #[test]
    #[should_panic(expected = "a frame of two parts")]
    fn tags_set_without_release() {
        broken(Broken { words: Some(Weak::Store), ..Broken::default() });
    }

    #[test]
    #[should_panic(expected = "a frame of two parts")]
    fn tags_looked_at_without_acquire() {
        broken(Broken { words: Some(Weak::Load), ..Broken::default() });
    }

    #[test]
    #[should_panic(expected = "a frame of two parts")]
    fn tags_taken_away_without_a_fence() {
        broken(Broken { writer_without_fences: true, ..Broken::default() });
    }

    #[test]
    #[should_panic(expected = "a frame of two parts")]
    fn tags_looked_at_again_without_a_fence() {
        broken(Broken { reader_without_fences: true, ..Broken::default() });
    }
}
