//! The daemon: control socket, the workers of all slices, and when to end.

mod capture;
mod exec;
mod serve;
mod stats;
mod upf;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use anyhow::{Context, Result};

use serve::refuse;

use crate::control::Failure;
use crate::keeper::Keeper;
use crate::launch;
use crate::node::Node;
use crate::paths::Paths;
use crate::process;
use crate::record;
use crate::worker::{self, Command, Handle};

/// Group that may use the control socket beside root.
const GROUP: &str = "kaista";
/// Most connections at a time; more wait.
const CONNECTIONS_MAX: usize = 128;

/// Runs the daemon; standard input is the keeper's socket. `stay`: also when no slice is left.
pub fn run(stay: bool) -> Result<()> {
    let paths = Paths::from_env();
    process::allow_many_descriptors();
    // Before there is any other thread, since the mask is the process's.
    let listener = listen(&paths)?;
    let keeper = Keeper::from_stdin().context("the keeper does not answer")?;
    for directory in [paths.descriptors(), paths.records()] {
        std::fs::create_dir_all(directory)?;
    }
    let daemon =
        Arc::new(Daemon { node: Node::new(paths, keeper)?, stay, slices: Mutex::default(), brief: Arc::default() });
    exec::sweep(&daemon.node.paths.run);
    daemon.resume()?;
    let log = daemon.node.paths.daemon_log();
    std::thread::Builder::new().name("log".into()).spawn(move || keep_bounded(&log))?;
    tracing::info!("ready, process {}", std::process::id());
    let gate = Arc::new(());
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => {
                // Out of descriptors, most likely; some are given back with time.
                tracing::error!("accept: {e}");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        while Arc::strong_count(&gate) > CONNECTIONS_MAX {
            std::thread::sleep(Duration::from_millis(10));
        }
        let (daemon, pass) = (daemon.clone(), gate.clone());
        std::thread::Builder::new().name("request".into()).spawn(move || {
            serve::connection(&daemon, stream);
            drop(pass);
        })?;
    }
}

/// Looks after the size of the log as long as the daemon lives.
fn keep_bounded(log: &Path) {
    loop {
        if let Err(e) = launch::bound_log(log) {
            tracing::error!("{}: {e}", log.display());
        }
        std::thread::sleep(Duration::from_secs(10));
    }
}

/// The control socket: root's and the group's. So is looking at the lock, by which a client sees the node end.
fn listen(paths: &Paths) -> Result<UnixListener> {
    let path = &paths.control_socket();
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e).context(path.display().to_string()),
        _ => {}
    }
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path).with_context(|| path.display().to_string());
    rustix::process::umask(before);
    let listener = listener?;
    if let Some(group) = group_id(&std::fs::read_to_string("/etc/group").unwrap_or_default(), GROUP) {
        std::os::unix::fs::chown(path, None, Some(group))?;
        std::os::unix::fs::chown(paths.lock(), None, Some(group))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    }
    Ok(listener)
}

/// The number of a group in the text of `/etc/group`.
fn group_id(text: &str, name: &str) -> Option<u32> {
    let mut lines = text.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?)
}

/// Everything that connections share.
pub(crate) struct Daemon {
    node: Arc<Node>,
    stay: bool,
    slices: Mutex<Slices>,
    /// Held by requests for whose answers the end waits.
    brief: Arc<()>,
}

#[derive(Default)]
struct Slices {
    workers: BTreeMap<String, Handle>,
    /// Requests under way that may make a slice.
    coming: usize,
    stopping: bool,
}

