//! A `kaista-upf` process between a gNB and a data network that are the test itself. Campaigns (`crates/soak`) play on it, too.
#![allow(dead_code, unused_imports, reason = "each test uses a part")]

mod frames;
mod session;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pfcp::node::{AssociationSetup, Heartbeat};
use pfcp::session::Established;
use pfcp::{Header, MessageType, NodeId, RecoveryTimeStamp, Request, Response};
use port::{OpenOptions, PacketRef, Port, PortInfo, Route, Steering};
use vport::broker::{self, Broker, EndSpec, LinkKind, LinkSpec, RING_BYTES_DEFAULT};

use frames::{answer_arp, arrivals, each_frame, set_number, take_frames};

pub use frames::{ipv4, is_users};
pub use session::simple;

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The program, of those who are tests of its package.
const PROGRAM: Option<&str> = option_env!("CARGO_BIN_EXE_kaista-upf");

pub struct Stage {
    folder: tempfile::TempDir,
    broker: Broker,
    /// The program, and its arguments before `--config`.
    program: Vec<OsString>,
    gnb: Port,
    dn: Port,
    smf: UdpSocket,
    upf: SocketAddr,
    /// Says to other runs of a test that the addresses are taken.
    _guard: UdpSocket,
    sequence: u32,
    last: Option<(u32, Vec<u8>)>,
    /// Run before the program, in a mount namespace of its own.
    before: &'static str,
    child: Option<Running>,
    log: Arc<Mutex<String>>,
    arrived: u64,
    /// Numbered packets, uplink and downlink.
    streams: [Stream; 2],
}

/// Packets that are counted through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    pub sent: u64,
    pub arrived: u64,
    /// The number after the last that arrived.
    next: u64,
    pub out_of_order: u64,
}

/// The process.
pub struct Running(Arc<Mutex<Child>>);

impl Running {
    pub fn kill(&self) {
        let mut child = self.0.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Running {
    pub fn pid(&self) -> i32 {
        self.0.lock().unwrap().id() as i32
    }

    /// Whether it has ended, and how.
    pub fn ended(&self) -> Option<std::process::ExitStatus> {
        self.0.lock().unwrap().try_wait().unwrap()
    }

    /// Asks it to end.
    pub fn dismiss(&self) {
        let pid = rustix::process::Pid::from_raw(self.pid()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.child.iter().for_each(Running::kill);
    }
}

pub fn ue(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a40_0001 + number)
}

pub fn teid_of(established: &Established) -> u32 {
    match established.created_pdrs[0].f_teid {
        Some(pfcp::rule::FTeid::Given { teid, .. }) => teid,
        _ => panic!("a chosen F-TEID"),
    }
}

/// Ends a session: octets and packets that were used uplink, as reported.
pub fn end(stage: &mut Stage, seid: u64) -> u64 {
    let Response::SessionDeletion(response) = stage.ask(seid, &Request::SessionDeletion) else { panic!() };
    let usage = response.outcome.unwrap_or_else(|fault| panic!("{fault}; the log: {}", stage.log()));
    usage[0].volume.unwrap().octets.uplink.unwrap()
}

fn info(name: &str, address: &str, steering: Steering, via: Option<&str>) -> PortInfo {
    let mut info = PortInfo::named(name);
    info.mac = vport::info::derived_mac(&format!("{name}{address}"));
    info.steering = steering;
    info.addresses = vec![(address.parse().unwrap(), 24)];
    let everywhere = "0.0.0.0".parse().unwrap();
    info.routes = via.iter().map(|via| Route { to: everywhere, prefix: 0, via: via.parse().unwrap() }).collect();
    info
}

/// One of the UPF's ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    N3,
    N6,
}

impl Stage {
    pub fn new(net: u8, before: &'static str, sessions: usize) -> Self {
        Self::with(net, before, sessions, "")
    }

    /// With more in the configuration.
    pub fn with(net: u8, before: &'static str, sessions: usize, more: &str) -> Self {
        let program = PROGRAM.expect("the package of the test has the program");
        Self::of(vec![program.into()], net, before, sessions, more)
    }

