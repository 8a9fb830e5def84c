//! A node of a test's own.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use node::control::{CallError, Client, Event, Process, Reply, Request, Status};
use node::paths::Paths;
use tempfile::TempDir;

/// Whether the test cannot run here; says so by its name.
pub fn skipped(test: &str) -> bool {
    let reason = if !rustix::process::geteuid().is_root() {
        "containers are made by root"
    } else if !Path::new("/bin/busybox").exists() {
        "busybox-static is not installed"
    } else {
        return false;
    };
    println!("SKIPPED {test}: {reason}");
    true
}

/// Waits until something holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}: not within 30 s");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A descriptor of functions and links in flow style.
pub fn slice(name: &str, functions: &str, links: &str) -> String {
    format!(
        "apiVersion: kaista.dev/v1alpha1\nkind: Slice\nmetadata: {{name: {name}}}\n\
         spec: {{functions: [{functions}], links: [{links}]}}\n"
    )
}

/// Kills a process as nothing can prevent.
pub fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
}

/// Children of a process that have ended and that it has not asked about.
pub fn remains_below(pid: u32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("it runs");
    let pids = children.split_whitespace().map(|pid| pid.parse::<i32>().expect("a number"));
    pids.filter(|pid| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))).collect()
}

/// The last line that a web server answers with.
pub fn get(server: &str, path: &str) -> String {
    let mut stream = std::net::TcpStream::connect(server).expect("a server");
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer.lines().last().unwrap_or_default().to_owned()
}

/// Whether a UDP datagram comes back within 200 ms.
pub fn echo(to: &str) -> bool {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let mut answer = [0; 16];
    socket.send_to(b"ping", to).is_ok() && matches!(socket.recv(&mut answer), Ok(4))
}

/// A veth pair in the host's own network, gone when it is dropped.
pub struct Veth(String);

impl Veth {
    /// `name` without address, its peer with one.
    pub fn new(name: &str, peer: &str, address: &str) -> Self {
        let veth = Self(name.to_owned());
        for arguments in [
            vec!["link", "add", name, "type", "veth", "peer", "name", peer],
            vec!["link", "set", name, "up"],
            vec!["link", "set", peer, "up"],
            vec!["address", "add", address, "dev", peer],
        ] {
            let status = Command::new("ip").args(&arguments).status().expect("ip");
            assert!(status.success(), "ip {arguments:?}");
        }
        veth
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "delete", &self.0]).status();
    }
}

/// A capture under way.
pub struct Capture {
    stream: node::control::Stream,
    output: std::io::PipeReader,
}

impl Capture {
    /// Its packets and bytes, when it has ended.
    pub fn finish(&mut self) -> (u64, Vec<u8>) {
        let mut bytes = Vec::new();
        self.output.read_to_end(&mut bytes).expect("a capture");
        match self.stream.next().expect("its end").0 {
            Event::Done(Reply::Captured { packets, .. }) => (packets, bytes),
            other => panic!("{other:?}"),
        }
    }
}

/// As long as it is there, a container cannot be taken away.
pub struct Pin(std::path::PathBuf);

impl Drop for Pin {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

/// Directories, a root filesystem of busybox, and a running node.
pub struct TestNode {
    directory: TempDir,
    paths: Paths,
}

impl TestNode {
    /// A node without slices.
    pub fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("kaista-node-").tempdir().expect("a directory");
        // Containers' users pass through.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
        let paths = Paths { run: directory.path().join("run"), state: directory.path().join("state") };
        let bin = directory.path().join("rootfs/bin");
        fs::create_dir_all(&bin).expect("a root filesystem");
        fs::copy("/bin/busybox", bin.join("busybox")).expect("busybox");
        for applet in ["sh", "sleep", "echo", "id", "ip", "cat", "true", "tty", "httpd", "nc"] {
            symlink("busybox", bin.join(applet)).expect("an applet");
        }
        let examples = Path::new(env!("CARGO_BIN_EXE_kaistad")).with_file_name("examples");
        for example in ["reflect", "replica"] {
            fs::copy(examples.join(example), bin.join(example)).expect("an example, which cargo builds with the tests");
        }
        let node = Self { directory, paths };
        node.begin();
        node
    }

