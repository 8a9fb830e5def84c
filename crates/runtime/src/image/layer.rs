//! Layers, unpacked onto each other by somebody who does not trust them.
//!
//! Every name is opened from the root's own descriptor, with the kernel following links within that root (`openat2` with
//! `RESOLVE_IN_ROOT`), and the last part of a name is never followed. So an archive cannot reach outside whatever it holds.
//! Owners must be ids that a function has, set-id bits and extended attributes are not carried over: no container could
//! use them, and a user of the host could.

use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, chownat, fchmod, fchown,
    fstat, futimens, linkat, mkdirat, mknodat, openat, openat2, readlinkat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};

use super::{limits, quote};
use crate::IdRange;

/// The directory into which the layers of one image go.
pub(super) struct Unpacker {
    root: OwnedFd,
    /// The directory that was used last; entries come directory by directory.
    last: Option<(PathBuf, OwnedFd)>,
    /// Inodes that the current layer made: an opaque directory hides only what older layers did.
    made: HashSet<u64>,
    /// Inodes of directories in which nothing is left of what older layers did.
    opaque: HashSet<u64>,
    entries: u64,
    bytes: u64,
}

impl Unpacker {
    pub(super) fn new(root: &Path) -> io::Result<Self> {
        let root = openat(CWD, root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { root, last: None, made: HashSet::new(), opaque: HashSet::new(), entries: 0, bytes: 0 })
    }

