//! The files of an image, by name: a directory, or a tar archive that is read in place.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use flate2::read::MultiGzDecoder;
use tar::EntryType;

use super::limits;
use super::quote;
use super::store::Store;
use super::zstd::Frames;

/// Where manifest, configuration and layers are read from.
pub(super) enum Files {
    Directory(PathBuf),
    Archive { file: File, index: HashMap<PathBuf, Place> },
}

/// What an archive has under a name.
pub(super) enum Place {
    Content { offset: u64, size: u64 },
    Link(PathBuf),
}

impl Files {
    /// Opens a tar archive. A compressed one is unpacked to a file without a name in the store first.
    pub(super) fn archive(mut file: File, store: &Store) -> io::Result<Self> {
        if is_compressed(&file)? {
            let mut plain = tempfile::tempfile_in(store.scratch()?)?;
            let content = decompress(BufReader::new(file))?;
            io::copy(&mut limits::Bounded::new(content, &mut { limits::IMAGE_BYTES }), &mut plain)?;
            plain.flush()?;
            file = plain;
        }
        file.seek(SeekFrom::Start(0))?;
        let index = index(&file)?;
        Ok(Self::Archive { file, index })
    }

    /// Opens a file of the image.
    pub(super) fn open(&self, name: &Path) -> io::Result<Box<dyn Read + '_>> {
        match self {
            Self::Directory(dir) => Ok(Box::new(BufReader::new(open_file(&dir.join(plain(name)?))?))),
            Self::Archive { file, index } => {
                let (offset, size) = locate(index, name)?;
                Ok(Box::new(BufReader::with_capacity(1 << 16, Section { file, offset, left: size })))
            }
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::Directory(dir) => dir.join(name).is_file(),
            Self::Archive { index, .. } => index.contains_key(Path::new(name)),
        }
    }

    /// Reads a small file whole.
    pub(super) fn read(&self, name: &Path) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        limits::Bounded::new(self.open(name)?, &mut { limits::DOCUMENT_BYTES }).read_to_end(&mut text)?;
        Ok(text)
    }
}

/// Whether an archive is, by its first bytes.
pub(super) fn is_compressed(file: &File) -> io::Result<bool> {
    let mut magic = [0; 4];
    let length = file.read_at(&mut magic, 0)?;
    Ok(Compression::of(&magic[..length]) != Compression::None)
}

/// Opens what must be a file. Nobody waits for the other end of a FIFO.
pub(super) fn open_file(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
}

/// How a stream is compressed, by its first bytes.
#[derive(Debug, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    fn of(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            _ => Self::None,
        }
    }
}

/// The plain content of a stream that may be compressed with gzip or zstd.
pub(super) fn decompress<'a>(mut stream: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut start = Vec::with_capacity(4);
    stream.by_ref().take(4).read_to_end(&mut start)?;
    let compression = Compression::of(&start);
    let whole = io::Cursor::new(start).chain(stream);
    Ok(match compression {
        Compression::None => Box::new(whole),
        Compression::Gzip => Box::new(MultiGzDecoder::new(whole)),
        Compression::Zstd => Box::new(Frames::new(whole)),
    })
}

fn index(file: &File) -> io::Result<HashMap<PathBuf, Place>> {
    let mut places = HashMap::new();
    let may_read = Cell::new(limits::ARCHIVE_HEADER_BYTES);
    let mut archive = tar::Archive::new(limits::Headers::new(BufReader::new(file), &may_read));
    for entry in archive.entries_with_seek()? {
        let entry = entry?;
        let name = plain(&entry.path()?)?;
        let place = match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => {
                Place::Content { offset: entry.raw_file_position(), size: entry.size() }
            }
            // Older `docker save` writes a layer that occurs twice as a link to its first place.
            EntryType::Symlink => {
                let target = entry.link_name()?.unwrap_or_default();
                Place::Link(lexical(name.parent().unwrap_or(Path::new("")), &target)?)
            }
            EntryType::Link => Place::Link(plain(&entry.link_name()?.unwrap_or_default())?),
            _ => continue,
        };
        if places.len() >= limits::ARCHIVE_FILES {
            return Err(io::Error::other("the archive holds too many files"));
        }
        places.insert(name, place);
    }
    Ok(places)
}

fn locate(index: &HashMap<PathBuf, Place>, name: &Path) -> io::Result<(u64, u64)> {
    const LINKS: usize = 8;
    let mut name = plain(name)?;
    for _ in 0..LINKS {
        match index.get(&name) {
            Some(Place::Content { offset, size }) => return Ok((*offset, *size)),
            Some(Place::Link(target)) => name = target.clone(),
            None => break,
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("the archive has no file {}", quote::path(&name))))
}

/// A relative path without `.`; one that is absolute or has `..` is an error.
fn plain(path: &Path) -> io::Result<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::CurDir => {}
            _ => return Err(io::Error::other(format!("{} leads out of the image", quote::path(path)))),
        }
    }
    Ok(plain)
}

/// `target` as seen from `dir`, within the archive.
fn lexical(dir: &Path, target: &Path) -> io::Result<PathBuf> {
    let mut at = dir.to_path_buf();
    for part in target.components() {
        let stays = match part {
            Component::Normal(name) => {
                at.push(name);
                true
            }
            Component::CurDir => true,
            Component::ParentDir => at.pop(),
            _ => false,
        };
        if !stays {
            return Err(io::Error::other(format!("{} leads out of the archive", quote::path(target))));
        }
    }
    Ok(at)
}

/// Part of a file, read by position, so that several may be read at once.
struct Section<'a> {
    file: &'a File,
    offset: u64,
    left: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = self.file.read_at(&mut buffer[..length], self.offset)?;
        self.offset += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}

/// Whether `dir` looks like an OCI image layout.
pub(super) fn is_layout(dir: &Path) -> bool {
    fs::metadata(dir.join("oci-layout")).is_ok_and(|meta| meta.is_file())
}