    /// What is known of a slice: the descriptor that shall hold, and the record of what was made.
    pub fn files_of(&self, slice: &str) -> [std::path::PathBuf; 2] {
        [self.paths.descriptors(), self.paths.records()].map(|directory| directory.join(format!("{slice}.json")))
    }

    /// Makes an OCI image layout `app` of busybox, which runs as this user; where it is.
    pub fn make_layout(&self, user: &str) -> std::path::PathBuf {
        let layout = self.directory.path().join("app");
        let umoci = |arguments: &[&str]| {
            assert!(Command::new("umoci").args(arguments).status().expect("umoci").success(), "{arguments:?}");
        };
        let [layout_path, rootfs] =
            [&layout, &self.directory.path().join("rootfs")].map(|path| path.display().to_string());
        let image = format!("{layout_path}:v1");
        umoci(&["init", "--layout", &layout_path]);
        umoci(&["new", "--image", &image]);
        umoci(&["insert", "--image", &image, &rootfs, "/"]);
        umoci(&["config", "--image", &image, &format!("--config.user={user}")]);
        layout
    }

    /// Spoils the list of user ids, without which nothing can be taken away wholly; what it was.
    pub fn spoil_ids(&self) -> Vec<u8> {
        let file = self.paths.state.join("id-ranges.json");
        let before = fs::read(&file).unwrap_or_else(|_| b"{}".to_vec());
        fs::write(file, "spoilt").expect("written");
        before
    }

    /// Puts it back.
    pub fn mend_ids(&self, ids: &[u8]) {
        fs::write(self.paths.state.join("id-ranges.json"), ids).expect("written");
    }

    /// Takes the root filesystem away, as if its disk were not mounted; or brings it back.
    pub fn mount_rootfs(&self, mounted: bool) {
        let [there, away] = ["rootfs", "unmounted"].map(|name| self.directory.path().join(name));
        let (from, to) = if mounted { (away, there) } else { (there, away) };
        fs::rename(from, to).expect("renamed");
    }

