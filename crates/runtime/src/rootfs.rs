//! A container's root: the image below, a small skeleton above, mounted together read-only on the host.
//!
//! The skeleton holds the mount points and the descriptor's files, so the image needs neither. The image is mounted with its
//! owners moved into the function's uid range (an id-mapped mount), so that what belongs to root in the image belongs to
//! the container's powerless root, and nothing belongs to the host's.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Component, Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use crate::error::Attempt;
use crate::sandbox::remove_dir_all;
use crate::{Error, IdRange, Result, Sandbox, ffi};

/// Where tmpfs, proc and such are mounted: nothing may be laid there, it would not be seen.
const HIDDEN: &[&str] = &["proc", "sys", "dev", "tmp", "run"];

/// The root filesystem of one container, in its bundle.
pub(crate) struct Root<'a> {
    dir: &'a Path,
    image: &'a Path,
    ids: IdRange,
}

impl<'a> Root<'a> {
    pub(crate) fn new(dir: &'a Path, image: &'a Path, ids: IdRange) -> Self {
        Self { dir, image, ids }
    }

    /// Where the container's root is mounted.
    pub(crate) fn mount_point(dir: &Path) -> PathBuf {
        dir.join("rootfs")
    }

    /// Makes the skeleton anew and empty but for the usual mount points.
    pub(crate) fn begin(&self) -> Result<()> {
        remove_dir_all(&self.skeleton())?;
        self.make_dir(Path::new(""))?;
        for name in HIDDEN {
            self.mount_point_at(&Path::new("/").join(name))?;
        }
        Ok(())
    }

    /// A directory to mount something on, at an absolute path of the container.
    pub(crate) fn mount_point_at(&self, path: &Path) -> Result<()> {
        if is_hidden(path) && path.components().count() > 2 {
            // The OCI runtime makes it in the tmpfs that is mounted above.
            return Ok(());
        }
        let inside = resolve(self.image, path)?;
        let mut made = PathBuf::new();
        for part in &inside {
            made.push(part);
            self.make_dir(&made)?;
        }
        Ok(())
    }

    /// A file laid over the image, at an absolute path of the container.
    pub(crate) fn lay(&self, path: &Path, content: &[u8]) -> Result<()> {
        if is_hidden(path) {
            return Err(Error::Spec(format!("file {} would lie under a mount of the container", path.display())));
        }
        let inside = resolve(self.image, path)?;
        let (Some(parent), true) = (inside.parent(), inside.file_name().is_some()) else {
            return Err(Error::Spec(format!("file {} names no file", path.display())));
        };
        if self.image.join(&inside).is_dir() {
            return Err(Error::Spec(format!("file {} is a directory of the image", path.display())));
        }
        self.mount_point_at(&Path::new("/").join(parent))?;
        let file = self.skeleton().join(&inside);
        fs::write(&file, content).attempt(|| format!("writing {}", file.display()))?;
        self.own(&file, 0, 0, 0o644)
    }

    /// Whether the image or the skeleton has something at an absolute path.
    pub(crate) fn has(&self, path: &Path) -> bool {
        resolve(self.image, path)
            .is_ok_and(|inside| self.skeleton().join(&inside).exists() || self.image.join(&inside).exists())
    }

    /// Mounts skeleton and image together. What was mounted there before is gone.
    pub(crate) fn mount(&self, sandbox: &Sandbox) -> Result<()> {
        let (root, lower) = (Self::mount_point(self.dir), self.dir.join("lower"));
        for dir in [&root, &lower] {
            unmount_below(dir)?;
            fs::create_dir_all(dir).attempt(|| format!("making {}", dir.display()))?;
        }
        self.mount_image(&lower, sandbox)?;
        let options = overlay_options(&self.skeleton(), &lower)?;
        let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("overlay"), &root, Some("overlay"), flags, Some(options.as_os_str()))
            .attempt(|| format!("mounting the root filesystem {}", root.display()))?;
        // The overlay holds it now.
        unmount_below(&lower)?;
        remove_dir_all(&lower)
    }

    fn mount_image(&self, at: &Path, sandbox: &Sandbox) -> Result<()> {
        let what = || format!("mounting image {}", self.image.display());
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, self.image, flags).attempt(what)?;
        let user = fs::File::open(sandbox.user_path()).attempt(what)?;
        if let Err(error) = ffi::idmap_mount(tree.as_fd(), user.as_fd()) {
            // Files then belong to nobody inside; those that everybody may read still can be.
            tracing::warn!(image = %self.image.display(), %error, "no id-mapped mount; the image's files belong to nobody inside");
        }
        move_mount(tree, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).attempt(what)
    }

    fn skeleton(&self) -> PathBuf {
        self.dir.join("skeleton")
    }

    /// A directory of the skeleton, which hides the image's: so it takes over mode and owner.
    fn make_dir(&self, inside: &Path) -> Result<()> {
        let dir = self.skeleton().join(inside);
        if dir.is_dir() {
            return Ok(());
        }
        fs::create_dir(&dir).attempt(|| format!("making {}", dir.display()))?;
        match fs::symlink_metadata(self.image.join(inside)) {
            // The OCI runtime gives a tmpfs the mode of the directory that it is mounted on.
            _ if inside == Path::new("tmp") => self.own(&dir, 0, 0, 0o1777),
            Ok(meta) if meta.is_dir() && !inside.as_os_str().is_empty() => {
                self.own(&dir, meta.uid(), meta.gid(), meta.mode() & 0o1777)
            }
            _ => self.own(&dir, 0, 0, 0o755),
        }
    }

    fn own(&self, path: &Path, uid: u32, gid: u32, mode: u32) -> Result<()> {
        let inside = |id: u32| self.ids.first + if id < IdRange::SIZE { id } else { 0 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .and_then(|()| chown(path, Some(inside(uid)), Some(inside(gid))))
            .attempt(|| format!("setting owner and mode of {}", path.display()))
    }
}

