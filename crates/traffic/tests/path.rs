//! The whole user plane without containers: RAN simulator, UPF and traffic tool over ports of a broker in this process,
//! sessions by PFCP over loopback addresses.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use port::{OpenOptions, PortInfo, Route, Steering};
use serde_json::Value;
use upf::bell::Bell;
use upf::config::Config;
use upf::function::{Counts, Plan, Upf};
use upf::n4;
use vport::broker::{self, Broker, EndSpec, LinkKind, LinkSpec, RING_BYTES_DEFAULT};

/// No broker is there to ask: it is said before a port is opened.
#[test]
fn what_would_be_ignored_is_refused_as_wrong_usage() {
    let generate = ["generate", "--port", "n3", "--to", "10.6.0.2"];
    for (arguments, said) in [
        ([&generate[..], &["--teid", "256"]].concat(), "--teid is of a tunnel"),
        ([&generate[..], &["--through", "plain", "--tunnel-to", "10.3.0.1"]].concat(), "--tunnel-to is of a tunnel"),
        ([&generate[..], &["--qfi", "5"]].concat(), "--qfi is of a tunnel"),
        ([&generate[..], &["--tunnel-from", "10.3.0.2"]].concat(), "--tunnel-from is of a tunnel"),
        (vec!["forward", "--port", "a", "--port", "b", "--port", "c"], "one or two ports"),
        (vec!["search", "--port", "uu"], "nobody judges what comes through"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_kaista-traffic")).args(&arguments).output().expect("it runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
}

#[test]
fn a_forwarder_that_is_to_die_with_its_parent_does() {
    let slice = Slice::new(69);
    let script = "\"$0\" forward --die-with-parent --port n6 --port uu --socket \"$1\" >/dev/null 2>&1 & echo $!; wait";
    let mut parent = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_kaista-traffic")])
        .arg(slice.socket("peer"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell");
    let mut id = String::new();
    BufReader::new(parent.stdout.take().expect("a pipe")).read_line(&mut id).expect("a line");
    let process = Path::new("/proc").join(id.trim());
    let runs = eventually(|| takes_signals(&process));
    parent.kill().expect("it runs");
    parent.wait().expect("it ends");
    let has_ended = eventually(|| !process.exists());
    if !has_ended {
        let id = id.trim().parse().ok().and_then(rustix::process::Pid::from_raw).expect("a number");
        rustix::process::kill_process(id, rustix::process::Signal::KILL).expect("it is ours");
    }
    assert!(runs && has_ended, "{runs} {has_ended}");
}

#[test]
fn what_was_counted_is_told_when_the_terminal_goes() {
    let slice = Slice::new(70);
    let forward = slice.start_peer(&["forward", "--port", "n6", "--port", "uu"]);
    let process = Path::new("/proc").join(forward.id().to_string());
    assert!(eventually(|| takes_signals(&process)));
    let id = rustix::process::Pid::from_child(&forward);
    rustix::process::kill_process(id, rustix::process::Signal::HUP).expect("it is ours");
    let output = forward.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", output.status);
    serde_json::from_slice::<Value>(&output.stdout).expect("a JSON result");
}

/// Whether a process has got as far as to take signals over.
fn takes_signals(process: &Path) -> bool {
    let tasks = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    let mut names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.any(|name| name == "signals\n")
}

/// Whether it comes to be so, within ten seconds.
fn eventually(is_so: impl Fn() -> bool) -> bool {
    let give_up = std::time::Instant::now() + Duration::from_secs(10);
    while !is_so() && std::time::Instant::now() < give_up {
        std::thread::sleep(Duration::from_millis(10));
    }
    is_so()
}

/// A broker with the links n3 (ran, upf), n6 (upf, peer) and uu (ran, peer).
struct Slice {
    folder: tempfile::TempDir,
    _broker: Broker,
    /// Last number of the loopback addresses that PFCP uses, so that tests do not meet.
    net: u8,
}

impl Slice {
    fn new(net: u8) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let broker = Broker::start(broker::Config { hugepages: false }, |_| {}).expect("a broker");
        for function in ["ran", "upf", "peer"] {
            let socket = Broker::bind(&folder.path().join(function)).expect("a socket");
            broker.listen(function, socket, 0..u32::MAX).expect("a new function");
        }
        let n3 = |address: &str, steering| port("n3", address, steering, &[]);
        let links = [
            ("n3", [("ran", n3("10.3.0.2", Steering::None)), ("upf", n3("10.3.0.1", Steering::Teid))]),
            (
                "n6",
                [
                    ("upf", port("n6", "10.6.0.1", Steering::UeAddress, &["10.6.0.2"])),
                    ("peer", port("n6", "10.6.0.2", Steering::None, &["10.6.0.1"])),
                ],
            ),
            (
                "uu",
                [
                    ("ran", port("uu", "", Steering::None, &[])),
                    ("peer", port("uu", "10.60.0.1", Steering::None, &["10.60.0.254"])),
                ],
            ),
        ];
        for (name, ends) in links {
            let ends = ends.map(|(function, port)| EndSpec::of(function, port));
            broker
                .add_link(LinkSpec { name: name.into(), ends, ring_bytes: RING_BYTES_DEFAULT, kind: LinkKind::Direct })
                .expect("a new link");
        }
        Self { folder, _broker: broker, net }
    }

    fn socket(&self, function: &str) -> PathBuf {
        self.folder.path().join(function)
    }

    fn start_upf(&self) -> RunningUpf {
        RunningUpf::start(&self.socket("upf"), self.net, "")
    }

    /// A UPF that translates UEs' addresses.
    fn start_nat(&self) -> RunningUpf {
        RunningUpf::start(&self.socket("upf"), self.net, ", sourceNat: {addresses: [203.0.113.1/32]}")
    }

    fn start_ran(&self, sessions: u32) -> RunningRan {
        let net = self.net;
        let text = format!(
            "gnb: {{port: n3}}\nue: {{port: uu}}\n\
             smf: {{address: 127.9.{net}.2, upf: 127.9.{net}.1, heartbeatMs: 100, t1Ms: 50}}\n\
             sessions: [{{count: {sessions}, ue: 10.60.0.1, downlinkTeid: 0x1001, networkInstance: internet, measureUsage: true}}]\n"
        );
        let config = self.folder.path().join("ran.yaml");
        std::fs::write(&config, text).expect("a writable directory");
        RunningRan::start(&config, &self.socket("ran"))
    }

    /// Sends paced packets of `flows` UEs into one port of the peer, and judges what comes out of the other.
    fn traffic(&self, uplink: bool, flows: u32) -> Value {
        let directed: &[&str] = match uplink {
            true => {
                &["--port", "uu", "--sink", "n6", "--from", "10.60.0.1", "--to", "10.6.0.2", "--via", "10.60.0.254"]
            }
            false => &["--port", "n6", "--sink", "uu", "--from", "10.6.0.2", "--to", "10.60.0.1", "--to-counts"],
        };
        let via: &[&str] = if uplink { &[] } else { &["--via", "10.6.0.1"] };
        let arguments = ["generate", "--rate", "2k", "--seconds", "0.5", "--flows", &flows.to_string()];
        self.peer(&[&arguments[..], directed, via].concat())
    }

    /// Runs the traffic tool with the peer's ports.
    fn peer(&self, arguments: &[&str]) -> Value {
        let output = self.start_peer(arguments).wait_with_output().expect("the program runs");
        assert!(output.status.success(), "{}", output.status);
        serde_json::from_slice(&output.stdout).expect("a JSON result")
    }

    fn start_peer(&self, arguments: &[&str]) -> Child {
        // SIGHUP ends it, also where the tests are run by what has them ignore it (nohup).
        Command::new("env")
            .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_kaista-traffic")])
            .args(arguments)
            .arg("--json")
            .arg("--socket")
            .arg(self.socket("peer"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts")
    }
}

fn port(name: &str, address: &str, steering: Steering, via: &[&str]) -> PortInfo {
    let mut info = PortInfo::named(name);
    // Both ends of a link have a port of this name, and differ in their address.
    info.mac = vport::info::derived_mac(&format!("{name}{address}"));
    info.mtu = 9_000;
    info.steering = steering;
    info.addresses = address.parse().map(|address| (address, 24)).into_iter().collect();
    let everywhere = "0.0.0.0".parse().expect("an address");
    let route = |via: &&str| Route { to: everywhere, prefix: 0, via: via.parse().expect("an address") };
    info.routes = via.iter().map(route).collect();
    info
}

/// A UPF on threads of this process.
struct RunningUpf {
    stop: Arc<AtomicBool>,
    bells: Vec<Arc<Bell>>,
    threads: Vec<JoinHandle<()>>,
    counts: Counts,
}

impl RunningUpf {
    fn start(socket: &Path, net: u8, n6: &str) -> Self {
        let text = format!(
            "n4: {{listen: '127.9.{net}.1:8805', nodeId: 127.9.{net}.1, heartbeatS: 1}}\n\
             n3: {{port: n3}}\nn6: {{port: n6, networkInstances: [internet]{n6}}}\n"
        );
        let config = Config::parse(&text).expect("a good configuration");
        let options = OpenOptions { socket: socket.into(), ..OpenOptions::default() };
        let open = |name| port::open(name, &options).expect("a port");
        let upf = Upf::new(&Plan::from(&config), open("n3"), open("n6")).expect("a UPF");
        let socket = UdpSocket::bind(config.n4.listen).expect("a loopback address is free");
        let mut endpoint = n4::Endpoint::new(socket, (&config).into(), upf.tables.clone(), upf.meters);
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for mut worker in upf.workers {
            let stop = stop.clone();
            threads.push(std::thread::spawn(move || worker.run(&stop).expect("a worker does not fail")));
        }
        let mut slow_path = upf.slow_path;
        let stopped = stop.clone();
        threads.push(std::thread::spawn(move || slow_path.run(&stopped).expect("the slow path does not fail")));
        let stopped = stop.clone();
        threads.push(std::thread::spawn(move || endpoint.run(&stopped).expect("the endpoint does not fail")));
        Self { stop, bells: upf.bells, threads, counts: upf.counts }
    }
}

impl Drop for RunningUpf {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.bells.iter().for_each(|bell| bell.ring());
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// `kaista-ran` as a process.
struct RunningRan {
    child: Child,
    lines: Receiver<String>,
}

impl RunningRan {
    fn start(config: &Path, socket: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kaista-ran"))
            .arg("--config")
            .arg(config)
            .env("KAISTA_PORTS", socket)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines }
    }

    fn await_ready(&self) {
        let line = self.lines.recv_timeout(Duration::from_secs(20)).expect("the sessions are established");
        assert!(line.contains("ready"), "{line}");
    }
}

impl RunningRan {
    /// Ends it, and returns what the UPF says that all sessions have used: octets and packets, uplink and downlink.
    fn usage(mut self) -> [u64; 4] {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        self.child.wait().expect("it ends");
        let mut sum = [0; 4];
        for line in self.lines.iter().filter(|line| line.contains(" used ")) {
            let numbers = line.split(' ').filter_map(|word| word.parse::<u64>().ok()).skip(1);
            sum.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
        sum
    }
}

impl Drop for RunningRan {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Traffic of `flows` UEs arrives whole and in order.
fn assert_clean(slice: &Slice, uplink: bool, flows: u32) {
    assert_whole(&slice.traffic(uplink, flows), flows);
}

fn assert_whole(result: &Value, flows: u32) {
    let found = &result["found"];
    assert_eq!(found["flows"], flows, "{result}");
    assert_eq!(found["received"], result["sent"]["accepted"], "{result}");
    for bad in ["lost", "duplicates", "reordered"] {
        assert_eq!(found[bad], 0, "{result}");
    }
}

#[test]
fn packets_of_many_ues_pass_both_ways_in_order() {
    let slice = Slice::new(1);
    let _upf = slice.start_upf();
    let ran = slice.start_ran(20);
    ran.await_ready();
    // The first packets find neighbours not yet resolved; what counts comes after.
    slice.traffic(true, 1);
    assert_clean(&slice, true, 20);
    slice.traffic(false, 1);
    assert_clean(&slice, false, 1);
}

#[test]
fn packets_of_many_ues_pass_source_nat_in_order() {
    let slice = Slice::new(6);
    let upf = slice.start_nat();
    let ran = slice.start_ran(20);
    ran.await_ready();
    slice.traffic(true, 1);
    assert_clean(&slice, true, 20);
    let ports = upf.counts.ports();
    let (_, n6) = ports.iter().find(|(name, _)| name == "n6").expect("it is there");
    assert_eq!((n6.nat_bindings, n6.nat_blocks), (20, 20));
}

/// As UEs at the port of the RAN simulator's.
const UPLINK: [&str; 8] = ["--port", "uu", "--from", "10.60.0.1", "--to", "10.6.0.2", "--via", "10.60.0.254"];

#[test]
fn a_mix_of_sizes_under_skewed_load_passes_in_order() {
    let slice = Slice::new(7);
    let _upf = slice.start_upf();
    let ran = slice.start_ran(20);
    ran.await_ready();
    slice.traffic(true, 1);
    let load = ["--sink", "n6", "--rate", "2400", "--seconds", "0.5", "--flows", "20", "--size", "imix"];
    let result = slice.peer(&[&["generate"], &UPLINK[..], &load, &["--share", "zipf:1"]].concat());
    assert_whole(&result, 20);
    // Frames are as long behind the UPF as they are before it: plain both times.
    assert_eq!(result["found"]["bytes"], result["sent"]["bytes"], "{result}");
}

#[test]
fn what_is_mirrored_behind_the_upf_comes_back_to_its_ue() {
    let slice = Slice::new(8);
    let _upf = slice.start_upf();
    let ran = slice.start_ran(20);
    ran.await_ready();
    let reflector = slice.start_peer(&["reflect", "--port", "n6"]);
    let load = ["--mirrored", "--rate", "2k", "--seconds", "0.5", "--flows"];
    let mirrored = |flows| slice.peer(&[&["generate"], &UPLINK[..], &load, &[flows]].concat());
    let first = mirrored("20");
    let result = mirrored("20");
    assert_whole(&result, 20);
    assert!(result["found"]["latency_us"]["p50"].as_f64().is_some_and(|us| us > 0.0), "{result}");

    let pid = rustix::process::Pid::from_child(&reflector);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    let output = reflector.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", output.status);
    let counted: Value = serde_json::from_slice(&output.stdout).expect("a JSON result");
    let came_back = [&first, &result].map(|result| result["found"]["received"].as_u64().expect("a number"));
    assert!(counted["reflected"].as_u64().is_some_and(|back| back >= came_back.iter().sum()), "{counted}");
    assert_eq!(counted["refused"], 0, "{counted}");
}

#[test]
fn rates_are_searched_through_the_upf_size_by_size() {
    let slice = Slice::new(9);
    let _upf = slice.start_upf();
    let ran = slice.start_ran(20);
    ran.await_ready();
    slice.traffic(true, 1);
    let plan = ["--most", "2k", "--trials", "2", "--trial-seconds", "0.2", "--each-size", "--size", "64,1000"];
    let result = slice.peer(&[&["search", "--sink", "n6", "--flows", "20"], &UPLINK[..], &plan].concat());
    let searches = result["searches"].as_array().expect("an array");
    let sizes: Vec<_> = searches.iter().map(|search| search["payload_bytes_max"].as_u64()).collect();
    assert_eq!(sizes, [Some(64), Some(1_000)]);
    for trial in searches.iter().flat_map(|search| search["trials"].as_array().expect("an array")) {
        // A machine that has no time for the sender makes it fall behind; it makes nobody lose a packet.
        assert!(trial["outcome"] == "passed" || trial["outcome"] == "sender-behind", "{trial}");
        assert_eq!((trial["loss"].as_f64(), &trial["received"]), (Some(0.0), &trial["offered"]), "{trial}");
    }
}

#[test]
fn what_cannot_be_sent_is_refused_with_the_remedy() {
    let slice = Slice::new(10);
    let said = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kaista-traffic"));
        let output = command.args(arguments).arg("--socket").arg(slice.socket("peer")).output().expect("it runs");
        assert!(!output.status.success());
        String::from_utf8(output.stderr).expect("text")
    };
    for (arguments, remedy) in [
        (&["search", "--port", "uu"][..], "give --sink PORT, or --mirrored"),
        (&["generate", "--port", "uu", "--size", "17"], "payloads have 18 to 9000 bytes"),
        (&["generate", "--port", "uu", "--share", "zipf"], "expected uniform, zipf:EXPONENT"),
        (&["generate", "--port", "uu", "--rate", "0"], "such as 500, 20k or 1.5M, or max"),
        (&["search", "--port", "uu", "--loss", "100%"], "such as 0.001 or 0.1%"),
        (&["generate", "--port", "uu", "--sink", "n6", "--mirrored"], "cannot be used with"),
    ] {
        let error = said(arguments);
        assert!(error.contains(remedy), "{arguments:?}: {error}");
    }
}

#[test]
fn the_upf_bills_what_arrives_to_the_octet() {
    let slice = Slice::new(5);
    let _upf = slice.start_upf();
    let ran = slice.start_ran(3);
    ran.await_ready();
    let mut arrived = [0; 4];
    for (uplink, flows) in [(true, 1), (true, 3), (false, 1), (false, 1)] {
        let found = &slice.traffic(uplink, flows)["found"];
        let number = |key: &str| found[key].as_u64().expect("a number");
        // The sink counts frames, whose Ethernet header no user pays for.
        let packets = number("received");
        let (octets, at) = (number("bytes") - 14 * packets, if uplink { 0 } else { 2 });
        arrived[at] += octets;
        arrived[at + 1] += packets;
    }
    assert!(arrived.iter().all(|&number| number > 500), "{arrived:?}");
    assert_eq!(ran.usage(), arrived);
}

#[test]
fn the_ran_may_come_before_the_upf() {
    let slice = Slice::new(2);
    let ran = slice.start_ran(3);
    std::thread::sleep(Duration::from_millis(300));
    let _upf = slice.start_upf();
    ran.await_ready();
    slice.traffic(true, 1);
    assert_clean(&slice, true, 3);
}

#[test]
fn a_ran_that_was_killed_gets_its_sessions_again() {
    let slice = Slice::new(3);
    let _upf = slice.start_upf();
    let ran = slice.start_ran(3);
    ran.await_ready();
    drop(ran);
    let ran = slice.start_ran(3);
    ran.await_ready();
    slice.traffic(true, 1);
    assert_clean(&slice, true, 3);
}

#[test]
fn a_upf_that_restarts_gets_the_sessions_again() {
    let slice = Slice::new(4);
    let upf = slice.start_upf();
    let ran = slice.start_ran(3);
    ran.await_ready();
    drop(upf);
    // Recovery time stamps count seconds.
    std::thread::sleep(Duration::from_millis(1_100));
    let _upf = slice.start_upf();
    ran.await_ready();
    slice.traffic(true, 1);
    assert_clean(&slice, true, 3);
}
