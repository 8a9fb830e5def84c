//! 2 MiB pages for the time of a run: reserved where root asks for them, and given back afterwards.

use std::path::PathBuf;

const NR: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// Pages reserved for a run. Dropping it sets the number back to what it was.
pub struct Reservation {
    file: PathBuf,
    before: Option<u64>,
    /// Pages that are there now.
    pub pages: u64,
}

impl Reservation {
    /// Raises the number of pages to `wanted`, as far as the kernel can and this user may.
    pub fn at_least(wanted: u64) -> Self {
        Self::in_file(PathBuf::from(NR), wanted)
    }

    fn in_file(file: PathBuf, wanted: u64) -> Self {
        let before = read(&file);
        let mut reservation = Self { pages: before.unwrap_or(0), file, before: None };
        if before.is_some_and(|before| before < wanted) && std::fs::write(&reservation.file, wanted.to_string()).is_ok()
        {
            reservation.before = before;
            reservation.pages = read(&reservation.file).unwrap_or(0);
        }
        reservation
    }

    /// Why a run does without, where there are fewer than `wanted`.
    pub fn shortage(&self, wanted: u64) -> Option<String> {
        (self.pages < wanted)
            .then(|| format!("{} of {wanted} hugepages (reserve them as root: echo {wanted} > {NR})", self.pages))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // Nothing can be done about a failure here, and the pages are only reserved, not lost.
            let _ = std::fs::write(&self.file, before.to_string());
        }
    }
}

fn read(file: &std::path::Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Turns of this crate's tests with the pages that are there, of which those that run at once would want too many.
#[cfg(test)]
pub(crate) mod turns {
    use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

    static TURNS: RwLock<()> = RwLock::new(());

    /// For a test that takes many, and ordinary ones where none are left.
    pub fn with_others() -> RwLockReadGuard<'static, ()> {
        TURNS.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a test that cannot do without.
    pub fn alone() -> RwLockWriteGuard<'static, ()> {
        TURNS.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_with(name: &str, pages: u64) -> PathBuf {
        let file = std::env::temp_dir().join(format!("kaista-hugepages-{name}-{}", std::process::id()));
        std::fs::write(&file, pages.to_string()).expect("the temporary directory is writable");
        file
    }

    #[test]
    fn the_number_is_restored_when_the_run_ends() {
        let file = file_with("restore", 3);
        let reservation = Reservation::in_file(file.clone(), 64);
        assert_eq!((reservation.pages, read(&file)), (64, Some(64)));
        drop(reservation);
        assert_eq!(read(&file), Some(3));
        std::fs::remove_file(file).expect("it is there");
    }

    #[test]
    fn enough_pages_are_left_alone() {
        let file = file_with("enough", 512);
        drop(Reservation::in_file(file.clone(), 64));
        assert_eq!(read(&file), Some(512));
        std::fs::remove_file(file).expect("it is there");
    }

    #[test]
    fn a_kernel_without_hugepages_is_a_named_shortage() {
        let reservation = Reservation::in_file(PathBuf::from("/nonexistent/nr_hugepages"), 64);
        assert_eq!(reservation.pages, 0);
        assert!(reservation.shortage(64).expect("a shortage").starts_with("0 of 64 hugepages"));
    }
}