/// Whether the container mounts something over this path.
pub(crate) fn is_hidden(path: &Path) -> bool {
    path.components().nth(1).is_some_and(|first| HIDDEN.iter().any(|name| first.as_os_str() == *name))
}

/// Where an absolute path of the container lies in its image, every symbolic link on the way followed as the container
/// would: relative to the image, never out of it. The last part may be missing.
pub(crate) fn resolve(image: &Path, path: &Path) -> Result<PathBuf> {
    const LINKS: usize = 40;
    if !path.is_absolute() {
        return Err(Error::Spec(format!("{} is not an absolute path", path.display())));
    }
    let parts = |path: &Path| -> Vec<OsString> { path.components().map(|c| c.as_os_str().to_owned()).collect() };
    let mut left: VecDeque<OsString> = parts(path).into();
    let (mut inside, mut links) = (PathBuf::new(), 0);
    while let Some(part) = left.pop_front() {
        match Path::new(&part).components().next() {
            Some(Component::RootDir) => inside.clear(),
            Some(Component::ParentDir) => drop(inside.pop()),
            Some(Component::Normal(name)) => match fs::read_link(image.join(&inside).join(name)) {
                Ok(target) => {
                    links += 1;
                    if links > LINKS {
                        return Err(Error::Spec(format!("{} leads through too many links", path.display())));
                    }
                    for part in parts(&target).into_iter().rev() {
                        left.push_front(part);
                    }
                }
                Err(_) => inside.push(name),
            },
            _ => {}
        }
    }
    Ok(inside)
}

/// `lowerdir` takes its list apart at colons and its options at commas.
fn overlay_options(upper: &Path, lower: &Path) -> Result<OsString> {
    let mut options = OsString::from("lowerdir=");
    for (n, dir) in [upper, lower].iter().enumerate() {
        if dir.as_os_str().as_encoded_bytes().iter().any(|byte| b":,\\\"".contains(byte)) {
            return Err(Error::Spec(format!(
                "{} cannot be mounted: choose a run directory without : , \\",
                dir.display()
            )));
        }
        if n > 0 {
            options.push(":");
        }
        options.push(dir);
    }
    Ok(options)
}

/// Unmounts `dir` and everything mounted below it, the last mounted first.
pub(crate) fn unmount_below(dir: &Path) -> Result<()> {
    for mount in mounts_below(dir)?.iter().rev() {
        match umount2(mount, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) | Ok(()) => {}
            Err(error) => return Err(error).attempt(|| format!("unmounting {}", mount.display())),
        }
    }
    Ok(())
}

/// Mount points at or below `dir`, in the order in which they were mounted.
fn mounts_below(dir: &Path) -> Result<Vec<PathBuf>> {
    // The kernel shows paths without symbolic links.
    let dir = match fs::canonicalize(dir) {
        Ok(dir) => dir,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).attempt(|| format!("resolving {}", dir.display())),
    };
    let table = fs::read("/proc/self/mountinfo").attempt(|| "reading /proc/self/mountinfo".into())?;
    let points = table.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    Ok(points.map(unescape).filter(|point| point.starts_with(&dir)).collect())
}

/// mountinfo writes space, tab, newline and backslash as `\` and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = (byte == b'\\' && tail.len() >= 3)
            .then(|| std::str::from_utf8(&tail[..3]).ok().and_then(|digits| u8::from_str_radix(digits, 8).ok()))
            .flatten();
        plain.push(octal.unwrap_or(byte));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(plain).into()
}

/// Whether a path may be mounted on: absolute, and no part of it `..`.
pub(crate) fn is_plain_absolute(path: &Path) -> bool {
    path.is_absolute() && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_of_an_image_are_followed_within_it() {
        let image = tempfile::tempdir().expect("a directory");
        let root = image.path();
        fs::create_dir_all(root.join("usr/lib")).expect("made");
        symlink("usr/lib", root.join("lib")).expect("made");
        symlink("/../../etc", root.join("escape")).expect("made");
        symlink("loop", root.join("loop")).expect("made");

        let at = |path: &str| resolve(root, Path::new(path));
        assert_eq!(at("/lib/x").expect("resolved"), Path::new("usr/lib/x"));
        assert_eq!(at("/escape/shadow").expect("resolved"), Path::new("etc/shadow"));
        assert_eq!(at("/../../a/../b").expect("resolved"), Path::new("b"));
        assert!(at("/loop/x").is_err());
        assert!(at("relative").is_err());
    }

    #[test]
    fn mount_points_are_read_as_the_kernel_escapes_them() {
        assert_eq!(unescape(b"/a\\040b\\134c"), Path::new("/a b\\c"));
        assert_eq!(unescape(b"/plain\\"), Path::new("/plain\\"));
    }
}
