//! The body of a block before it is written: lines that grow at the end.

use std::ops::{Deref, Index, IndexMut};

use vport::tally::LINE_WORDS;

use super::blocks::Words;

/// Lines, all zero at first.
#[derive(Debug, Default)]
pub(super) struct Image(Vec<Words>);

impl Image {
    /// Adds lines, and returns where they begin.
    pub fn add(&mut self, lines: usize) -> usize {
        let at = self.0.len();
        self.0.resize(at + lines, [0; LINE_WORDS]);
        at
    }

    /// Adds lines with these words, and returns where they begin.
    pub fn append(&mut self, words: impl Iterator<Item = u64>) -> usize {
        let at = self.0.len();
        for (number, word) in words.enumerate() {
            if number % LINE_WORDS == 0 {
                self.add(1);
            }
            self.0[at + number / LINE_WORDS][number % LINE_WORDS] = word;
        }
        at
    }
}

impl Deref for Image {
    type Target = [Words];

    fn deref(&self) -> &[Words] {
        &self.0
    }
}

impl Index<usize> for Image {
    type Output = Words;

    fn index(&self, line: usize) -> &Words {
        &self.0[line]
    }
}

impl IndexMut<usize> for Image {
    fn index_mut(&mut self, line: usize) -> &mut Words {
        &mut self.0[line]
    }
}

/// A word of four quarters, the lowest first. What does not fit is of an image that is too large to be put down.
pub(super) fn quarters(parts: [usize; 4]) -> u64 {
    parts.into_iter().rev().fold(0, |word, part| word << 16 | part.min(usize::from(u16::MAX)) as u64)
}