    /// Between ports with so many queue pairs.
    pub fn of_queues(queues: u16, net: u8, sessions: usize, more: &str) -> Self {
        let program = PROGRAM.expect("the package of the test has the program");
        Self::over(queues, vec![program.into()], net, "", sessions, more)
    }

    /// Of a program that is given.
    pub fn of(program: Vec<OsString>, net: u8, before: &'static str, sessions: usize, more: &str) -> Self {
        Self::over(1, program, net, before, sessions, more)
    }

    /// The same of a program that is given.
    fn over(queues: u16, program: Vec<OsString>, net: u8, before: &'static str, sessions: usize, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let broker = Broker::start(broker::Config { hugepages: false }, |_| {}).unwrap();
        for function in ["gnb", "upf", "dn"] {
            let socket = Broker::bind(&folder.path().join(function)).unwrap();
            broker.listen(function, socket, 0..u32::MAX).unwrap();
        }
        let links = [
            (
                "n3",
                [
                    ("gnb", info("n3", "10.3.0.2", Steering::None, None)),
                    ("upf", PortInfo { queues, ..info("n3", "10.3.0.1", Steering::Teid, None) }),
                ],
            ),
            (
                "n6",
                [
                    ("upf", PortInfo { queues, ..info("n6", "10.6.0.1", Steering::UeAddress, Some("10.6.0.2")) }),
                    ("dn", info("n6", "10.6.0.2", Steering::None, None)),
                ],
            ),
        ];
        for (name, ends) in links {
            let ends = ends.map(|(function, port)| EndSpec::of(function, port));
            let spec = LinkSpec { name: name.into(), ends, ring_bytes: RING_BYTES_DEFAULT, kind: LinkKind::Direct };
            broker.add_link(spec).unwrap();
        }
        let open = |function: &str, name| {
            port::open(name, &OpenOptions { socket: folder.path().join(function), ..OpenOptions::default() }).unwrap()
        };
        let (gnb, dn) = (open("gnb", "n3"), open("dn", "n6"));
        let guarded = |second| {
            let bind = |last| UdpSocket::bind((Ipv4Addr::new(127, second, net, last), 8805));
            // A UPF that was left behind would get what this one is asked: several may listen there.
            bind(1)?;
            bind(3).map(|guard| (second, guard))
        };
        let (second, guard) =
            (9..=250).find_map(|second| guarded(second).ok()).expect("a network that nobody plays in");
        let smf = UdpSocket::bind((Ipv4Addr::new(127, second, net, 2), 8805)).unwrap();
        smf.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let upf = SocketAddr::from((Ipv4Addr::new(127, second, net, 1), 8805));
        let text = format!(
            "n4: {{listen: '{upf}', nodeId: {}, heartbeatS: 60}}\n\
             n3: {{port: n3, networkInstances: [access]}}\nn6: {{port: n6, networkInstances: [internet]}}\n\
             maxSessions: {sessions}\nstateDirectory: {}\ncontrol: '@kaista-stage-{}-{net}'\n{more}",
            upf.ip(),
            folder.path().join("state").display(),
            std::process::id()
        );
        std::fs::write(folder.path().join("upf.yaml"), text).unwrap();
        std::fs::create_dir(folder.path().join("state")).unwrap();
        let log = Arc::default();
        Self {
            folder,
            broker,
            program,
            gnb,
            dn,
            smf,
            upf,
            _guard: guard,
            sequence: 0,
            last: None,
            before,
            child: None,
            log,
            arrived: 0,
            streams: Default::default(),
        }
    }

    /// Whether this process may mount file systems, where nobody else sees them.
    pub fn can_mount() -> bool {
        let tried = Command::new("unshare").args(["--user", "--map-root-user", "--mount", "true"]).status();
        tried.is_ok_and(|status| status.success())
    }

    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Of N4.
    pub fn address(&self) -> SocketAddr {
        self.upf
    }