    /// Unpacks one layer, given as a plain tar stream, over those before.
    pub(super) fn layer(&mut self, stream: impl Read) -> io::Result<()> {
        self.made.clear();
        self.opaque.clear();
        // Some tools leave out the padding at the end; nothing can hide behind it, the stream has a digest.
        let stream = stream.chain(io::repeat(0).take(2048));
        let may_read = Cell::new(limits::HEADER_BYTES);
        let mut archive = Archive::new(limits::Headers::new(stream, &may_read));
        for entry in archive.entries()? {
            let mut entry = entry?;
            may_read.set(u64::MAX);
            let name = entry.path_bytes().into_owned();
            self.entry(&mut entry, Path::new(OsStr::from_bytes(&name))).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", quote::name(&String::from_utf8_lossy(&name))))
            })?;
            // What nobody wanted of it is not the next one's header.
            io::copy(&mut entry, &mut io::sink())?;
            may_read.set(limits::HEADER_BYTES);
        }
        Ok(())
    }

    fn entry(&mut self, entry: &mut Entry<'_, impl Read>, path: &Path) -> io::Result<()> {
        self.count()?;
        self.hold(entry.size())?;
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader | EntryType::XHeader) {
            return Ok(());
        }
        let path = plain(path)?;
        let Some(name) = path.file_name().map(OsStr::to_owned) else { return Ok(()) };
        if matches!(kind, EntryType::Char | EntryType::Block) && path.starts_with("dev") {
            // A container has a /dev of its own; some base images bring one all the same.
            return Ok(());
        }
        self.open_parent(&path)?;
        if let Some(hidden) = name.as_bytes().strip_prefix(b".wh.") {
            return self.whiteout(OsStr::from_bytes(hidden));
        }
        match kind {
            EntryType::Directory => self.directory(entry, &name),
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => self.file(entry, &name),
            EntryType::Symlink => self.symlink(entry, &name),
            EntryType::Link => self.hard_link(entry, &name),
            EntryType::Fifo => self.fifo(entry, &name),
            EntryType::Char | EntryType::Block => Err(io::Error::other("a device node is not accepted")),
            other => Err(io::Error::other(format!("an entry of type {other:?} is not accepted"))),
        }
    }

    /// Directories that an entry has made on its way count, too: one name may have a hundred of them.
    fn count(&mut self) -> io::Result<()> {
        self.entries += 1;
        if self.entries > limits::ENTRIES { Err(io::Error::other("it holds too many files")) } else { Ok(()) }
    }

    /// Counts the content of any entry, wanted or not: all of it is read, and of a sparse one the size is that of the file, not
    /// that of what the archive holds of it.
    fn hold(&mut self, size: u64) -> io::Result<()> {
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > limits::IMAGE_BYTES { Err(io::Error::other("the image is too large")) } else { Ok(()) }
    }

    fn directory(&mut self, entry: &Entry<'_, impl Read>, name: &OsStr) -> io::Result<()> {
        let owner = owner(entry)?;
        let parent = self.parent();
        let there = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
        if !there.is_ok_and(|meta| FileType::from_raw_mode(meta.st_mode).is_dir()) {
            self.clear(name)?;
            mkdirat(self.parent(), name, Mode::RWXU)?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = openat(self.parent(), name, flags, Mode::empty())?;
        fchown(&dir, Some(owner.0), Some(owner.1))?;
        fchmod(&dir, Mode::from_raw_mode(entry.header().mode()? & 0o1777))?;
        self.remember(name)
    }

    fn file(&mut self, entry: &mut Entry<'_, impl Read>, name: &OsStr) -> io::Result<()> {
        let (owner, mode, time) = (owner(entry)?, entry.header().mode()? & 0o777, entry.header().mtime()?);
        self.clear(name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(self.parent(), name, flags, Mode::RUSR | Mode::WUSR)?);
        let size = entry.size();
        if io::copy(&mut entry.take(size), &mut file)? != size {
            return Err(io::Error::other("its content is cut short"));
        }
        fchown(&file, Some(owner.0), Some(owner.1))?;
        fchmod(&file, Mode::from_raw_mode(mode))?;
        let time = Timespec { tv_sec: i64::try_from(time).unwrap_or(0), tv_nsec: 0 };
        futimens(&file, &Timestamps { last_access: time, last_modification: time })?;
        self.remember(name)
    }

    /// The target is only text: it is followed by whoever uses the image, within it.
    fn symlink(&mut self, entry: &Entry<'_, impl Read>, name: &OsStr) -> io::Result<()> {
        let owner = owner(entry)?;
        let target = entry.link_name_bytes().ok_or_else(|| io::Error::other("a link without a target"))?;
        if target.split(|byte| *byte == b'/').count() > limits::DEPTH {
            // Whoever looks by this name goes all that way, and links lead to links.
            return Err(io::Error::other("its target has too many parts"));
        }
        self.clear(name)?;
        symlinkat(OsStr::from_bytes(&target), self.parent(), name)?;
        chownat(self.parent(), name, Some(owner.0), Some(owner.1), AtFlags::SYMLINK_NOFOLLOW)?;
        self.remember(name)
    }

    fn hard_link(&mut self, entry: &Entry<'_, impl Read>, name: &OsStr) -> io::Result<()> {
        let target = entry.link_name_bytes().ok_or_else(|| io::Error::other("a link without a target"))?;
        let target = plain(Path::new(OsStr::from_bytes(&target)))?;
        let file = target.file_name().ok_or_else(|| io::Error::other("a link to the root"))?;
        let dir = self.open(target.parent().unwrap_or(Path::new("")))?;
        let meta = statat(&dir, file, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(meta.st_mode).is_dir() {
            return Err(io::Error::other("a hard link to a directory"));
        }
        let there = statat(self.parent(), name, AtFlags::SYMLINK_NOFOLLOW);
        if !there.is_ok_and(|there| there.st_ino == meta.st_ino) {
            self.clear(name)?;
            linkat(&dir, file, self.parent(), name, AtFlags::empty())?;
        }
        self.remember(name)
    }

    fn fifo(&mut self, entry: &Entry<'_, impl Read>, name: &OsStr) -> io::Result<()> {
        let owner = owner(entry)?;
        self.clear(name)?;
        mknodat(self.parent(), name, FileType::Fifo, Mode::from_raw_mode(entry.header().mode()? & 0o777), 0)?;
        chownat(self.parent(), name, Some(owner.0), Some(owner.1), AtFlags::SYMLINK_NOFOLLOW)?;
        self.remember(name)
    }

    /// `.wh.NAME` removes what older layers have there; `.wh..wh..opq` all that they have in this directory.
    fn whiteout(&mut self, hidden: &OsStr) -> io::Result<()> {
        match hidden.as_bytes() {
            b".wh..opq" => self.hide_older(),
            // Bookkeeping of the union filesystem that began this.
            other if other.starts_with(b".wh.") => Ok(()),
            b"" | b"." | b".." => Err(io::Error::other("a whiteout of nothing")),
            _ => self.clear(hidden),
        }
    }

    /// Once a layer: nothing older comes back, and going through all that is new again and again would take days.
    fn hide_older(&mut self) -> io::Result<()> {
        let dir = fstat(self.parent())?.st_ino;
        if self.opaque.insert(dir) {
            prune(self.parent(), &self.made)?;
        }
        Ok(())
    }

    /// Removes what is at `name` in the current directory, be it a file or a tree.
    fn clear(&mut self, name: &OsStr) -> io::Result<()> {
        match unlinkat(self.parent(), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = openat(self.parent(), name, flags, Mode::empty())?;
        prune(dir.as_fd(), &HashSet::new())?;
        unlinkat(self.parent(), name, AtFlags::REMOVEDIR)?;
        Ok(())
    }

    fn remember(&mut self, name: &OsStr) -> io::Result<()> {
        let meta = statat(self.parent(), name, AtFlags::SYMLINK_NOFOLLOW)?;
        self.made.insert(meta.st_ino);
        Ok(())
    }

    /// The directory of the entry at hand, opened by `open_parent`.
    fn parent(&self) -> std::os::fd::BorrowedFd<'_> {
        self.last.as_ref().map_or(self.root.as_fd(), |(_, dir)| dir.as_fd())
    }

    fn open_parent(&mut self, path: &Path) -> io::Result<()> {
        let parent = path.parent().unwrap_or(Path::new(""));
        // It cannot have been removed meanwhile: for that, its own parent would have become the last one.
        let current = self.last.as_ref().is_some_and(|(dir, _)| dir == parent);
        if !current {
            let dir = self.open(parent)?;
            self.last = Some((parent.to_path_buf(), dir));
        }
        Ok(())
    }

    /// Opens a directory of the image, links followed within it; makes what is missing. Begins at the end, since each look may have the
    /// kernel follow forty links.
    fn open(&mut self, path: &Path) -> io::Result<OwnedFd> {
        match self.open_in_root(path) {
            Err(Errno::NOENT) => {}
            answer => return Ok(answer?),
        }
        let (parent, name) = path.parent().zip(path.file_name()).ok_or(Errno::NOENT)?;
        let parent = self.open(parent)?;
        self.count()?;
        mkdirat(&parent, name, Mode::from_raw_mode(0o755))?;
        let made = self.open_in_root(path)?;
        self.made.insert(fstat(&made)?.st_ino);
        Ok(made)
    }

    fn open_in_root(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let dir = openat2(&self.root, path, flags, Mode::empty(), resolve)?;
        // Links can lead deeper than any one name does.
        let real = readlinkat(CWD, format!("/proc/self/fd/{}", dir.as_raw_fd()), Vec::new())?;
        if real.to_bytes().iter().filter(|byte| **byte == b'/').count() > limits::DEPTH * 2 {
            return Err(Errno::NAMETOOLONG);
        }
        Ok(dir)
    }
}

/// Empties a directory of everything but `kept` inodes and what leads to them. Nothing is followed.
fn prune(dir: impl AsFd, kept: &HashSet<u64>) -> io::Result<()> {
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let meta = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_kept = kept.contains(&meta.st_ino);
        if FileType::from_raw_mode(meta.st_mode).is_dir() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            prune(openat(&dir, name, flags, Mode::empty())?, kept)?;
            if !is_kept {
                match unlinkat(&dir, name, AtFlags::REMOVEDIR) {
                    // Something below it is kept.
                    Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        } else if !is_kept {
            unlinkat(&dir, name, AtFlags::empty())?;
        }
    }
    Ok(())
}

/// An entry's name within the image: leading slashes and `.` mean nothing, `..` is refused.
fn plain(path: &Path) -> io::Result<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::RootDir | Component::CurDir => {}
            _ => return Err(io::Error::other("a name that leads out of the image is not accepted")),
        }
    }
    if plain.components().count() > limits::DEPTH {
        return Err(io::Error::other("its directories are nested too deeply"));
    }
    Ok(plain)
}

fn owner(entry: &Entry<'_, impl Read>) -> io::Result<(Uid, Gid)> {
    let (uid, gid) = (entry.header().uid()?, entry.header().gid()?);
    let limit = u64::from(IdRange::SIZE);
    if uid >= limit || gid >= limit {
        return Err(io::Error::other(format!("its owner {uid}:{gid} is beyond the {limit} ids of a function")));
    }
    Ok((Uid::from_raw(uid as u32), Gid::from_raw(gid as u32)))
}

/// Removes a tree that may hold anything; nothing if it is not there.
pub(super) fn remove_tree(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_that_an_image_does_not_list_are_counted() {
        let root = tempfile::tempdir().expect("a directory");
        let mut unpacker = Unpacker::new(root.path()).expect("opened");
        unpacker.entries = limits::ENTRIES - 3;
        unpacker.open(Path::new("a/b")).expect("as many as it may have");
        unpacker.open(Path::new("a/b")).expect("they are there");
        unpacker.open(Path::new("a/b/c")).expect("the last one");
        assert!(unpacker.open(Path::new("a/d")).expect_err("refused").to_string().contains("too many files"));
    }
}
