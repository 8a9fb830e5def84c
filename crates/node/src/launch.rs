//! Starts a node: takes the lock that makes it the only one, and gives it to a keeper.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control::{Client, Request};
use crate::paths::Paths;
use crate::{lock, process};

/// Puts a node into the background and returns. Nothing to do where one runs.
pub fn background() -> Result<()> {
    let paths = Paths::from_env();
    prepare(&paths)?;
    if let Some(lock) = lock::take(&paths.lock())? {
        let log = open_log(&paths)?;
        start_keeper(lock, Stdio::from(log), false)?;
    }
    Ok(())
}

/// Keeps a node running until it is told to end: starts it when none runs, also when keeper and daemon were killed at once.
/// What goes on runs in processes of its own, so that the death of this one changes nothing.
///
/// SIGTERM and SIGINT end the node and leave its slices running, for the next one to take up.
pub fn foreground() -> Result<()> {
    let paths = Paths::from_env();
    prepare(&paths)?;
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGTERM);
    ends.add(Signal::SIGINT);
    ends.thread_block()?;
    let signals = SignalFd::with_flags(&ends, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let mut keepers = Vec::new();
    loop {
        if let Some(lock) = lock::take(&paths.lock())? {
            let log = std::io::stderr().as_fd().try_clone_to_owned()?;
            keepers.push(start_keeper(lock, Stdio::from(log), true)?);
        }
        // Nothing is to remain of one that was killed.
        keepers.retain_mut(|keeper| matches!(keeper.try_wait(), Ok(None)));
        let timeout = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
        let _ = poll(&mut [PollFd::new(&signals, PollFlags::IN)], Some(&timeout));
        if signals.read_signal()?.is_some() {
            break;
        }
    }
    let client = Client::new(paths);
    let _ = client.call(&Request::Shutdown { leave_running: true }, |_| ());
    if !client.wait_stopped(Duration::from_secs(10))? {
        bail!("the daemon did not end within 10 s");
    }
    Ok(())
}

/// The directories that everything else is in, and the rights that the rest depends on.
fn prepare(paths: &Paths) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("containers are made by root; start kaistad as root");
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    for directory in [&paths.run, &paths.state] {
        let shown = || directory.display().to_string();
        DirBuilder::new().recursive(true).mode(0o755).create(directory).with_context(shown)?;
        // Users of containers pass through, whatever mask it was made with.
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).with_context(shown)?;
    }
    Ok(())
}

fn start_keeper(lock: File, log: Stdio, stay: bool) -> Result<Child> {
    let mut command = Command::new(process::own_executable()?);
    command.arg("keeper").stdin(Stdio::from(OwnedFd::from(lock))).stdout(Stdio::null()).stderr(log).current_dir("/");
    if stay {
        command.arg("--stay");
    }
    command.spawn().context("the keeper cannot be started")
}

/// What keeper, daemon and pumps say.
fn open_log(paths: &Paths) -> Result<File> {
    let path = paths.daemon_log();
    let bounded = bound_log(&path);
    let log = OpenOptions::new().create(true).append(true).mode(0o640).open(&path);
    let mut log = log.with_context(|| path.display().to_string())?;
    if let Err(e) = bounded {
        // A node starts all the same, on a full disk as well, where this line is lost, too.
        let _ = writeln!(log, "{}: what it held is not kept: {e}", path.display());
    }
    Ok(log)
}

/// Begins the log anew where it has grown large, also while others write to it: they append, to the file that they have. What they
/// write between copying and cutting is lost.
pub(crate) fn bound_log(path: &Path) -> io::Result<()> {
    const LARGE: u64 = 8 << 20;
    if path.metadata().is_ok_and(|meta| meta.len() > LARGE) {
        let copied = std::fs::copy(path, path.with_extension("log.1"));
        // A disk that is too full for a copy is one reason more.
        OpenOptions::new().write(true).truncate(true).open(path)?;
        copied?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_log_is_begun_anew_under_its_writers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kaistad.log");
        let mut writer = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        writer.write_all(b"little\n").unwrap();
        bound_log(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"little\n");
        writer.write_all(&vec![b'x'; 9 << 20]).unwrap();
        bound_log(&path).unwrap();
        writer.write_all(b"more\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"more\n");
        assert_eq!(path.with_extension("log.1").metadata().unwrap().len(), (9 << 20) + 7);
    }

    #[test]
    fn a_node_starts_where_a_large_log_cannot_be_kept() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths { run: directory.path().join("run"), state: directory.path().to_owned() };
        std::fs::write(paths.daemon_log(), vec![b'x'; 9 << 20]).unwrap();
        // As a full disk does, it takes no copy.
        std::fs::create_dir(paths.daemon_log().with_extension("log.1")).unwrap();
        let log = open_log(&paths).unwrap();
        assert!((1..1_000).contains(&log.metadata().unwrap().len()), "begun anew, with a line that says why");
    }
}
