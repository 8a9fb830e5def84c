//! A keeper that takes nothing for a while.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use vport::info::PortInfo;

use super::*;
use crate::control::wire::{self, Lines};

const LINK: &str = "s/a/p--pool/p";

/// What is kept of the pool's link when a keeper goes on that was stopped.
struct Site {
    directory: tempfile::TempDir,
    deposits: Arc<Deposits>,
    woken: Receiver<()>,
    keeper: UnixStream,
}

impl Site {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("run/s/pool-1")).unwrap();
        let (ours, keeper) = UnixStream::pair().unwrap();
        let (deposits, woken) = deposits(&directory, Keeper::at(ours));
        Self { directory, deposits, woken, keeper }
    }

    /// The keeper goes on, and so does who gives it what has come.
    fn go_on(&self) {
        let theirs = self.keeper.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut lines = Lines::new(theirs);
            while let Ok(Some(_)) = lines.next::<serde_json::Value>() {
                wire::send(lines.stream(), &"Done", &[]).unwrap();
            }
        });
        while self.woken.try_recv().is_ok() {}
        self.deposits.keep_all();
    }

    /// What the next daemon takes of what the keeper has.
    fn next(&self) -> Vec<String> {
        labels(&deposits(&self.directory, self.deposits.keeper.clone()).0)
    }
}

fn deposits(directory: &tempfile::TempDir, keeper: Arc<Keeper>) -> (Arc<Deposits>, Receiver<()>) {
    let [run, state] = ["run", "state"].map(|name| directory.path().join(name));
    let (deposits, woken) = Deposits::new(keeper, Layout::new(&run, &state));
    let functions = ["s/pool-1", "s/pool-2"].map(str::to_owned).to_vec();
    deposits.begin(LINK, Some(&EndSpec { functions, port: PortInfo::named("p") }));
    (Arc::new(deposits), woken)
}

fn labels(deposits: &Deposits) -> Vec<String> {
    deposits.of(LINK).into_iter().map(|(label, _)| label).collect()
}

fn of(generation: u64) -> Vec<(String, OwnedFd)> {
    let null = || fs::File::open("/dev/null").unwrap().into();
    [0, 1].map(|end| (format!("vport/{generation}/{end}/table"), null())).into()
}

fn names(generation: u64) -> Vec<String> {
    of(generation).into_iter().map(|(label, _)| label).collect()
}

#[test]
fn who_deposits_waits_for_nobody_and_the_newest_is_kept() {
    let site = Site::new();
    let deposits = site.deposits.clone();
    let (done, end) = channel();
    std::thread::spawn(move || {
        (1..=100).for_each(|generation| deposits.replace(LINK, generation, of(generation)));
        done.send(()).unwrap();
    });
    assert_eq!(end.recv_timeout(Duration::from_secs(20)), Ok(()), "the keeper takes nothing");
    assert_eq!((lock(&site.deposits.coming).len(), site.next()), (1, vec![]));
    site.go_on();
    assert_eq!((labels(&site.deposits), site.next()), (names(100), names(100)));
}

#[test]
fn the_next_daemon_takes_no_generation_that_is_over() {
    let site = Site::new();
    site.deposits.replace(LINK, 9, of(9));
    site.go_on();
    assert_eq!(site.next(), names(9));
    site.deposits.replace(LINK, 10, of(10));
    assert_eq!(site.next(), Vec::<String>::new(), "the keeper was not given the newest");
    assert_eq!(site.deposits.keeper.labels(""), Vec::<String>::new());
    site.deposits.keep_all();
    assert_eq!(site.next(), names(10));
    // Everybody has left.
    site.deposits.replace(LINK, 10, Vec::new());
    assert_eq!(site.next(), Vec::<String>::new());
}

#[test]
fn what_was_noted_goes_with_the_link_and_what_came_late_is_not_kept() {
    let site = Site::new();
    site.deposits.replace(LINK, 1, of(1));
    site.deposits.end(LINK);
    site.go_on();
    assert_eq!((labels(&site.deposits), site.next()), (vec![], vec![]));
    let left = fs::read_dir(site.directory.path().join("run/s/pool-1")).unwrap().count();
    assert_eq!(left, 0);
}
