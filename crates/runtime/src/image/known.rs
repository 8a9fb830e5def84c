//! What compressed archives were found to be: to see which image one holds, all of it is decompressed, which is done once for each file.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Image;
use super::manifest::hexadecimal;

/// Times of files go in steps of up to ten milliseconds: what was changed less than this ago may be changed again within the same one.
const SETTLED: Duration = Duration::from_millis(100);

/// The image with a tag in a compressed archive, as it was found or is to be.
pub(super) struct Known {
    /// Where it stands: one place for each path and tag.
    place: PathBuf,
    file: Identity,
    /// Whether who changes the file from now on changes its times.
    is_settled: bool,
}

/// By what a file is the same, with the same content. Who puts its other times back changes the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

#[derive(Serialize, Deserialize)]
struct Found {
    file: Identity,
    image: Image,
}

impl Known {
    /// `file` was opened at `path`; `images` is the store's directory.
    pub(super) fn of(images: &Path, path: &Path, tag: Option<&str>, file: &File) -> io::Result<Self> {
        let mut name = Sha256::new();
        name.update(path.as_os_str().as_bytes());
        name.update(tag.map(|tag| format!("\0{tag}")).unwrap_or_default());
        let place = images.join(format!(".archive-{}", hexadecimal(&name.finalize())));
        let (file, is_settled) = look_at(file)?;
        Ok(Self { place, file, is_settled })
    }

    /// The image, if it was found in this very file and is there.
    pub(super) fn image(&self) -> Option<Image> {
        let found: Found = serde_json::from_slice(&fs::read(&self.place).ok()?).ok()?;
        let is_here = found.image.rootfs.parent() == self.place.parent() && found.image.rootfs.is_dir();
        (found.file == self.file && is_here).then_some(found.image)
    }

    /// The image was found in `file`: so it is as long as that has not been changed since before it was read. Without this it is only
    /// found once more.
    pub(super) fn keep(&self, file: &File, image: &Image) -> io::Result<()> {
        if !self.is_settled || look_at(file)?.0 != self.file {
            return Ok(());
        }
        let mut new = tempfile::NamedTempFile::new_in(self.place.parent().unwrap_or(Path::new("/")))?;
        new.write_all(&serde_json::to_vec(&Found { file: self.file, image: image.clone() })?)?;
        new.persist(&self.place)?;
        Ok(())
    }
}

fn look_at(file: &File) -> io::Result<(Identity, bool)> {
    let meta = file.metadata()?;
    let identity = Identity {
        device: meta.dev(),
        inode: meta.ino(),
        size: meta.size(),
        modified: (meta.mtime(), meta.mtime_nsec()),
        changed: (meta.ctime(), meta.ctime_nsec()),
    };
    let since = Duration::new(meta.ctime().try_into().unwrap_or(0), meta.ctime_nsec().try_into().unwrap_or(0));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ok((identity, since + SETTLED <= now))
}
