//! The neighbours that are resolved: told to a process that replaces this one, and written down for one that comes after it.
//! A UPF that was killed need not ask for them while packets wait.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hashbrown::HashMap;

/// Between two writings.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// So many are written down. UEs can have any number of them asked for.
const WRITTEN_MAX: usize = 4_096;

/// A neighbour, on the port of this name, and its Ethernet address.
pub type Known = (String, IpAddr, [u8; 6]);

/// The neighbours that are resolved, as the slow path shows them.
#[derive(Clone, Debug, Default)]
pub struct Acquaintances(Arc<Mutex<Book>>);

#[derive(Debug, Default)]
struct Book {
    known: HashMap<(String, IpAddr), [u8; 6]>,
    /// Where they are written down.
    file: Option<PathBuf>,
    /// Whether there are others than those written down.
    is_news: bool,
    /// When they were last written down.
    written: Option<Instant>,
}

impl Acquaintances {
    /// The neighbour has this Ethernet address, or is not resolved any more.
    pub fn note(&self, port: &str, address: IpAddr, mac: Option<[u8; 6]>) {
        let mut book = self.lock();
        let key = (port.to_owned(), address);
        match mac {
            Some(mac) => book.known.insert(key, mac),
            None => book.known.remove(&key),
        };
        book.is_news = true;
    }

    /// All of them.
    pub fn all(&self) -> Vec<Known> {
        self.lock().all()
    }

    /// Has them written into `file` from now on.
    pub fn keep_in(&self, file: PathBuf) {
        let mut book = self.lock();
        (book.file, book.is_news) = (Some(file), true);
    }

    /// Writes them down if there are others, and they were not just written. What is not there the next process asks for.
    pub fn write_down(&self, now: Instant) {
        let mut book = self.lock();
        let is_due = book.written.is_none_or(|written| now.saturating_duration_since(written) >= WRITE_EVERY);
        if !book.is_news || !is_due {
            return;
        }
        let Some(file) = book.file.clone() else { return };
        (book.is_news, book.written) = (false, Some(now));
        let mut known = book.all();
        drop(book);
        known.truncate(WRITTEN_MAX);
        if let Err(error) = write(&file, &known) {
            tracing::debug!(%error, "neighbours are not written down");
            self.lock().is_news = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn all(&self) -> Vec<Known> {
        self.known.iter().map(|((port, address), mac)| (port.clone(), *address, *mac)).collect()
    }
}

/// A process that dies meanwhile leaves what was there before.
fn write(file: &Path, known: &[Known]) -> io::Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, postcard::to_allocvec(known).map_err(io::Error::other)?)?;
    fs::rename(new, file)
}

/// Those that were written into `file`, if it can be read.
pub fn read(file: &Path) -> Vec<Known> {
    fs::read(file).ok().and_then(|octets| postcard::from_bytes(&octets).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_found_again_by_the_next_process_as_they_were_last() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("neighbours");
        let (own, gone) = ("10.3.0.9".parse().unwrap(), "fd00::9".parse().unwrap());
        let (acquaintances, begin) = (Acquaintances::default(), Instant::now());
        acquaintances.note("n3", own, Some([2, 0, 0, 0, 0, 8]));
        acquaintances.note("n6", gone, Some([2, 0, 0, 0, 0, 7]));
        acquaintances.write_down(begin);
        assert!(!file.exists(), "nobody has asked for it");
        acquaintances.keep_in(file.clone());
        acquaintances.write_down(begin);
        assert_eq!(read(&file).len(), 2);
        acquaintances.note("n3", own, Some([2, 0, 0, 0, 0, 9]));
        acquaintances.note("n6", gone, None);
        acquaintances.write_down(begin);
        assert_eq!(read(&file).len(), 2, "not again at once");
        acquaintances.write_down(begin + WRITE_EVERY);
        assert_eq!(read(&file), [("n3".into(), own, [2, 0, 0, 0, 0, 9])]);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn whatever_is_in_the_file_is_read_or_is_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("neighbours");
        assert_eq!(read(&file), []);
        for octets in [&b""[..], b"\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x01\x02n3\x00\x0a"] {
            fs::write(&file, octets).unwrap();
            assert_eq!(read(&file), [], "{octets:?}");
        }
    }
}
