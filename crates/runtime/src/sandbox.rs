//! A sandbox: a user namespace and a network namespace owned by it, held by two bind mounts.
//!
//! The namespaces are mounted at `<run>/<slice>/<function>/ns/{user,net}`, so they need no process and outlive every restart
//! of the container, of the daemon and of the keeper.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::mount::{MsFlags, mount};
use nix::sys::statfs::statfs;
use nix::unistd::Pid;

use crate::error::Attempt;
use crate::net::{self, Namespace};
use crate::{Error, FunctionId, IdRange, IdRanges, Layout, Result, container, rootfs};

/// The namespaces of one function.
#[derive(Debug)]
pub struct Sandbox {
    id: FunctionId,
    ids: IdRange,
    ns: PathBuf,
}

impl Sandbox {
    /// Makes the function's sandbox, or opens the one that is there. A half-made one is made anew.
    ///
    /// Inside: loopback up, unprivileged ICMP sockets for every gid, every TCP and UDP port bindable, no duplicate address
    /// detection, no router advertisements accepted.
    pub fn create(layout: &Layout, id: &FunctionId) -> Result<Self> {
        let sandbox = match Self::open(layout, id)? {
            Some(sandbox) => sandbox,
            None => Self::make(layout, id)?,
        };
        sandbox.settle()?;
        Ok(sandbox)
    }

    /// The function's sandbox, if both namespaces are there.
    pub fn open(layout: &Layout, id: &FunctionId) -> Result<Option<Self>> {
        let ns = layout.function_dir(id).join("ns");
        if !is_namespace(&ns.join("user")) || !is_namespace(&ns.join("net")) {
            return Ok(None);
        }
        Ok(Some(Self { id: id.clone(), ids: IdRanges::allocate(layout, id)?, ns }))
    }

