//! The lock that makes a node the only one of its directories.
//!
//! Keeper and daemon share one open file description, so that the lock is held as long as either lives.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

/// Takes the lock; none where another node holds it.
pub(crate) fn take(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).read(true).mode(0o640).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Whether a node runs. Looks without taking, so that looking never keeps one from starting for longer than a moment.
pub(crate) fn is_held(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holds_the_lock_and_a_copy_of_its_descriptor_keeps_it() {
        let dir = std::env::temp_dir().join(format!("kaista-lock-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("lock");
        assert!(!is_held(&path).unwrap());
        let first = take(&path).unwrap().unwrap();
        assert!(take(&path).unwrap().is_none());
        let copy = first.try_clone().unwrap();
        drop(first);
        assert!(is_held(&path).unwrap());
        drop(copy);
        assert!(!is_held(&path).unwrap());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
