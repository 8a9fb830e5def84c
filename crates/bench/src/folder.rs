//! A directory for the sockets of one run.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;

/// Of the next directory.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The directory, which is removed with all that is in it when this is dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// A new directory that only this user can enter.
    pub fn new() -> anyhow::Result<Self> {
        loop {
            let name = format!("kaista-bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            match DirBuilder::new().mode(0o700).create(&path) {
                // Of a process that had the same number and was killed: numbers repeat, in containers soon.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => {
                    return made
                        .map(|()| Self(path.clone()))
                        .with_context(|| format!("cannot make {}", path.display()));
                }
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_process_of_this_number_has_left_is_passed_over() {
        // Other tests take numbers meanwhile.
        let next = NEXT.load(Ordering::Relaxed);
        let path = |number: u32| std::env::temp_dir().join(format!("kaista-bench-{}-{number}", std::process::id()));
        let left: Vec<_> = (next..next + 20).map(path).filter(|path| std::fs::create_dir(path).is_ok()).collect();
        let made = Folder::new();
        left.iter().for_each(|path| std::fs::remove_dir(path).expect("it was made here"));
        assert!(!left.contains(&made.expect("a folder").path().to_owned()));
    }
}
