//! A UPF without a slice, in network namespaces: a session manager and gNB made of scapy on one side, a kernel as the data
//! network on the other.

// Every test file compiles this for itself and uses a part of it.
#![allow(dead_code)]

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Debian's, which has scapy.
const PYTHON: &str = "/usr/bin/python3";
/// As long as any of these tests may take.
const LIFE: &str = "300";

/// Why the test does not run here, if it does not; said by name.
pub fn skip(test: &str) -> bool {
    let works = |program: &str, arguments: &[&str]| {
        Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
    };
    let reason = if !works("unshare", &["--net", "true"]) {
        "no network namespace can be made here"
    } else if !works("ip", &["link"]) {
        "there is no ip (package iproute2)"
    } else if !works(PYTHON, &["-c", "import scapy.contrib.pfcp, scapy.contrib.gtp"]) {
        "python3 has no scapy with PFCP"
    } else {
        return false;
    };
    println!("SKIPPED {test}: {reason}");
    true
}

/// Waits until `done` gives a value.
pub fn eventually<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within 30 s: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A network namespace, which a process keeps and takes with it.
pub struct Net(Child);

impl Net {
    fn new() -> Self {
        let keeper = Command::new("unshare").args(["--net", "sleep", LIFE]).stdin(Stdio::null()).spawn().unwrap();
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        let path = format!("/proc/{}/ns/net", keeper.id());
        eventually("a network namespace", || fs::read_link(&path).ok().filter(|theirs| *theirs != own));
        let net = Self(keeper);
        net.ip("link set lo up");
        net
    }

