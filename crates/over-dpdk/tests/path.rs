//! A whole user plane over ports of DPDK: RAN simulator, UPF and traffic tool, each a process, joined by vhost-user.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

mod program;
use program::program;

/// How long a program may take to be ready, and to end: several share a core and all of them poll.
const PATIENCE: Duration = Duration::from_secs(60);

/// DPDK takes its memory from hugepages: of 2 MiB, so many for all programs together.
const HUGEPAGES: u64 = 160;

fn hugepages() -> u64 {
    let text = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// Sockets, configurations.
struct Lab(TempDir);

impl Lab {
    /// None where DPDK cannot start, which is said.
    fn new() -> Option<Self> {
        let free = hugepages();
        if free < HUGEPAGES {
            println!("SKIPPED user plane over DPDK: {free} hugepages of 2 MiB are free, {HUGEPAGES} are needed");
            return None;
        }
        Some(Self(TempDir::new().expect("a temporary directory")))
    }

    /// The name of one end of a link: a server's, whose clients come and go, or such a client's.
    fn port(&self, link: Link, end: End, more: &str) -> String {
        let (number, socket) = (link as u32, self.0.path().join(format!("{link:?}")).display().to_string());
        match end {
            End::Server => format!("dpdk:net_vhost{number},iface={socket}{more}"),
            End::Client => format!("dpdk:net_virtio_user{number},path={socket}{more}"),
        }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).expect("a writable directory");
        path
    }

    fn upf(&self) -> Running {
        let port = |link| self.port(link, End::Server, "");
        let text = format!(
            "n4: {{listen: '127.9.40.1:8805', nodeId: 127.9.40.1, heartbeatS: 1}}\n\
             n3: {{port: '{}', addresses: [10.3.0.1/24]}}\n\
             n6: {{port: '{}', addresses: [10.6.0.1/24], networkInstances: [internet]}}\n\
             control: {}\n",
            port(Link::N3),
            port(Link::N6),
            self.0.path().join("control").display(),
        );
        Running::start("kaista-upf-dpdk", &self.write("upf.yaml", &text))
    }

    fn ran(&self, sessions: u32) -> Running {
        let text = format!(
            "gnb: {{port: '{}'}}\nue: {{port: '{}'}}\n\
             smf: {{address: 127.9.40.2, upf: 127.9.40.1, heartbeatMs: 1000, t1Ms: 500}}\n\
             sessions: [{{count: {sessions}, ue: 10.60.0.1, downlinkTeid: 0x1001, networkInstance: internet}}]\n",
            self.port(Link::N3, End::Client, ",port-address=10.3.0.2/24"),
            self.port(Link::Uu, End::Server, ""),
        );
        Running::start("kaista-ran-dpdk", &self.write("ran.yaml", &text))
    }

    /// Sends paced packets of `flows` UEs one way, and judges what comes out at the other end.
    fn traffic(&self, uplink: bool, flows: u32) -> Value {
        let uu = self.port(Link::Uu, End::Client, ",port-address=10.60.0.1/24");
        let n6 = self.port(Link::N6, End::Client, ",port-address=10.6.0.2/24");
        let mut command = program("kaista-traffic-dpdk");
        command.args(["generate", "--rate", "2k", "--seconds", "0.5", "--json", "--flows", &flows.to_string()]);
        match uplink {
            true => command.args(["--port", &uu, "--sink", &n6, "--from", "10.60.0.1", "--to", "10.6.0.2"]),
            false => command.args(["--port", &n6, "--sink", &uu, "--from", "10.6.0.2", "--to", "10.60.0.1"]),
        };
        command.args(["--via", if uplink { "10.60.0.254" } else { "10.6.0.1" }]);
        let output = command.stderr(Stdio::inherit()).output().expect("the program runs");
        assert!(output.status.success(), "{}", output.status);
        serde_json::from_slice(&output.stdout).expect("a JSON result")
    }
}

/// What joins the programs.
#[derive(Clone, Copy, Debug)]
enum Link {
    N3,
    N6,
    Uu,
}

#[derive(Clone, Copy)]
enum End {
    Server,
    Client,
}

/// A program with a configuration.
struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    fn start(name: &str, config: &Path) -> Self {
        let mut child = program(name)
            .arg("--config")
            .arg(config)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let (sender, lines) = channel();
        let (stdout, stderr) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
        let told = sender.clone();
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| told.send(line))
        });
        std::thread::spawn(move || {
            BufReader::new(stderr).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { child, lines }
    }

    fn await_ready(&self) {
        let mut said = Vec::new();
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("not ready: {said:#?}"));
            if line.contains("ready") {
                return;
            }
            said.push(line);
        }
    }

    /// Ends it as an operator would, and sees that it ends well.
    fn end(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        let status = self.child.wait().expect("it ends");
        let said: Vec<String> = self.lines.iter().collect();
        assert!(status.success(), "{status}: {said:#?}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The traffic of all UEs arrives whole and in order, once neighbours are known.
#[test]
fn packets_of_many_ues_pass_both_ways_in_order() {
    let Some(lab) = Lab::new() else { return };
    let upf = lab.upf();
    upf.await_ready();
    let ran = lab.ran(20);
    ran.await_ready();
    for (uplink, flows) in [(true, 20), (false, 1)] {
        lab.traffic(uplink, 1);
        let result = lab.traffic(uplink, flows);
        let found = &result["found"];
        assert_eq!(found["flows"], flows, "{result}");
        assert_eq!(found["received"], result["sent"]["accepted"], "{result}");
        // On a busy machine many of those that were due are not offered in time.
        assert!(found["received"].as_u64().is_some_and(|packets| packets > 2 * u64::from(flows)), "{result}");
        for bad in ["lost", "duplicates", "reordered"] {
            assert_eq!(found[bad], 0, "{result}");
        }
    }
    ran.end();
    upf.end();
}