    fn make(layout: &Layout, id: &FunctionId) -> Result<Self> {
        let ids = IdRanges::allocate(layout, id)?;
        let ns = layout.function_dir(id).join("ns");
        rootfs::unmount_below(&ns)?;
        fs::create_dir_all(&ns).attempt(|| format!("making {}", ns.display()))?;

        let pioneer = Pioneer::send(ids)?;
        for kind in ["user", "net"] {
            let (from, to) = (format!("/proc/{}/ns/{kind}", pioneer.0.id()), ns.join(kind));
            File::create(&to).attempt(|| format!("making {}", to.display()))?;
            mount(Some(from.as_str()), &to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
                .attempt(|| format!("mounting the {kind} namespace at {}", to.display()))?;
        }
        Ok(Self { id: id.clone(), ids, ns })
    }

    /// Settings of the network namespace; the same every time.
    fn settle(&self) -> Result<()> {
        let namespace = self.net()?;
        // The kernel takes the gids as this process's user namespace numbers them.
        let gids = format!("{} {}", self.ids.first, self.ids.first + IdRange::SIZE - 1);
        net::sysctl(&namespace, "ipv4/ping_group_range", &gids)?;
        net::sysctl(&namespace, "ipv4/ip_unprivileged_port_start", "0")?;
        if Path::new("/proc/sys/net/ipv6").exists() {
            // Addresses are the descriptor's, so nobody else can have them and no router may add to them.
            for scope in ["all", "default"] {
                net::sysctl(&namespace, &format!("ipv6/conf/{scope}/accept_dad"), "0")?;
                net::sysctl(&namespace, &format!("ipv6/conf/{scope}/accept_ra"), "0")?;
            }
        }
        net::up(&namespace, "lo")
    }

    /// Takes everything of the function away: container, processes in its namespaces, mounts, cgroups, directories.
    ///
    /// Needs no sandbox to be there and does not mind what is missing. The uid range and the state directory stay: see
    /// [`IdRanges::release`](crate::IdRanges::release).
    pub fn delete(layout: &Layout, id: &FunctionId) -> Result<()> {
        container::remove(layout, &id.beside())?;
        container::remove(layout, id)?;
        let dir = layout.function_dir(id);
        rootfs::unmount_below(&dir)?;
        remove_dir_all(&dir)?;
        // Fails while another function of the slice is there.
        let _ = fs::remove_dir(layout.slice_dir(id.slice()));
        Ok(())
    }

    /// Functions that have anything below `<run>`, whole or half-made: what a restarted daemon compares with its slices.
    pub fn list(layout: &Layout) -> Result<Vec<FunctionId>> {
        let mut found = Vec::new();
        for slice in directories(layout.run())? {
            for function in directories(&layout.run().join(&slice))? {
                found.extend(FunctionId::new(&slice, &function));
            }
        }
        found.sort();
        Ok(found)
    }

    /// Whose it is.
    pub fn id(&self) -> &FunctionId {
        &self.id
    }

    /// Its uid range.
    pub fn ids(&self) -> IdRange {
        self.ids
    }

    /// Its network namespace, for [`crate::net`].
    pub fn net(&self) -> Result<Namespace> {
        Namespace::open(self.net_path())
    }

    pub(crate) fn net_path(&self) -> PathBuf {
        self.ns.join("net")
    }

    pub(crate) fn user_path(&self) -> PathBuf {
        self.ns.join("user")
    }
}

/// A process that went into new namespaces and waits there until they are mounted. It ends when this is dropped, or when
/// this process dies.
struct Pioneer(Child);

impl Pioneer {
    /// `unshare` makes the namespaces (a process with threads cannot); that `cat` echoes shows that they are there.
    fn send(ids: IdRange) -> Result<Self> {
        let mut child = Command::new("unshare")
            .args(["--user", "--net", "--", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .attempt(|| "running unshare".into())?;
        let greeting = child.stdin.as_mut().expect("a pipe").write_all(b"\n");
        let mut echo = [0];
        let echoed = greeting.and_then(|()| child.stdout.as_mut().expect("a pipe").read_exact(&mut echo));
        if echoed.is_err() {
            let mut reason = String::new();
            let _ = child.kill();
            let _ = child.stderr.take().expect("a pipe").read_to_string(&mut reason);
            let _ = child.wait();
            return Err(Error::Program { program: "unshare --user --net".into(), reason: reason.trim().into() });
        }
        let pioneer = Self(child);
        for map in ["uid_map", "gid_map"] {
            let path = format!("/proc/{}/{map}", pioneer.0.id());
            fs::write(&path, ids.map()).attempt(|| format!("writing {path}"))?;
        }
        Ok(pioneer)
    }
}

impl Drop for Pioneer {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Processes that live in the user namespace mounted at `path`. The dead whom nobody has waited for are not among them.
pub(crate) fn inhabitants(path: &Path) -> Vec<Pid> {
    if !is_namespace(path) {
        return Vec::new();
    }
    let (Ok(namespace), Ok(processes)) = (fs::metadata(path), fs::read_dir("/proc")) else { return Vec::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let lives_there = |pid: &i32| {
        fs::metadata(format!("/proc/{pid}/ns/user"))
            .is_ok_and(|theirs| theirs.ino() == namespace.ino() && theirs.dev() == namespace.dev())
    };
    pids.filter(lives_there).filter(|pid| !is_dead(*pid)).map(Pid::from_raw).collect()
}

/// Whether a process has ended and only its status is left. Its name, which may hold anything, ends at the last bracket.
fn is_dead(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

fn is_namespace(path: &Path) -> bool {
    statfs(path).is_ok_and(|fs| fs.filesystem_type() == nix::sys::statfs::NSFS_MAGIC)
}

/// Names of the directories in `dir`; none if there is no `dir`.
fn directories(dir: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Vec::new()),
        Err(error) => return Err(error).attempt(|| format!("reading {}", dir.display())),
    };
    let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    Ok(entries.flatten().filter(is_dir).filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

pub(crate) fn remove_dir_all(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).attempt(|| format!("removing {}", dir.display()))
        }
        _ => Ok(()),
    }
}
