//! Unpacked images, by digest, under `<state>/images`: made aside, checked, renamed into place.

use std::cell::OnceCell;
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::files::{Files, decompress};
use super::layer::{Unpacker, remove_tree};
use super::limits;
use super::manifest::{Layer, Manifest, hexadecimal};
use super::quote;
use crate::error::Attempt;
use crate::{Layout, Result};

/// What an image is called while it is being unpacked.
const UNFINISHED: &str = ".new-";

/// The directory of unpacked images.
pub(super) struct Store {
    dir: PathBuf,
    /// Held by whoever unpacks anything, one at a time: there is one disk.
    lock: OnceCell<File>,
}

impl Store {
    /// Opens it.
    pub(super) fn open(layout: &Layout) -> Result<Self> {
        let dir = layout.images();
        let what = || format!("opening the image store {}", dir.display());
        fs::create_dir_all(&dir).attempt(what)?;
        // An image may hold anything; nobody on the host but root gets near it.
        fs::set_permissions(&dir, Permissions::from_mode(0o700)).attempt(what)?;
        Ok(Self { dir, lock: OnceCell::new() })
    }

    /// Where it is.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where to put what is not finished. Others that unpack wait from then on until this is dropped; what one that was killed has left
    /// is removed.
    pub(super) fn scratch(&self) -> io::Result<&Path> {
        if self.lock.get().is_none() {
            let lock = File::create(self.dir.join(".lock"))?;
            lock.lock()?;
            for entry in fs::read_dir(&self.dir)?.flatten() {
                if entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
                    remove_tree(&entry.path())?;
                }
            }
            let _ = self.lock.set(lock);
        }
        Ok(&self.dir)
    }

    /// The image's root filesystem, unpacked now if it is not there yet.
    pub(super) fn rootfs(&self, manifest: &Manifest, files: &Files) -> io::Result<PathBuf> {
        let place = self.dir.join(&manifest.digest);
        if place.is_dir() {
            return Ok(place);
        }
        let aside = self.scratch()?.join(format!("{UNFINISHED}{}", manifest.digest));
        // Another one may have unpacked it while this one waited.
        if !place.is_dir() {
            let unpacked = unpack(&aside, manifest, files).and_then(|()| fs::rename(&aside, &place));
            if unpacked.is_err() {
                let _ = remove_tree(&aside);
            }
            unpacked?;
            tracing::info!(digest = manifest.digest, layers = manifest.layers.len(), "unpacked an image");
        }
        Ok(place)
    }
}

fn unpack(root: &Path, manifest: &Manifest, files: &Files) -> io::Result<()> {
    fs::create_dir(root)?;
    fs::set_permissions(root, Permissions::from_mode(0o755))?;
    let mut unpacker = Unpacker::new(root)?;
    let mut may_read = limits::STREAM_BYTES;
    for (number, layer) in manifest.layers.iter().enumerate() {
        apply(&mut unpacker, layer, files, &mut may_read)
            .map_err(|error| io::Error::new(error.kind(), format!("layer {}: {error}", number + 1)))?;
    }
    // Before it gets its name, so that a power failure cannot leave a named image with holes.
    rustix::fs::syncfs(File::open(root)?)?;
    Ok(())
}

/// Unpacks a layer and checks that all of it, trailing bytes included, was what the digests say.
fn apply(unpacker: &mut Unpacker, layer: &Layer, files: &Files, may_read: &mut u64) -> io::Result<()> {
    let mut packed = Hashed::new(files.open(&layer.name)?);
    let plain = limits::Bounded::new(decompress(&mut packed)?, may_read);
    let mut plain = Hashed::new(plain);
    unpacker.layer(&mut plain)?;
    let diff_id = plain.finish()?;
    let digest = packed.finish()?;
    if diff_id != layer.diff_id || layer.digest.as_ref().is_some_and(|wanted| *wanted != digest) {
        return Err(io::Error::other(format!("{} is not what its digest says", quote::path(&layer.name))));
    }
    Ok(())
}

/// A reader that computes SHA-256 of what passes.
struct Hashed<R> {
    source: R,
    hash: Sha256,
}

impl<R: Read> Hashed<R> {
    fn new(source: R) -> Self {
        Self { source, hash: Sha256::new() }
    }

    /// Reads the rest, and returns the digest of everything.
    fn finish(mut self) -> io::Result<String> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(hexadecimal(&self.hash.finalize()))
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.hash.update(&buffer[..read]);
        Ok(read)
    }
}