    /// What the process has logged.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the process has logged `text`.
    pub fn await_log(&self, text: &str) {
        let begin = Instant::now();
        while !self.log().contains(text) {
            assert!(begin.elapsed() < Duration::from_secs(30), "nothing of {text}; the log: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Starts the process; when it began.
    pub fn spawn(&mut self) -> Instant {
        let (began, child) = self.spawn_beside(false);
        self.child = Some(child);
        began
    }

    /// Starts a process that is to replace the one that runs, where `succeeds`.
    pub fn spawn_beside(&mut self, succeeds: bool) -> (Instant, Running) {
        let config = self.folder.path().join("upf.yaml");
        let program = self.program.iter().map(OsString::as_os_str).chain([OsStr::new("--config"), config.as_os_str()]);
        let mut command = if self.before.is_empty() {
            Command::new(&self.program[0])
        } else {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
            command.arg(format!("{} && exec \"$0\" \"$@\"", self.before)).arg(&self.program[0]);
            command
        };
        command.args(program.skip(1));
        command.env("KAISTA_PORTS", self.folder.path().join("upf")).env("STATE", self.state());
        if succeeds {
            self.broker.allow_succession("upf", true).unwrap();
            command.env("KAISTA_SUCCEEDS", "1");
        }
        command.env_remove("RUST_LOG").stderr(Stdio::piped());
        let began = Instant::now();
        let mut child = command.spawn().unwrap();
        let (mut stderr, log) = (child.stderr.take().unwrap(), self.log.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4_096];
            while let Ok(len @ 1..) = stderr.read(&mut buffer) {
                log.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..len]));
            }
        });
        (began, Running(Arc::new(Mutex::new(child))))
    }

    /// Starts the process, and returns when N4 answers.
    pub fn start(&mut self) {
        self.spawn();
        self.recovery();
    }

    pub fn kill(&mut self) {
        self.take_child().kill();
    }

    pub fn take_child(&mut self) -> Running {
        self.child.take().expect("it runs")
    }

    // The session manager.

    pub fn associate(&mut self) {
        let setup = AssociationSetup::new(NodeId::Fqdn("smf".into()), RecoveryTimeStamp(1_000));
        let Response::AssociationSetup(response) = self.ask(0, &Request::AssociationSetup(setup)) else { panic!() };
        response.outcome.unwrap();
    }

    /// The time stamp in the answer to a heartbeat.
    pub fn recovery(&mut self) -> RecoveryTimeStamp {
        let heartbeat = Request::Heartbeat(Heartbeat { recovery: RecoveryTimeStamp(1_000) });
        let Response::Heartbeat(answer) = self.ask(0, &heartbeat) else { panic!() };
        answer.recovery
    }

    /// The answer, however long it takes.
    pub fn ask(&mut self, seid: u64, request: &Request) -> Response {
        self.sequence += 1;
        let octets = request.encode(seid, self.sequence);
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(response) = self.exchange(&octets, self.sequence) {
                return response;
            }
        }
        panic!("no answer; the log: {}", self.log())
    }

    /// The answer, if it comes soon.
    pub fn try_ask(&mut self, seid: u64, request: &Request) -> Option<Response> {
        self.sequence += 1;
        let octets = request.encode(seid, self.sequence);
        let response = self.exchange(&octets, self.sequence);
        self.last = response.is_none().then_some((self.sequence, octets));
        response
    }

    /// Sends what was not answered again.
    pub fn ask_last_again(&mut self) -> Option<Response> {
        let (sequence, octets) = self.last.take()?;
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(response) = self.exchange(&octets, sequence) {
                return Some(response);
            }
        }
        panic!("no answer; the log: {}", self.log())
    }

    fn exchange(&mut self, octets: &[u8], sequence: u32) -> Option<Response> {
        // Nobody listens while there is no process.
        let _ = self.smf.send_to(octets, self.upf);
        let mut buffer = [0; 65_536];
        loop {
            let (header, body) = self.receive(&mut buffer)?;
            if header.sequence == sequence && header.message_type.0 == octets[1] + 1 {
                return Some(Response::parse(&header, body).unwrap());
            }
        }
    }

    /// The next message, if it comes soon. A heartbeat is answered: a UPF that has no answers gives the association up.
    fn receive<'a>(&self, buffer: &'a mut [u8]) -> Option<(Header, &'a [u8])> {
        let (len, _) = self.smf.recv_from(buffer).ok()?;
        let (header, body) = Header::parse(&buffer[..len]).unwrap();
        if header.message_type == MessageType::HEARTBEAT_REQUEST {
            let alive = Response::Heartbeat(Heartbeat { recovery: RecoveryTimeStamp(1_000) });
            let _ = self.smf.send_to(&alive.encode(0, header.sequence), self.upf);
        }
        Some((header, body))
    }

    /// Has many sessions established, many at a time, and returns what came of them, in order.
    pub fn flood(&mut self, requests: impl Iterator<Item = Request>) -> Vec<Established> {
        const WINDOW: usize = 128;
        let mut waiting = HashMap::new();
        let mut done = vec![];
        let mut requests = requests.enumerate();
        let mut buffer = [0; 65_536];
        loop {
            while waiting.len() < WINDOW
                && let Some((number, request)) = requests.next()
            {
                self.sequence += 1;
                let octets = request.encode(0, self.sequence);
                self.smf.send_to(&octets, self.upf).unwrap();
                waiting.insert(self.sequence, (number, octets));
            }
            if waiting.is_empty() {
                break;
            }
            let Some((header, body)) = self.receive(&mut buffer) else {
                waiting.values().for_each(|(_, octets)| drop(self.smf.send_to(octets, self.upf)));
                continue;
            };
            if header.message_type != MessageType::SESSION_ESTABLISHMENT_RESPONSE {
                continue;
            }
            let Some((number, _)) = waiting.remove(&header.sequence) else { continue };
            let Ok(Response::SessionEstablishment(response)) = Response::parse(&header, body) else { panic!() };
            done.push((number, response.outcome.unwrap()));
        }
        done.sort_by_key(|(number, _)| *number);
        done.into_iter().map(|(_, established)| established).collect()
    }

    /// As `kaista replace` does it: the heir goes on when it has the ports. Both processes, once they are so far; `traffic` goes
    /// on meanwhile.
    pub fn hand_over(&mut self, mut traffic: impl FnMut(&mut Self)) {
        let (_, heir) = self.spawn_beside(true);
        let holder = self.take_child();
        self.until("the heir has the ports", |stage| {
            traffic(stage);
            assert!(heir.ended().is_none(), "{}", stage.log());
            stage.holders().iter().all(|pid| *pid == heir.pid())
        });
        holder.dismiss();
        self.until("the other has ended", |stage| {
            traffic(stage);
            holder.ended().inspect(|status| assert!(status.success(), "{}", stage.log())).is_some()
        });
        self.child = Some(heir);
    }

    pub fn until(&mut self, what: &str, mut happens: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !happens(self) {
            assert!(begin.elapsed() < PATIENCE, "in vain: {what}; {:?}; the log: {}", self.reports(), self.log());
        }
    }

    /// The processes that have the UPF's ports.
    pub fn holders(&self) -> Vec<i32> {
        let ports = self.broker.ports().unwrap();
        ports.into_iter().filter(|port| port.name.function == "upf").filter_map(|port| port.pid).collect()
    }

    /// Of the ports' links: another number where one was taken over, or its heir has gone after it had begun to.
    pub fn generations(&self) -> Vec<u64> {
        self.broker.ports().unwrap().iter().map(|port| port.generation).collect()
    }

    /// What the UPF reports, and what its ports count.
    pub fn reports(&self) -> Vec<String> {
        let ports = self.broker.ports().unwrap();
        ports.iter().map(|port| format!("{:?}: {:?} {:?} {:?}", port.name, port.report, port.rx, port.tx)).collect()
    }

    pub fn set_child(&mut self, child: Running) {
        self.child = Some(child);
    }

    // The gNB and the data network.

    /// Sends a numbered packet each way, takes those that have arrived, and rests a little.
    pub fn turn(&mut self, teid: u32, number: u32) {
        let sent = self.streams.map(|stream| stream.sent + 1);
        self.turn_leniently(teid, number);
        assert_eq!(self.streams.map(|stream| stream.sent), sent, "a packet was refused");
    }

    /// Takes what has arrived.
    pub fn count_arrivals(&mut self) -> [Stream; 2] {
        for (port, stream) in [&mut self.dn, &mut self.gnb].into_iter().zip(&mut self.streams) {
            let numbers = arrivals(port);
            stream.arrived += numbers.len() as u64;
            for number in numbers {
                stream.out_of_order += u64::from(number < stream.next);
                stream.next = number + 1;
            }
        }
        self.streams
    }

    /// Sends packets that may be lost, and do not count, until some pass both ways: neighbours are resolved.
    pub fn await_both_ways(&mut self, teid: u32, number: u32) {
        self.until("packets pass both ways", |stage| {
            stage.turn_leniently(teid, number);
            std::thread::sleep(Duration::from_millis(1));
            stage.streams.iter().all(|stream| stream.arrived > 0)
        });
        self.settle();
        self.begin_anew();
    }

    /// As [`Stage::turn`], but that ports may refuse.
    pub fn turn_leniently(&mut self, teid: u32, number: u32) {
        let [mut up, mut down] = [self.frame(teid, number).0, self.downlink_frame(number)];
        set_number(&mut up, self.streams[0].sent);
        set_number(&mut down, self.streams[1].sent);
        self.streams[0].sent += self.gnb.queues[0].tx.send(&[PacketRef::from_slice(&up)]) as u64;
        self.streams[1].sent += self.dn.queues[0].tx.send(&[PacketRef::from_slice(&down)]) as u64;
        self.count_arrivals();
        std::thread::sleep(Duration::from_micros(50));
    }

    /// Takes what arrives until nothing has for a while, and begins to count anew.
    pub fn forget_losses(&mut self, mut traffic: impl FnMut(&mut Self)) {
        self.streams = Default::default();
        self.until("packets pass both ways", |stage| {
            traffic(stage);
            stage.count_arrivals().iter().all(|stream| stream.arrived > 100)
        });
        self.settle();
        self.begin_anew();
    }

    /// Takes what arrives until nothing has for a while.
    pub fn settle(&mut self) {
        let mut quiet = Instant::now();
        while quiet.elapsed() < Duration::from_millis(150) {
            let before = self.streams;
            if self.count_arrivals() != before {
                quiet = Instant::now();
            }
        }
    }

    /// Nothing counts that was sent so far.
    pub fn begin_anew(&mut self) {
        self.streams = Default::default();
    }

    /// Replaces text of the configuration, for the next process.
    pub fn reconfigure(&self, from: &str, to: &str) {
        let path = self.folder.path().join("upf.yaml");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from));
        std::fs::write(path, text.replace(from, to)).unwrap();
    }

    /// A packet for a UE.
    pub fn downlink_frame(&self, number: u32) -> Vec<u8> {
        let payload = [0x22; 32];
        let udp = [&[0x20, 0, 0x10, 0, 0, 8 + payload.len() as u8, 0, 0][..], &payload].concat();
        let packet = ipv4(Ipv4Addr::new(192, 0, 2, 1), ue(number), &udp);
        let to = vport::info::derived_mac("n610.6.0.1");
        [&to[..], &self.dn.info.mac, &[8, 0], &packet].concat()
    }

    /// Packets that came out of N6 in all.
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Sends `count` packets of a UE into a tunnel, and waits for as many to come out of N6 as long as they come. Octets of
    /// one packet.
    pub fn uplink(&mut self, teid: u32, number: u32, count: u32) -> u64 {
        self.await_uplink(teid, number);
        let (frame, octets) = self.frame(teid, number);
        for _ in 0..count {
            self.gnb.queues[0].tx.send(&[PacketRef::from_slice(&frame)]);
        }
        let mut quiet = Instant::now();
        while quiet.elapsed() < Duration::from_millis(250) {
            if self.serve() > 0 {
                quiet = Instant::now();
            }
        }
        octets
    }

    /// Sends packets of a UE until the first one comes out of N6; when that was.
    pub fn await_uplink(&mut self, teid: u32, number: u32) -> Instant {
        let (frame, _) = self.frame(teid, number);
        let began = Instant::now();
        let mut next = began;
        while began.elapsed() < PATIENCE {
            if Instant::now() >= next {
                self.gnb.queues[0].tx.send(&[PacketRef::from_slice(&frame)]);
                next += Duration::from_millis(1);
            }
            if self.serve() > 0 {
                return Instant::now();
            }
        }
        panic!("nothing is forwarded; the log: {}", self.log())
    }

    /// Sends a frame from the gNB or the data network.
    pub fn send(&mut self, to: Side, frame: &[u8]) {
        self.send_many(to, &[PacketRef::from_slice(frame)]);
    }

    /// Sends frames from the gNB or the data network; how many there was room for.
    pub fn send_many(&mut self, to: Side, frames: &[PacketRef<'_>]) -> usize {
        self.port(to).queues[0].tx.send(frames)
    }

    /// A burst of what came out of one of the UPF's ports, but for ARP, which is answered; of how many frames it was.
    pub fn sweep(&mut self, from: Side, other: impl FnMut(&[u8])) -> usize {
        each_frame(self.port(from), other)
    }

    /// Of the peer at one of the UPF's ports.
    fn port(&mut self, side: Side) -> &mut Port {
        match side {
            Side::N3 => &mut self.gnb,
            Side::N6 => &mut self.dn,
        }
    }

    /// What came out of the UPF's ports, but for ARP, which is answered.
    pub fn take(&mut self) -> Vec<(Side, Vec<u8>)> {
        let from_n3 = take_frames(&mut self.gnb).into_iter().map(|frame| (Side::N3, frame));
        from_n3.chain(take_frames(&mut self.dn).into_iter().map(|frame| (Side::N6, frame))).collect()
    }

    /// Ethernet addresses: of the gNB, of N3, of the data network, of N6.
    pub fn macs(&self) -> [String; 4] {
        let of = |mac: [u8; 6]| mac.map(|octet| format!("{octet:02x}")).join(":");
        let upf = |port: &str| of(vport::info::derived_mac(port));
        [of(self.gnb.info.mac), upf("n310.3.0.1"), of(self.dn.info.mac), upf("n610.6.0.1")]
    }

    /// Addresses of the session manager, whose socket is free from now on, and of the UPF.
    pub fn release_n4(&mut self) -> [String; 2] {
        let manager = self.smf.local_addr().unwrap().ip();
        self.smf = UdpSocket::bind((manager, 0)).unwrap();
        [manager.to_string(), self.upf.ip().to_string()]
    }

    /// Answers ARP on both ports, and returns how many packets came out of N6.
    fn serve(&mut self) -> u64 {
        answer_arp(&mut self.gnb);
        let arrived = answer_arp(&mut self.dn);
        self.arrived += arrived;
        arrived
    }

    /// A packet of a UE in a tunnel, and the octets of it that count.
    pub fn frame(&self, teid: u32, number: u32) -> (Vec<u8>, u64) {
        let payload = [0x11; 32];
        let udp = [&[0x10, 0, 0x20, 0, 0, 8 + payload.len() as u8, 0, 0][..], &payload].concat();
        let inner = ipv4(ue(number), Ipv4Addr::new(192, 0, 2, 1), &udp);
        let mut gtpu = vec![0x30, 255];
        gtpu.extend((inner.len() as u16).to_be_bytes());
        gtpu.extend(teid.to_be_bytes());
        gtpu.extend(&inner);
        let mut udp = vec![0x08, 0x68, 0x08, 0x68];
        udp.extend((8 + gtpu.len() as u16).to_be_bytes());
        udp.extend([0, 0]);
        udp.extend(gtpu);
        let outer = ipv4(Ipv4Addr::new(10, 3, 0, 2), Ipv4Addr::new(10, 3, 0, 1), &udp);
        let to = vport::info::derived_mac("n310.3.0.1");
        ([&to[..], &self.gnb.info.mac, &[8, 0], &outer].concat(), inner.len() as u64)
    }
}