    /// A command inside.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.0.id().to_string(), "-n", program]);
        command
    }

    pub fn ip(&self, arguments: &str) {
        let done = self.command("ip").args(arguments.split(' ')).status().unwrap();
        assert!(done.success(), "ip {arguments}");
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What is behind N6.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum N6 {
    /// Another host.
    Veth,
    /// The host that the UPF runs on.
    Tap,
}

/// Namespaces with a running UPF.
pub struct Lab {
    pub ran: Net,
    pub upf_net: Net,
    pub dn: Option<Net>,
    pub upf: Child,
}

impl Lab {
    /// Starts `kaista upf` with `more` lines of configuration. Its files are in `directory`.
    pub fn start(directory: &Path, n6: N6, more: &str) -> Self {
        let (ran, upf_net) = (Net::new(), Net::new());
        for name in ["n3", "n4"] {
            upf_net.ip(&format!("link add {name} type veth peer name {name} netns {}", ran.pid()));
            ran.ip(&format!("link set {name} up"));
        }
        ran.ip("addr add 10.3.0.2/24 dev n3");
        ran.ip("addr add 10.4.0.2/24 dev n4");
        upf_net.ip("addr add 10.4.0.1/24 dev n4");
        ["n3", "n4"].iter().for_each(|name| upf_net.ip(&format!("link set {name} up")));
        let dn = match n6 {
            N6::Veth => {
                let dn = Net::new();
                upf_net.ip(&format!("link add n6 type veth peer name n6 netns {}", dn.pid()));
                upf_net.ip("link set n6 up");
                Self::data_network(&dn);
                Some(dn)
            }
            N6::Tap => {
                upf_net.ip("tuntap add dev n6 mode tap");
                Self::data_network(&upf_net);
                None
            }
        };
        let kind = if n6 == N6::Veth { "packet" } else { "tap" };
        let config = format!(
            "n4: {{listen: '10.4.0.1:8805', nodeId: 10.4.0.1, heartbeatS: 600}}\n\
             n3: {{port: 'packet:n3', networkInstances: [access], addresses: [10.3.0.1/24]}}\n\
             n6:\n  port: '{kind}:n6'\n  networkInstances: [internet]\n  addresses: [10.6.0.1/24]\n  \
             routes: [{{to: 0.0.0.0/0, via: 10.6.0.2}}]\n{more}"
        );
        let path = directory.join("upf.yaml");
        fs::write(&path, config).unwrap();
        let log = fs::File::create(directory.join("upf.log")).unwrap();
        let upf = upf_net
            .command(env!("CARGO_BIN_EXE_kaista"))
            .args(["upf", "--config"])
            .arg(&path)
            .env("RUST_LOG", "info,upf::n4=debug")
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let log = directory.join("upf.log");
        eventually("the UPF is ready", || fs::read_to_string(&log).unwrap().contains("ready").then_some(()));
        Self { ran, upf_net, dn, upf }
    }

    fn data_network(net: &Net) {
        net.ip("addr add 10.6.0.2/24 dev n6");
        net.ip("link set n6 up");
        net.ip("route add 10.60.0.0/24 via 10.6.0.1");
    }

    /// Attaches the UE.
    pub fn attach(&self) -> Ran {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/scapy/attach.py");
        let mut python = self
            .ran
            .command(PYTHON)
            .arg(script)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (python.stdin.take().unwrap(), BufReader::new(python.stdout.take().unwrap()));
        let mut ran = Ran { python, to, from, up_seid: 0, teid: 0 };
        let said = ran.hear();
        ran.up_seid = said["upSeid"].as_u64().unwrap();
        ran.teid = said["teid"].as_u64().unwrap() as u32;
        ran
    }

    /// `kaista upf` with these arguments, beside the UPF.
    pub fn kaista(&self, directory: &Path, arguments: &[&str]) -> Command {
        let mut command = self.upf_net.command(env!("CARGO_BIN_EXE_kaista"));
        command.arg("upf").args(arguments).env("KAISTA_RUN_DIR", directory).stdin(Stdio::null());
        command
    }

    /// What it prints, which must succeed.
    pub fn ask(&self, directory: &Path, arguments: &[&str]) -> String {
        let output = self.kaista(directory, arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What it prints as JSON.
    pub fn json(&self, directory: &Path, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ask(directory, &[arguments, &["--json"]].concat())).unwrap()
    }

    /// Samples that Prometheus's own parser sees at the UPF's `/metrics`.
    pub fn scrape(&self, address: &str) -> Vec<Sample> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/metrics/scrape.py");
        let output =
            self.upf_net.command(PYTHON).args([script, &format!("http://{address}/metrics")]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8(output.stdout).unwrap();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Interrupts the UPF as Ctrl-C does, and gives its exit status.
    pub fn interrupt(mut self) -> Option<i32> {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.upf.id() as i32), nix::sys::signal::SIGINT).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if let Some(status) = self.upf.try_wait().unwrap() {
                return status.code();
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("the UPF does not end");
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.upf.kill();
        let _ = self.upf.wait();
    }
}

/// One value of a scrape.
#[derive(Debug, serde::Deserialize)]
pub struct Sample {
    pub name: String,
    pub labels: std::collections::BTreeMap<String, String>,
    pub value: f64,
}

/// The value with this name and these labels, among others.
pub fn value(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> f64 {
    let is_it = |sample: &&Sample| {
        let has = |(key, value): &(&str, &str)| sample.labels.get(*key).is_some_and(|held| held == value);
        sample.name == format!("kaista_upf_{name}") && labels.iter().all(has)
    };
    samples.iter().find(is_it).unwrap_or_else(|| panic!("{name} {labels:?} is not in {samples:#?}")).value
}

/// Whether Prometheus's parser is there; if not, that is said by name.
pub fn skip_scrape(test: &str) -> bool {
    let output = Command::new(PYTHON).args(["-c", "import prometheus_client.openmetrics.parser"]).output();
    let missing = !output.is_ok_and(|output| output.status.success());
    if missing {
        println!("SKIPPED {test}: python3 has no prometheus_client");
    }
    missing
}

/// The session manager and gNB.
pub struct Ran {
    python: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// The UPF's SEID of the session.
    pub up_seid: u64,
    /// The UPF's TEID.
    pub teid: u32,
}

impl Ran {
    /// Gives a command, and takes the answer.
    pub fn tell(&mut self, command: &str) -> serde_json::Value {
        writeln!(self.to, "{command}").unwrap();
        self.hear()
    }

    fn hear(&mut self) -> serde_json::Value {
        let mut line = String::new();
        assert!(self.from.read_line(&mut line).unwrap() > 0, "scapy ended");
        serde_json::from_str(&line).unwrap()
    }
}

impl Drop for Ran {
    fn drop(&mut self) {
        let _ = self.python.kill();
        let _ = self.python.wait();
    }
}
