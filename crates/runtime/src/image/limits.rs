//! How much of an image is accepted. Generous for what exists, and an end for what never would.

use std::cell::Cell;
use std::io::{self, Read, Seek, SeekFrom};

/// Unpacked, all layers together.
pub(super) const IMAGE_BYTES: u64 = 16 << 30;
/// Layers as they are read, all together: what lies between and behind their files as well.
pub(super) const STREAM_BYTES: u64 = 2 * IMAGE_BYTES;
/// Index, manifest, configuration: each.
pub(super) const DOCUMENT_BYTES: u64 = 4 << 20;
/// Files, directories and links, all layers together.
pub(super) const ENTRIES: u64 = 2_000_000;
/// Files of an archive of an image.
pub(super) const ARCHIVE_FILES: usize = 100_000;
/// What stands before the content of one entry of a layer: names, attributes, where the holes of a sparse file are.
pub(super) const HEADER_BYTES: u64 = 1 << 20;
/// The same, of all files of an archive of an image.
pub(super) const ARCHIVE_HEADER_BYTES: u64 = 64 << 20;
/// What indexes name, be it an image or a further index.
pub(super) const DESCRIPTORS: usize = 4_096;
/// Layers.
pub(super) const LAYERS: usize = 512;
/// Directories within each other.
pub(super) const DEPTH: usize = 128;

/// A reader that fails, rather than ends, where its source is longer than allowed. What one leaves of its limit is the next one's.
pub(super) struct Bounded<'a, R> {
    source: R,
    left: &'a mut u64,
}

impl<'a, R: Read> Bounded<'a, R> {
    pub(super) fn new(source: R, left: &'a mut u64) -> Self {
        Self { source, left }
    }
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        *self.left = self.left.checked_sub(read as u64).ok_or_else(|| io::Error::other("it is too large"))?;
        Ok(read)
    }
}

/// A tar stream of which only so much may be read at a time. The tar crate takes into memory what it finds before an entry's
/// content, however long that says it is.
pub(super) struct Headers<'a, R> {
    source: R,
    left: &'a Cell<u64>,
}

impl<'a, R> Headers<'a, R> {
    /// `left`: how much may be read until somebody says otherwise.
    pub(super) fn new(source: R, left: &'a Cell<u64>) -> Self {
        Self { source, left }
    }
}

impl<R: Read> Read for Headers<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        let left = self.left.get().checked_sub(read as u64);
        self.left.set(left.ok_or_else(|| io::Error::other("what stands before the content of an entry is too long"))?);
        Ok(read)
    }
}

impl<R: Seek> Seek for Headers<'_, R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.source.seek(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_may_read_together_does_not_begin_anew_with_each() {
        let mut left = 5;
        let mut read =
            |bytes: usize| Bounded::new(io::repeat(0).take(bytes as u64), &mut left).read_to_end(&mut vec![]);
        assert_eq!(read(3).unwrap(), 3);
        assert_eq!(read(2).unwrap(), 2);
        assert!(read(1).unwrap_err().to_string().contains("too large"));
    }
}
