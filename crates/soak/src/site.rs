//! A node of a campaign's own: a real keeper and a real daemon, and a slice of two functions that are joined by a link. The
//! functions' containers do nothing; processes that a campaign starts and kills use their ports, as their users.

use std::fmt::{self, Display};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use node::control::{Client, Reply, Request, Status};
use node::paths::Paths;
use runtime::FunctionId;
use tempfile::TempDir;

use crate::rig::PATIENCE;

/// Which of the two functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Has one queue.
    Producer = 0,
    /// Has two, between which buckets move.
    Consumer = 1,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Producer, Self::Consumer];

    /// The function's name.
    pub fn name(self) -> &'static str {
        ["producer", "consumer"][self as usize]
    }

    /// The other one.
    pub fn other(self) -> Self {
        Self::BOTH[1 - self as usize]
    }

    /// Queues of its port.
    pub fn queues(self) -> usize {
        self as usize + 1
    }
}

/// What the functions are joined by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// A link over which frames are copied.
    Direct,
    /// The same, whose ends can write the records that they read.
    SharedRecords,
    /// A link over which buffers change hands.
    ZeroCopy,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Direct, Self::SharedRecords, Self::ZeroCopy];
}

impl Display for Kind {
    /// As descriptors call it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["direct", "shared-records", "zero-copy"][*self as usize])
    }
}

/// The node. Taken down at the end, with all that belongs to it.
pub struct Site {
    directory: TempDir,
    paths: Paths,
    program: PathBuf,
    uids: [u32; 2],
}

const SLICE: &str = "soak";

impl Site {
    /// Why there cannot be one here, if there cannot.
    pub fn missing() -> Option<String> {
        let found =
            |program: &str| ["/usr/bin", "/usr/sbin", "/bin"].iter().any(|at| Path::new(at).join(program).exists());
        if !rustix::process::geteuid().is_root() {
            Some("containers are made by root".into())
        } else if !found("runc") && !found("crun") {
            Some("neither runc nor crun is installed".into())
        } else if !cfg!(target_feature = "crt-static") {
            Some("the program is not static, so that it cannot be a container's only file".into())
        } else {
            None
        }
    }

    /// Starts one whose processes are `program`: `kaista-soak`.
    pub fn start(program: &Path, kind: Kind) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("kaista-soak-").tempdir()?;
        // Containers' users pass through.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        let bin = directory.path().join("rootfs/bin");
        fs::create_dir_all(&bin)?;
        fs::copy(program, bin.join("soak")).context("the program's copy for containers")?;
        let paths = Paths { run: directory.path().join("run"), state: directory.path().join("state") };
        let mut site = Self { directory, paths, program: program.into(), uids: [0; 2] };
        site.begin()?;
        let function = |side: Side| {
            let (name, queues) = (side.name(), side.queues());
            format!(
                "{{name: {name}, image: {{rootfs: rootfs}}, command: [/bin/soak, idle], trustGroup: soak, \
                 ports: [{{name: p, queues: {queues}, steering: ue-address}}]}}"
            )
        };
        let [producer, consumer] = Side::BOTH.map(function);
        let descriptor = format!(
            "apiVersion: kaista.dev/v1alpha1\nkind: Slice\nmetadata: {{name: {SLICE}}}\n\
             spec: {{functions: [{producer}, {consumer}], links: [{{between: [producer/p, consumer/p], kind: {kind}}}]}}\n"
        );
        site.client().call(&Request::Up { descriptor, base: site.directory.path().into() }, |_| ())?;
        let Reply::Processes { processes } = site.client().call(&Request::Processes { slice: None }, |_| ())? else {
            bail!("the daemon answers another question")
        };
        for side in Side::BOTH {
            let process = processes.iter().find(|process| process.name == side.name());
            site.uids[side as usize] = process.context("a function that was just made")?.uid;
        }
        Ok(site)
    }

    /// Starts keeper and daemon where none run.
    fn begin(&self) -> Result<()> {
        let mut command = self.command("node");
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
        if !status.success() {
            bail!("the node does not start: {status}");
        }
        self.status().map(drop)
    }

    /// The program in one of its parts.
    fn command(&self, part: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(part).env("KAISTA_RUN_DIR", &self.paths.run).env("KAISTA_STATE_DIR", &self.paths.state);
        command
    }

    /// The program in one of its parts, as a process of a function, which gets no signals of this one's terminal.
    pub fn process(&self, part: &str, side: Side) -> Command {
        use std::os::unix::process::CommandExt;
        let mut command = self.command(part);
        let uid = self.uids[side as usize];
        command.uid(uid).gid(uid).process_group(0).stdin(Stdio::null());
        command.arg("--socket").arg(self.socket(side));
        command
    }

    /// The socket by which a function gets its ports.
    pub fn socket(&self, side: Side) -> PathBuf {
        let id = FunctionId::new(SLICE, side.name()).expect("a function's name");
        self.paths.layout().ports_dir(&id).join("ports.sock")
    }

    /// The program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// A file of the campaign's.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What the daemon says of itself, as soon as it says something.
    pub fn status(&self) -> Result<Status> {
        let start = Instant::now();
        loop {
            match self.client().call(&Request::Status, |_| ()) {
                Ok(Reply::Status(status)) => return Ok(status),
                other if start.elapsed() > PATIENCE => bail!("the daemon does not answer: {other:?}"),
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// How often a process went on with the segments that it had before the daemon was another.
    pub fn resumed(&self) -> usize {
        let log = fs::read_to_string(self.paths.daemon_log()).unwrap_or_default();
        log.lines().filter(|line| line.contains(": resumed by process")).count()
    }

    /// How often the link came up.
    pub fn ups(&self) -> usize {
        let log = fs::read_to_string(self.paths.daemon_log()).unwrap_or_default();
        log.lines().filter(|line| line.contains(": up, generation")).count()
    }

    /// The last lines that keeper and daemon said.
    pub fn last_words(&self) -> String {
        let log = fs::read_to_string(self.paths.daemon_log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// What broke the rules, by the daemon's words.
    pub fn quarantines(&self) -> Vec<String> {
        let log = fs::read_to_string(self.paths.daemon_log()).unwrap_or_default();
        log.lines().filter(|line| line.contains("broke the rules")).map(str::to_owned).collect()
    }

    fn client(&self) -> Client {
        Client::new(self.paths.clone())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // Whatever has become of keeper and daemon: containers must not outlive the campaign.
        for _ in 0..10 {
            let down = self.client().call(&Request::Down { slices: Vec::new() }, |_| ());
            if down.is_ok() && self.client().wait_stopped(Duration::from_secs(20)).unwrap_or(false) {
                return;
            }
            let _ = self.begin();
        }
        eprintln!("the node in {} has not ended", self.directory.path().display());
    }
}
