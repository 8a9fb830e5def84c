//! A node of a test's own: directories, environment, and the built programs.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository").to_path_buf()
}

static MACHINE: Mutex<()> = Mutex::new(());

/// The machine, for one test of a program at a time: each counts what is left on it, or loads it.
pub fn machine() -> MutexGuard<'static, ()> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says by name that a test does not run here, and why. True where `reason` is given.
pub fn skip(test: &str, reason: Option<String>) -> bool {
    if let Some(reason) = &reason {
        println!("SKIPPED {test}: {reason}");
    }
    reason.is_some()
}

/// Waits until `done` gives a value; panics with `what` after `limit`.
pub fn eventually<T>(what: &str, limit: Duration, mut done: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A node with directories of its own, torn down at the end.
pub struct Node {
    directory: TempDir,
    bin: PathBuf,
}

impl Node {
    /// Why a node cannot run here, if it cannot.
    pub fn missing() -> Option<String> {
        if !nix::unistd::geteuid().is_root() {
            return Some("containers with sandboxes of their own need root".into());
        }
        let bin = root().join("target/release");
        for program in ["kaista", "kaistad", "kaista-upf", "kaista-ran"] {
            if !bin.join(program).exists() {
                return Some(format!("target/release/{program} is not built: make build"));
            }
        }
        if !root().join("target/images/ran").exists() {
            return Some("target/images is not built: make images".into());
        }
        None
    }

    /// A node that runs nothing yet.
    pub fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("kaista-e2e-").tempdir().expect("a temporary directory");
        Self { directory, bin: root().join("target/release") }
    }

    /// Its directory for test files.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// `kaista` with these arguments, speaking to this node.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.bin.join("kaista"));
        command
            .args(arguments)
            .env("KAISTA_RUN_DIR", self.path().join("run"))
            .env("KAISTA_STATE_DIR", self.path().join("state"))
            .stdin(Stdio::null());
        command
    }

    /// Runs `kaista`, whatever comes of it.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("kaista runs")
    }

    /// Runs `kaista`, which must succeed, and returns what it printed.
    pub fn kaista(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(
            output.status.success(),
            "kaista {arguments:?}: {}\n{}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs `kaista` in the background.
    pub fn spawn(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("kaista runs")
    }

    /// Runs `kaista ... --json`.
    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let mut all = arguments.to_vec();
        all.push("--json");
        serde_json::from_str(&self.kaista(&all)).expect("--json prints JSON")
    }

    /// Runs a program in a function's container; its standard output if it succeeds.
    pub fn exec(&self, function: &str, program: &[&str]) -> Result<String, String> {
        let mut arguments = vec!["exec", function, "--"];
        arguments.extend(program);
        let output = self.run(&arguments);
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(format!("{}: {}{}", output.status, text(&output.stdout), text(&output.stderr)))
        }
    }

    /// Brings up the example slice and waits until a UE reaches the data network.
    pub fn first_slice(&self) {
        let file = root().join("examples/first-slice/slice.yaml");
        self.kaista(&["up", file.to_str().expect("UTF-8 path")]);
        self.wait_for_traffic(Duration::from_secs(15));
    }

    /// Makes the example slice be as described in its edited text.
    pub fn edited_slice(&self, edit: impl FnOnce(&str) -> String) {
        let file = root().join("examples/first-slice/slice.yaml");
        let text = std::fs::read_to_string(&file).expect("the example");
        let edited = edit(&text);
        assert_ne!(edited, text, "the edit finds its place");
        // Beside the example, whose images have relative paths.
        let edited_file = file.with_file_name("slice-edited-by-test.yaml");
        std::fs::write(&edited_file, edited).expect("the edited example");
        let result = self.run(&["up", edited_file.to_str().expect("UTF-8")]);
        std::fs::remove_file(&edited_file).expect("the edited example goes");
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    }

    /// Whether one ping from the UE to the data network is answered within a second.
    pub fn ping(&self) -> bool {
        self.exec("ran", &["ping", "-c", "1", "-W", "1", "-I", "ue0", "10.6.0.2"]).is_ok()
    }

    /// Waits until pings pass.
    pub fn wait_for_traffic(&self, limit: Duration) {
        eventually("a UE reaches the data network", limit, || self.ping().then_some(()));
    }

    /// Shows what `kaista` says, for whoever looks into a failure.
    fn tell(&self, arguments: &[&str]) {
        let said = self.run(arguments);
        eprintln!("--- {}\n{}{}", arguments.join(" "), text(&said.stdout), text(&said.stderr));
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Default for Node {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let processes: Option<Vec<serde_json::Value>> =
                serde_json::from_slice(&self.run(&["ps", "--json"]).stdout).ok();
            for name in processes.iter().flatten().filter_map(|process| process["name"].as_str()) {
                self.tell(&["logs", name, "--tail", "30"]);
            }
            self.tell(&["ps"]);
            self.tell(&["top", "--once"]);
        }
        let down = self.run(&["down", "--all"]);
        if !down.status.success() && !std::thread::panicking() {
            panic!("kaista down --all: {}", String::from_utf8_lossy(&down.stderr));
        }
    }
}