impl Daemon {
    fn slices(&self) -> MutexGuard<'_, Slices> {
        self.slices.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes up every slice that a former daemon had, and takes away what belongs to none.
    fn resume(self: &Arc<Self>) -> Result<()> {
        let names = record::all_slices(&self.node.paths).context("it cannot be seen which slices there are")?;
        for id in runtime::Sandbox::list(&self.node.layout)? {
            if !names.iter().any(|name| name == id.slice()) {
                tracing::warn!("{id}: belongs to no slice; it is removed");
                if let Err(e) = crate::function::remove(&self.node, id.slice(), id.function()) {
                    tracing::error!("{id}: stays: {e:#}");
                }
            }
        }
        names.iter().for_each(|name| worker::keep_cores(&self.node, name));
        let mut slices = self.slices();
        for name in names {
            let handle = self.start_worker(&name)?;
            slices.workers.insert(name, handle);
        }
        // Only now is it known which cores functions have for themselves.
        slices.workers.values().for_each(|handle| _ = handle.tell(Command::CoresChanged));
        Ok(())
    }

    fn start_worker(self: &Arc<Self>, name: &str) -> io::Result<Handle> {
        let (all, own, gone) = (Arc::downgrade(self), Arc::downgrade(self), name.to_owned());
        let cores_changed = move || {
            let Some(daemon) = Weak::upgrade(&all) else { return };
            let handles: Vec<Handle> = daemon.slices().workers.values().cloned().collect();
            for handle in handles {
                handle.tell(Command::CoresChanged);
            }
        };
        let ended = move || {
            if let Some(daemon) = Weak::upgrade(&own) {
                daemon.slices().workers.remove(&gone);
            }
        };
        worker::start(&self.node, name, cores_changed, ended)
    }

    /// The worker of a slice; where there is none, one is started if the slice `begins`.
    fn worker(self: &Arc<Self>, name: &str, begins: bool) -> Result<Handle, Failure> {
        let mut slices = self.slices();
        if slices.stopping {
            return Err(refuse("the daemon is ending; ask again"));
        }
        if let Some(handle) = slices.workers.get(name) {
            return Ok(handle.clone());
        }
        if !begins {
            return Err(refuse(format!("there is no slice {name} any more")));
        }
        let handle = self.start_worker(name)?;
        slices.workers.insert(name.to_owned(), handle.clone());
        Ok(handle)
    }

    /// Forgets a worker that does not live.
    fn forget(&self, name: &str, dead: &Handle) {
        let mut slices = self.slices();
        if slices.workers.get(name).is_some_and(|handle| handle.is(dead)) {
            slices.workers.remove(name);
        }
    }

    /// The workers, by slice.
    fn workers(&self) -> Vec<(String, Handle)> {
        self.slices().workers.iter().map(|(name, handle)| (name.clone(), handle.clone())).collect()
    }

    /// A request that may make a slice begins; none if the daemon is just ending.
    fn coming(self: &Arc<Self>) -> Option<Coming> {
        let mut slices = self.slices();
        slices.coming += 1;
        let coming = Coming(self.clone());
        if slices.stopping {
            drop(slices);
            return None;
        }
        Some(coming)
    }

    /// Whether the daemon ends now, since no slice is left and none is coming. From then on it takes no requests.
    fn ends_with_last_slice(&self) -> bool {
        let mut slices = self.slices();
        if !self.stay && slices.workers.is_empty() && slices.coming == 0 {
            slices.stopping = true;
        }
        slices.stopping
    }

    /// Ends daemon and keeper, after others have got their answers. What runs is left to whoever comes next.
    fn end(&self) -> ! {
        let paths = &self.node.paths;
        let _ = std::fs::remove_file(paths.control_socket());
        for _ in 0..200 {
            if Arc::strong_count(&self.brief) == 1 {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        for empty in [paths.records(), paths.pumps()] {
            let _ = std::fs::remove_dir(empty);
        }
        tracing::info!("ending");
        self.node.keeper.stop();
        std::process::exit(0)
    }
}

/// Keeps the daemon from ending.
struct Coming(Arc<Daemon>);

impl Drop for Coming {
    fn drop(&mut self) {
        self.0.slices().coming -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_without_the_name_service() {
        let text = "root:x:0:\nkaistas:x:7:\nkaista:x:998:alice\nbroken\n";
        assert_eq!(group_id(text, "kaista"), Some(998));
        assert_eq!(group_id(text, "broken"), None);
    }
}
