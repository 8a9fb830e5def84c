//! Images: what a descriptor names, as a root filesystem directory and the image's defaults.

mod files;
mod known;
mod layer;
mod limits;
mod manifest;
mod quote;
mod store;
mod user;
mod zstd;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Attempt;
use crate::{Error, Layout, Result};

use files::Files;
use known::Known;
use manifest::Manifest;
use store::Store;
pub use user::{USER, User};

/// Where an image comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A directory that is a root filesystem. Used in place; no defaults.
    Rootfs(PathBuf),
    /// An OCI image layout directory (image-spec 1.x, `oci-layout` and `index.json`).
    OciLayout {
        /// The directory.
        directory: PathBuf,
        /// `org.opencontainers.image.ref.name`; needed only if the index names several images for this machine.
        tag: Option<String>,
    },
    /// A tar archive of an OCI image layout, or what `docker save` writes; may be compressed with gzip or zstd.
    Archive {
        /// The file.
        file: PathBuf,
        /// Tag, or `repository:tag`; needed only if the archive holds several images.
        tag: Option<String>,
    },
}

/// A root filesystem and what its image says of how to run it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The root filesystem; owned by the host's uids 0 to 65535 as the image says.
    pub rootfs: PathBuf,
    /// The image's defaults.
    pub config: ImageConfig,
    /// Who runs in it: the image's own user, or an ordinary one where that is root.
    pub user: User,
    /// `sha256:...` of manifest or configuration; none for a plain directory.
    pub digest: Option<String>,
}

/// Defaults of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// Program and first arguments.
    pub entrypoint: Vec<String>,
    /// Further arguments, or program and arguments if there is no entrypoint.
    pub cmd: Vec<String>,
    /// `NAME=value`.
    pub env: Vec<String>,
    /// `user[:group]`, by number or by name of the image's own `/etc/passwd`; empty: none said.
    pub user: String,
    /// Absolute, or empty.
    pub working_directory: String,
}

/// Why an image is refused.
#[derive(Debug, thiserror::Error)]
#[error("image {}: {reason}", .source_path.display())]
pub struct ImageError {
    /// The directory or file that was named.
    pub source_path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

impl Image {
    /// Makes the image's root filesystem available: in place for a directory, else unpacked once under
    /// `<state>/images/<digest>`. Blobs are checked against their digests; archives that try to leave their directory, hold
    /// device nodes or grow out of bounds are refused.
    pub fn resolve(layout: &Layout, source: &Source) -> Result<Self> {
        if let Source::Rootfs(path) = source {
            return Self::of_directory(path);
        }
        let store = Store::open(layout)?;
        match source {
            Source::OciLayout { directory, .. } if !files::is_layout(directory) => {
                Err(refused(directory, "it is not an OCI image layout: it has no file oci-layout"))
            }
            Source::OciLayout { directory, tag } => {
                Self::find(&store, directory, &Files::Directory(directory.clone()), tag.as_deref())
            }
            Source::Archive { file, tag } => Self::of_archive(&store, file, tag.as_deref()),
            Source::Rootfs(_) => unreachable!("handled above"),
        }
    }

    /// Of a compressed archive that has not changed since it was found there.
    fn of_archive(store: &Store, path: &Path, tag: Option<&str>) -> Result<Self> {
        let io_failed = |error: io::Error| refused(path, error.to_string());
        let file = files::open_file(path).map_err(io_failed)?;
        let known = if files::is_compressed(&file).map_err(io_failed)? {
            Some(Known::of(store.dir(), path, tag, &file).map_err(io_failed)?)
        } else {
            None
        };
        if let Some(image) = known.as_ref().and_then(Known::image) {
            return Ok(image);
        }
        let files = file.try_clone().and_then(|file| Files::archive(file, store)).map_err(io_failed)?;
        let image = Self::find(store, path, &files, tag)?;
        if let Some(Err(error)) = known.map(|known| known.keep(&file, &image)) {
            tracing::warn!("what {} holds is looked for anew each time: {error}", path.display());
        }
        Ok(image)
    }

    /// The image with a tag among these files, which are those at `path`.
    fn find(store: &Store, path: &Path, files: &Files, tag: Option<&str>) -> Result<Self> {
        let manifest = Manifest::find(files, tag).map_err(|reason| refused(path, reason))?;
        let rootfs = store.rootfs(&manifest, files).map_err(|error| refused(path, error.to_string()))?;
        let user = User::of(&manifest.config.user, &rootfs)?;
        Ok(Self { rootfs, config: manifest.config, user, digest: Some(format!("sha256:{}", manifest.digest)) })
    }

    /// A root filesystem as it lies there.
    pub(crate) fn of_directory(path: &Path) -> Result<Self> {
        let root = fs::canonicalize(path).attempt(|| format!("opening the root filesystem {}", path.display()))?;
        if !root.is_dir() || root == Path::new("/") {
            return Err(refused(path, "it is not a directory with a root filesystem"));
        }
        Ok(Self { user: User::of("", &root)?, rootfs: root, config: ImageConfig::default(), digest: None })
    }
}

fn refused(path: &Path, reason: impl Into<String>) -> Error {
    ImageError { source_path: path.into(), reason: quote::reason(&reason.into()) }.into()
}

impl Source {
    /// The path that was named.
    pub fn path(&self) -> &Path {
        match self {
            Self::Rootfs(path) | Self::OciLayout { directory: path, .. } | Self::Archive { file: path, .. } => path,
        }
    }
}
