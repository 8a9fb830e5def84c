//! Starts a daemon where none runs.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::paths::Paths;

/// Why no daemon could be reached or started.
#[derive(Debug, thiserror::Error)]
pub enum EnsureError {
    /// The executable is nowhere to be found.
    #[error("kaistad is neither beside {0} nor in PATH")]
    NoExecutable(PathBuf),
    /// It runs and this user may not speak to it, or it does not and this user may not start it.
    #[error("permission denied: be root, or in the group kaista once a daemon runs")]
    Denied,
    /// It was started and ended, or did not open its socket in time.
    #[error("kaistad did not start: {0}")]
    NotStarted(String),
    /// Something else.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// How long a new daemon may take to open its socket.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns once a daemon answers at the control socket, starting one if need be. Any number may try at once: one
/// daemon comes of it.
pub fn ensure_daemon(paths: &Paths) -> Result<(), EnsureError> {
    let begin = Instant::now();
    let mut last_start: Option<Instant> = None;
    loop {
        match UnixStream::connect(paths.control_socket()) {
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(EnsureError::Denied),
            Err(_) => {}
        }
        if begin.elapsed() > PATIENCE {
            let log = paths.daemon_log();
            return Err(EnsureError::NotStarted(format!(
                "no answer after {} s; see {}",
                PATIENCE.as_secs(),
                log.display()
            )));
        }
        // A daemon that is just ending holds the lock a little longer than its socket, so one start may come to nothing.
        if last_start.is_none_or(|at| at.elapsed() > Duration::from_millis(200)) {
            start(paths)?;
            last_start = Some(Instant::now());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `kaistad`, which puts its keeper into the background and ends.
fn start(paths: &Paths) -> Result<(), EnsureError> {
    if !rustix::process::geteuid().is_root() {
        return Err(EnsureError::Denied);
    }
    let output = Command::new(executable()?)
        .env("KAISTA_RUN_DIR", &paths.run)
        .env("KAISTA_STATE_DIR", &paths.state)
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        Ok(())
    } else {
        Err(EnsureError::NotStarted(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }
}

/// `kaistad` is named by KAISTAD, or lies beside this program, in `../libexec/kaista`, or in PATH.
fn executable() -> Result<PathBuf, EnsureError> {
    if let Some(named) = std::env::var_os("KAISTAD") {
        return Ok(named.into());
    }
    let own = std::env::current_exe()?;
    let beside = own.parent().into_iter().flat_map(|dir| [dir.join("kaistad"), dir.join("../libexec/kaista/kaistad")]);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|dir| dir.join("kaistad")).collect::<Vec<_>>();
    beside.chain(in_path).find(|candidate| candidate.is_file()).ok_or(EnsureError::NoExecutable(own))
}