    /// Keeps what is known of a function's container from being taken away.
    pub fn pin(&self, slice: &str, function: &str) -> Pin {
        let pin = self.paths.run.join(format!(".runc/{slice}.{function}/pin"));
        fs::create_dir(&pin).expect("made");
        let none = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("tmpfs"), &pin, Some("tmpfs"), none, None::<&str>).expect("mounted");
        Pin(pin)
    }

    /// The directory of a function.
    pub fn directory_of(&self, slice: &str, function: &str) -> std::path::PathBuf {
        self.paths.run.join(slice).join(function)
    }

    /// Writes a file of the root filesystem, in its place.
    pub fn write_to_rootfs(&self, path: &str, content: &str) {
        fs::write(self.directory.path().join("rootfs").join(path), content).expect("written");
    }

    /// Puts a FIFO into the root filesystem.
    pub fn make_fifo(&self, path: &str) {
        let path = self.directory.path().join("rootfs").join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo").success());
    }

    /// Starts keeper and daemon, if none run. More than once where the last ones have not quite ended.
    pub fn begin(&self) {
        eventually("the daemon answers", || {
            assert!(self.spawn_kaistad().wait().expect("kaistad").success());
            let start = Instant::now();
            while self.try_status().is_none() && start.elapsed() < Duration::from_millis(500) {
                std::thread::sleep(Duration::from_millis(5));
            }
            self.try_status().is_some()
        });
    }

    pub fn spawn_kaistad(&self) -> Child {
        self.kaistad().spawn().expect("kaistad starts")
    }

    fn kaistad(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kaistad"));
        command.env("KAISTA_RUN_DIR", &self.paths.run).env("KAISTA_STATE_DIR", &self.paths.state).stdin(Stdio::null());
        command
    }

    /// A node that stays, under what could be a service manager.
    pub fn spawn_foreground(&self) -> Child {
        self.kaistad().arg("--foreground").spawn().expect("kaistad starts")
    }

    /// The same, with a log that takes nothing.
    pub fn spawn_foreground_on_full_disk(&self) -> Child {
        let full = fs::File::options().write(true).open("/dev/full").expect("/dev/full");
        self.kaistad().arg("--foreground").stderr(full).spawn().expect("kaistad starts")
    }

    pub fn client(&self) -> Client {
        Client::new(self.paths.clone())
    }

    pub fn call(&self, request: &Request) -> Result<Reply, CallError> {
        self.client().call(request, |_| ())
    }

    /// Brings a slice up; how many things were changed.
    pub fn up(&self, text: &str) -> Result<usize, CallError> {
        let request = Request::Up { descriptor: text.into(), base: self.directory.path().into() };
        match self.call(&request)? {
            Reply::Up { changes, .. } => Ok(changes),
            other => panic!("{other:?}"),
        }
    }

    pub fn processes(&self) -> Vec<Process> {
        match self.call(&Request::Processes { slice: None }) {
            Ok(Reply::Processes { processes }) => processes,
            other => panic!("{other:?}"),
        }
    }

    pub fn process(&self, name: &str) -> Process {
        let all = self.processes();
        all.iter().find(|process| process.name == name).unwrap_or_else(|| panic!("no {name} in {all:?}")).clone()
    }

    pub fn try_status(&self) -> Option<Status> {
        match self.call(&Request::Status) {
            Ok(Reply::Status(status)) => Some(status),
            _ => None,
        }
    }

    pub fn status(&self) -> Status {
        self.try_status().expect("the daemon answers")
    }

    pub fn logs(&self, function: &str) -> Vec<String> {
        let request = Request::Logs { function: function.parse().expect("a name"), lines: None, follow: false };
        let mut lines = Vec::new();
        let called = self.client().call(&request, |event| {
            if let Event::Line { text, .. } = event {
                lines.push(text);
            }
        });
        called.expect("logs");
        lines
    }

    pub fn try_exec(&self, function: &str, command: &[&str]) -> Result<(i32, String), CallError> {
        let (mut read, write) = std::io::pipe().expect("a pipe");
        let null = fs::File::open("/dev/null").expect("/dev/null");
        let mut stream =
            self.client().start(&exec(function, command, false), &[null.as_fd(), write.as_fd(), write.as_fd()])?;
        drop(write);
        let mut output = String::new();
        read.read_to_string(&mut output).expect("output");
        match stream.next()?.0 {
            Event::Done(Reply::Exited { status }) => Ok((status, output)),
            other => panic!("{other:?}"),
        }
    }

    /// Runs a program in a function's container: its status and its output.
    pub fn exec(&self, function: &str, command: &[&str]) -> (i32, String) {
        self.try_exec(function, command).expect("it runs")
    }

    /// Captures so many packets of a port; has begun when this returns.
    pub fn capture(&self, function: &str, port: &str, count: u64) -> Capture {
        let (output, write) = std::io::pipe().expect("a pipe");
        let request = Request::Pcap {
            function: function.parse().expect("a name"),
            port: port.into(),
            snap_length: None,
            count: Some(count),
        };
        let stream = self.client().start(&request, &[write.as_fd()]).expect("asked");
        drop(write);
        let mut fds = [rustix::event::PollFd::new(&output, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, None).expect("the first bytes");
        Capture { stream, output }
    }

    pub fn stats(&self) -> node::control::Stats {
        let mut last = None;
        let called = self.client().call(&Request::Stats { slice: None, interval_ms: None }, |event| {
            if let Event::Stats(stats) = event {
                last = Some(stats);
            }
        });
        called.expect("stats");
        last.expect("a snapshot")
    }

    pub fn exec_in_terminal(&self, function: &str, command: &[&str]) -> (i32, String) {
        let mut stream = self.client().start(&exec(function, command, true), &[]).expect("asked");
        let (event, mut fds) = stream.next().expect("a terminal");
        assert_eq!(event, Event::Console);
        let mut console = fs::File::from(fds.pop().expect("its descriptor"));
        let mut output = Vec::new();
        // A terminal whose program has ended gives an error in place of an end.
        let _ = console.read_to_end(&mut output);
        match stream.next().expect("its end").0 {
            Event::Done(Reply::Exited { status }) => (status, String::from_utf8_lossy(&output).into_owned()),
            other => panic!("{other:?}"),
        }
    }

    /// Keeper and daemon, by what is in their environment.
    pub fn kaistad_processes(&self) -> Vec<i32> {
        let mark = format!("KAISTA_RUN_DIR={}", self.paths.run.display());
        let entries = fs::read_dir("/proc").expect("/proc").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        })
        .collect()
    }

    /// Kills keeper and daemon, so that neither can start the other.
    pub fn kill_node(&self) {
        let pid = |pid: &i32| rustix::process::Pid::from_raw(*pid).expect("a process");
        eventually("both are dead", || {
            // One may have started the other since it was looked for.
            let both = self.kaistad_processes();
            for signal in [rustix::process::Signal::STOP, rustix::process::Signal::KILL] {
                for one in &both {
                    let _ = rustix::process::kill_process(pid(one), signal);
                }
            }
            both.is_empty()
        });
    }

    /// Takes everything down, and looks for what is left.
    pub fn down_and_check(&self) {
        match self.call(&Request::Down { slices: Vec::new() }) {
            Ok(Reply::Down { stopping: true, .. }) => {}
            other => panic!("{other:?}"),
        }
        self.check_gone();
    }

    /// Nothing of the node is left but what its state directory says.
    pub fn check_gone(&self) {
        assert!(self.client().wait_stopped(Duration::from_secs(5)).expect("the lock"), "the node has not ended");
        let mine = self.directory.path().to_str().expect("a path");
        let lines = |file: &str, mark: &str| -> Vec<String> {
            let text = fs::read_to_string(file).expect(file);
            text.lines().filter(|line| line.contains(mark)).map(str::to_owned).collect()
        };
        eventually("processes are gone", || self.kaistad_processes().is_empty());
        assert_eq!(lines("/proc/self/mountinfo", mine), Vec::<String>::new());
        assert_eq!(lines("/proc/net/unix", mine), Vec::<String>::new());
        assert_eq!(self.cgroups(), Vec::<String>::new());
        let left = fs::read_dir(&self.paths.run).expect("the run directory").flatten();
        let left: Vec<String> = left.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        let expected = ["kaistad.lock", ".records", ".runc", ".pumps"];
        assert!(left.iter().all(|name| expected.contains(&name.as_str())), "{left:?}");
        let ids = fs::read_to_string(self.paths.state.join("id-ranges.json")).unwrap_or_default();
        assert!(!ids.contains("/pump-"), "{ids}");
    }

    /// cgroups of this node, in all hierarchies.
    fn cgroups(&self) -> Vec<String> {
        let name = self.paths.layout().cgroup().to_owned();
        let hierarchies = fs::read_dir("/sys/fs/cgroup").expect("cgroups").flatten().map(|entry| entry.path());
        let own = hierarchies.chain([Path::new("/sys/fs/cgroup").to_path_buf()]).map(|hierarchy| hierarchy.join(&name));
        own.filter(|path| path.exists()).map(|path| path.display().to_string()).collect()
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.paths.daemon_log()).unwrap_or_default();
            let _ = writeln!(std::io::stderr(), "--- kaistad.log\n{log}---");
            // Whatever has become of keeper and daemon: containers must not outlive the test.
            for _ in 0..10 {
                let _ = self.spawn_kaistad().wait();
                std::thread::sleep(Duration::from_millis(300));
                if self.call(&Request::Down { slices: Vec::new() }).is_ok() {
                    break;
                }
            }
            let _ = self.client().wait_stopped(Duration::from_secs(5));
            self.kill_node();
        }
    }
}

fn exec(function: &str, command: &[&str], terminal: bool) -> Request {
    Request::Exec {
        function: function.parse().expect("a name"),
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        env: [("K".to_owned(), "v".to_owned())].into(),
        directory: None,
        terminal,
    }
}
