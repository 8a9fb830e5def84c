//! How much of an image is accepted. Generous for what exists, and an end for what never would.

use std::io::{self, Read};

/// Unpacked, all layers together.
pub(super) const IMAGE_BYTES: u64 = 16 << 30;
/// Index, manifest, configuration: each.
pub(super) const DOCUMENT_BYTES: u64 = 4 << 20;
/// Files, directories and links, all layers together.
pub(super) const ENTRIES: u64 = 2_000_000;
/// Files of an archive of an image.
pub(super) const ARCHIVE_FILES: usize = 100_000;
/// Layers.
pub(super) const LAYERS: usize = 512;
/// Directories within each other.
pub(super) const DEPTH: usize = 128;

/// A reader that fails, rather than ends, where its source is longer than allowed.
pub(super) struct Bounded<R> {
    source: R,
    left: u64,
}

impl<R: Read> Bounded<R> {
    pub(super) fn new(source: R, limit: u64) -> Self {
        Self { source, left: limit }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| io::Error::other("it is too large"))?;
        Ok(read)
    }
}
