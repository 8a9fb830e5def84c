//! A `.pkt` file: sessions, then packets in and what comes of them.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use port::synthetic::{Captured, Synthetic};
use port::{Burst, PortInfo, Route, RxCounters, RxQueue};
use upf::address_pool::Ipv4Range;
use upf::alarms::Alarm;
use upf::counters::Counters;
use upf::drops::DropReason;
use upf::function::{self, Place, Plan, Upf};
use upf::n4::Echo;
use upf::nat::SourceNat;
use upf::nat::terms::Filtering;
use upf::rules::*;
use upf::side::{PortId, PortKind};
use upf::tables::{Blocks, Memory, SessionUpdate};
use upf::usage::Counts;

use super::frame::{Ends, build, number};
use super::rules::{far, pdr, qer, session, urr};
use super::words::Words;

const PORTS: [&str; 4] = ["n3", "n6", "n6b", "n9"];
/// The number in addresses of each port.
const NETS: [u8; 4] = [3, 6, 7, 9];
const MACS: [[u8; 6]; 4] = [[2, 0, 0, 0, 3, 1], [2, 0, 0, 0, 6, 1], [2, 0, 0, 0, 7, 1], [2, 0, 0, 0, 9, 1]];
const PEERS: [[u8; 6]; 4] = [[2, 0, 0, 0, 3, 2], [2, 0, 0, 0, 6, 2], [2, 0, 0, 0, 7, 2], [2, 0, 0, 0, 9, 2]];

fn port(name: &str) -> usize {
    PORTS.iter().position(|port| *port == name).unwrap_or_default()
}

/// The ends of frames that the UPF receives, by port.
pub fn ends(port: usize) -> Ends {
    Ends { from: PEERS[port], to: MACS[port] }
}

/// What a file says.
#[derive(Default)]
pub struct Scenario {
    /// What is done before `then`, between two of them, and after the last.
    steps: Vec<Step>,
    plan: Plan,
    /// What is sent has to be in the order of the file, on each port.
    in_order: bool,
    /// Sessions and PDRs for which packets wait, of which N4 is told.
    told: Vec<Alarm>,
    /// By the order of [`PORTS`].
    sent: [Vec<Vec<u8>>; 4],
    /// Whether there are more ports than N3 and N6.
    all_ports: bool,
    /// Where the last packet came in.
    last: usize,
    counted: Vec<String>,
    /// By URR ID.
    used: Vec<(u32, Counts)>,
    /// Downlink packets and octets that were dropped, by URR ID.
    lost: Vec<(u32, [u64; 2])>,
    /// UPF's SEIDs of sessions that packets have come for, or none.
    active: Vec<(u64, bool)>,
    unresolved: Vec<IpAddr>,
    /// GTP-U echo requests that N4 wants sent, and those that were answered.
    echoes: Vec<Echo>,
    alive: Vec<Echo>,
    /// Tunnels that their peers do not know, of which N4 is told.
    unknown: Vec<Alarm>,
    mtu: [u16; 2],
    /// What sessions count by, once one is there.
    counters: Option<Counters>,
    /// Where rules lie that outlive the UPF.
    tables: Option<PathBuf>,
}

/// Sessions that are put in force, and then packets.
#[derive(Default)]
struct Step {
    sessions: Vec<Session>,
    removed: Vec<u64>,
    /// By the order of [`PORTS`].
    received: [Vec<Vec<u8>>; 4],
}

impl Scenario {
    pub fn parse(text: &str) -> Result<Self, String> {
        let plan = Plan { max_sessions: 64, ..Plan::default() };
        let mut scenario = Self { plan, mtu: [9_000, 1_500], steps: vec![Step::default()], ..Self::default() };
        scenario.add(text)?;
        Ok(scenario)
    }

    /// Further lines.
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            self.line(line).map_err(|error| format!("line {}: {error}", at + 1))?;
        }
        Ok(())
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let Some((word, rest)) = line.split_once(' ').or((!line.is_empty()).then_some((line, ""))) else {
            return Ok(());
        };
        let mut words = Words(rest.split_whitespace().collect());
        match word {
            "then" => self.steps.push(Step::default()),
            "in-order" => self.in_order = true,
            "room" => self.plan.max_buffered_octets = words.number()? as usize,
            "age" => self.plan.max_buffered = Duration::from_secs(words.number()?),
            "told" => self.told.push(Alarm::Data { up_seid: words.number()?, pdr: words.number()? as u16 }),
            "session" => {
                let session = session(&mut words, self.counters())?;
                self.step().sessions.push(session);
            }
            "removed" => {
                let seid = words.number()?;
                self.step().removed.push(seid);
            }
            "pdr" => self.session()?.pdrs.push(pdr(&mut words)?),
            "far" => self.session()?.fars.push(far(&mut words)?),
            "qer" => self.session()?.qers.push(qer(&mut words)?),
            "urr" => {
                let counters = self.counters();
                let session = self.session()?;
                session.urrs.push(urr(session.up_seid, &mut words, &counters)?);
            }
            "used" => self.used.push((words.number()? as u32, words.counts()?)),
            "lost" => self.lost.push((words.number()? as u32, [words.number()?, words.number()?])),
            "active" => self.active.push((words.number()?, true)),
            "inactive" => self.active.push((words.number()?, false)),
            "unresolved" => self.unresolved.push(words.parse()?),
            "mtu" => self.mtu = [words.parse()?, words.parse()?],
            "echo" => self.echoes.push(echo(&mut words)?),
            "alive" => self.alive.push(echo(&mut words)?),
            "unknown" => {
                let (peer, teid) = (words.parse()?, words.number()? as u32);
                self.unknown.push(Alarm::Unknown { peer, teid });
            }
            "quiet" => self.plan.error_indication_hold = Duration::from_secs(words.number()?),
            "nat" => self.plan.nats.push(nat(&mut words)?),
            "zero-checksum" => self.plan.ipv6_zero_checksum = true,
            "all-ports" => self.all_ports = true,
            "n3" | "n6" | "n6b" | "n9" => {
                self.last = port(word);
                let frame = build(rest, ends(self.last))?;
                self.receive(self.last, vec![frame]);
            }
            "->" => self.outcome(rest)?,
            "times" => self.repeat(words.parse()?),
            other => return Err(format!("what is {other}?")),
        }
        match word {
            "pdr" | "far" | "qer" | "urr" | "session" if !words.0.is_empty() => Err(format!("what is {:?}?", words.0)),
            _ => Ok(()),
        }
    }

    fn counters(&mut self) -> Counters {
        self.counters.get_or_insert_with(|| Counters::private(self.plan.max_sessions).unwrap()).clone()
    }

    fn memory(&mut self) -> Memory {
        let sessions = self.plan.max_sessions;
        let file = |path| File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        let blocks = match &self.tables {
            Some(path) => Blocks::in_file(file(path), sessions),
            None => Blocks::private(sessions),
        };
        Memory { counters: self.counters(), blocks: blocks.unwrap() }
    }

    /// Sessions are not stated, but what they count by is as if they had been.
    pub fn without_sessions(mut self) -> Self {
        self.steps.iter_mut().for_each(|step| step.sessions.clear());
        self
    }

    /// Rules lie in this file, and those that are there already are in force.
    pub fn on(self, tables: &Path) -> Self {
        Self { tables: Some(tables.to_owned()), ..self }
    }

    fn step(&mut self) -> &mut Step {
        self.steps.last_mut().expect("there is always one")
    }

    fn session(&mut self) -> Result<&mut Session, String> {
        self.step().sessions.last_mut().ok_or("a rule before any session".into())
    }

    fn outcome(&mut self, rest: &str) -> Result<(), String> {
        match rest.split_once(' ').unwrap_or((rest, "")) {
            (name @ ("n3" | "n6" | "n6b" | "n9"), frame) => {
                let port = port(name);
                self.sent[port].push(build(frame, Ends { from: MACS[port], to: PEERS[port] })?);
            }
            (counter, "") if DropReason::ALL.iter().any(|reason| reason.name() == counter) => {
                self.counted.push(counter.into());
            }
            (other, _) => return Err(format!("what is {other}?")),
        }
        Ok(())
    }

    /// The packet just received comes so many times in all.
    fn repeat(&mut self, times: usize) {
        let last = self.last;
        if let Some(frame) = self.step().received[last].last().cloned() {
            self.step().received[last].extend(std::iter::repeat_n(frame, times - 1));
        }
    }

    /// Further packets at a port, by the order of [`PORTS`], as they are.
    pub fn receive(&mut self, port: usize, frames: Vec<Vec<u8>>) {
        self.step().received[port].extend(frames);
    }

    /// Compares what a UPF makes of it with what the file says.
    pub fn run(mut self) -> Result<(), String> {
        let sessions = self.steps.iter().flat_map(|step| &step.sessions);
        let urrs: Vec<_> = sessions.clone().flat_map(|session| session.urrs.clone()).collect();
        let watched: Vec<_> = sessions.map(|session| (session.up_seid, session.activity.clone())).collect();
        let Outcome { sent, told, counts } = self.play()?;
        let waiting: Vec<_> = told.iter().copied().filter(|alarm| matches!(alarm, Alarm::Data { .. })).collect();
        if waiting != self.told {
            return Err(format!("N4 is told of {waiting:?} instead of {:?}", self.told));
        }
        let unknown: Vec<_> = told.iter().copied().filter(|alarm| matches!(alarm, Alarm::Unknown { .. })).collect();
        if unknown != self.unknown {
            return Err(format!("N4 is told of {unknown:?} instead of {:?}", self.unknown));
        }
        let alive: Vec<_> = told.into_iter().filter(|alarm| matches!(alarm, Alarm::Alive(_))).collect();
        if alive != self.alive.iter().copied().map(Alarm::Alive).collect::<Vec<_>>() {
            return Err(format!("N4 is told of {alive:?} instead of {:?}", self.alive));
        }
        for (number, is) in sent.into_iter().enumerate() {
            compare(PORTS[number], is, self.sent[number].clone(), self.in_order)?;
        }
        for (id, should) in self.used {
            let urr = urrs.iter().rev().find(|urr| urr.id == id).ok_or(format!("there is no URR {id}"))?;
            let is = urr.usage.read(0).counts;
            if is != should {
                return Err(format!("URR {id} counts {is:?} instead of {should:?}"));
            }
        }
        for (id, should) in self.lost {
            let is = urrs.iter().find(|urr| urr.id == id).map(|urr| urr.usage.read(0).dropped);
            if is != Some(should) {
                return Err(format!("URR {id} has lost {is:?} instead of {should:?}"));
            }
        }
        for (up_seid, should) in self.active {
            let usage = watched.iter().find(|(seid, _)| *seid == up_seid).and_then(|(_, usage)| usage.as_ref());
            let is = usage.ok_or(format!("session {up_seid} is not watched"))?.read(0).last_ns.is_some();
            if is != should {
                return Err(format!("session {up_seid} has packets: {is}"));
            }
        }
        let counted = |name: &str| self.counted.iter().filter(|counted| *counted == name).count() as u64;
        for reason in DropReason::ALL {
            let (is, should) = (counts.dropped(*reason), counted(reason.name()));
            if is != should {
                return Err(format!("{} is {is} instead of {should}", reason.name()));
            }
        }
        Ok(())
    }

    /// Has a UPF with one worker over synthetic ports take all steps.
    pub fn play(&mut self) -> Result<Outcome, String> {
        let ports = if self.all_ports { PORTS.len() } else { 2 };
        let step = Arc::new(AtomicUsize::new(0));
        let (places, captured): (Vec<_>, Vec<_>) = (0..ports).map(|number| self.place(number, &step)).unzip();
        let memory = self.memory();
        let mut upf = Upf::with_memory(&self.plan, places, memory).map_err(|error| error.to_string())?;
        upf.tables.set_neighbours(&self.neighbours(ports)).map_err(|error| error.to_string())?;
        for (at, Step { mut sessions, removed, .. }) in std::mem::take(&mut self.steps).into_iter().enumerate() {
            while upf.workers[0].run_once() {}
            // As N4 does it.
            sessions.iter_mut().for_each(|session| session.pdrs.sort_by_key(|pdr| pdr.precedence));
            let put = sessions.into_iter().map(SessionUpdate::Put);
            let updates: Vec<_> = put.chain(removed.into_iter().map(SessionUpdate::Remove)).collect();
            if apply(&mut upf, updates.clone()).is_err() {
                // What an earlier UPF left may be in the way.
                let left = upf.tables.up_seids().into_iter().map(SessionUpdate::Remove).collect();
                apply(&mut upf, left)?;
                apply(&mut upf, updates)?;
            }
            step.store(at + 1, Relaxed);
        }
        let counts = upf.counts.clone();
        upf.meters.echoes.iter().for_each(|line| line.ask(&self.echoes));
        let mut alarms = std::mem::take(&mut upf.meters.alarms);
        work(upf);
        let told = alarms.iter_mut().flat_map(|heard| std::iter::from_fn(|| heard.take())).collect();
        Ok(Outcome { sent: captured.iter().map(Captured::take).collect(), told, counts })
    }

    /// The port with this number, at which the packets of each step come, and what is sent there.
    fn place(&self, number: usize, step: &Arc<AtomicUsize>) -> (Place, Captured) {
        let (kind, instance, mtu) = [
            (PortKind::N3, "access", self.mtu[0]),
            (PortKind::N6, "internet", self.mtu[1]),
            (PortKind::N6, "ims", 1_500),
            (PortKind::N9, "core", 9_000),
        ][number];
        let (mut port, captured) = Synthetic::new(vec![]).info(info(number, mtu)).open_captured();
        // Nothing comes before there are sessions.
        let frames = self.steps.iter().map(|step| step.received[number].clone());
        port.queues[0].rx = Box::new(Stepwise::new(std::iter::once(vec![]).chain(frames), step.clone()));
        let network_instances = if self.all_ports { vec![instance.to_owned()] } else { vec![] };
        (Place { kind, network_instances, port }, captured)
    }

    fn neighbours(&self, ports: usize) -> Vec<(PortId, IpAddr, Option<[u8; 6]>)> {
        let of = |number: usize| {
            let net = NETS[number];
            [format!("10.{net}.0.2"), format!("2001:db8:{net}::2")]
                .map(|address| (PortId::new(number), address.parse().unwrap(), Some(PEERS[number])))
        };
        (0..ports).flat_map(of).filter(|(_, address, _)| !self.unresolved.contains(address)).collect()
    }
}

/// What a UPF has made of packets.
pub struct Outcome {
    /// By port.
    pub sent: Vec<Vec<Vec<u8>>>,
    /// What N4 has been told.
    pub told: Vec<Alarm>,
    pub counts: function::Counts,
}

/// Puts the updates in force, while the worker goes on.
fn apply(upf: &mut Upf, updates: Vec<SessionUpdate>) -> Result<(), String> {
    let tables = upf.tables.clone();
    let worker = &mut upf.workers[0];
    let applied = std::thread::scope(|scope| {
        let change = scope.spawn(move || tables.apply(updates));
        while !change.is_finished() {
            worker.run_once();
        }
        change.join().expect("no panic")
    });
    applied.map_err(|error| error.to_string())
}

/// A queue that receives the frames of one step.
struct Stepwise {
    queues: Vec<Box<dyn RxQueue>>,
    step: Arc<AtomicUsize>,
}

impl Stepwise {
    fn new(frames: impl Iterator<Item = Vec<Vec<u8>>>, step: Arc<AtomicUsize>) -> Self {
        let queue = |frames| Synthetic::new(frames).once().open().queues.remove(0).rx;
        Self { queues: frames.map(queue).collect(), step }
    }

    fn queue(&mut self) -> &mut dyn RxQueue {
        &mut *self.queues[self.step.load(Relaxed)]
    }
}

impl RxQueue for Stepwise {
    fn recv(&mut self) -> Burst<'_> {
        self.queue().recv()
    }

    fn arm(&mut self) -> bool {
        self.queue().arm()
    }

    fn disarm(&mut self) {}

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![]
    }

    fn counters(&self) -> RxCounters {
        RxCounters::default()
    }
}

/// Has the worker on a thread of its own, as the slow path waits for it, until nothing is left to do.
fn work(mut upf: Upf) {
    use std::sync::atomic::{AtomicBool, Ordering};
    let stop = AtomicBool::new(false);
    let mut worker = upf.workers.remove(0);
    // The packets first, so that what they leave for the slow path is there.
    while worker.run_once() {}
    std::thread::scope(|scope| {
        let working = scope.spawn(|| worker.run(&stop).unwrap());
        let now = std::time::Instant::now();
        upf.slow_path.run_once(now);
        // Long enough after for questions to be given up.
        for tenths in 1..=15 {
            upf.slow_path.run_once(now + std::time::Duration::from_millis(100) * tenths);
        }
        stop.store(true, Ordering::Relaxed);
        upf.bells.iter().for_each(|bell| bell.ring());
        // A scope waits for what its threads do, and not for their ends: leaks would be seen that are none.
        working.join().expect("no panic");
    });
    // What was made whole of fragments, and what comes of it.
    for _ in 0..2 {
        while worker.run_once() {}
        upf.slow_path.run_once(std::time::Instant::now() + std::time::Duration::from_secs(2));
    }
    while worker.run_once() {}
    let stopped = AtomicBool::new(true);
    worker.run(&stopped).unwrap();
}

/// `nat PORT ADDRESSES [ports FIRST-LAST] [block PORTS] [blocks NUMBER] [filtering none|address|port]`.
fn nat(words: &mut Words) -> Result<(PortId, SourceNat), String> {
    let port = PortId::new(port(&words.parse::<String>()?));
    let mut nat = SourceNat::with(vec![Ipv4Range::try_from(words.parse::<String>()?)?]);
    if let Some(ports) = words.after("ports")? {
        nat.ports = ports.try_into()?;
    }
    if let Some(block) = words.after("block")? {
        nat.ports_per_block = number(&block)? as u16;
    }
    if let Some(blocks) = words.after("blocks")? {
        nat.blocks_per_ue = number(&blocks)? as u8;
    }
    nat.filtering = match words.after("filtering")?.as_deref() {
        None | Some("address") => Filtering::AddressDependent,
        Some("none") => Filtering::EndpointIndependent,
        Some("port") => Filtering::AddressAndPortDependent,
        Some(other) => return Err(format!("what is {other}?")),
    };
    Ok((port, nat))
}

fn echo(words: &mut Words) -> Result<Echo, String> {
    Ok(Echo { peer: words.parse()?, sequence: words.number()? as u16 })
}

/// Frames may leave in any order, unless the file says otherwise.
fn compare(port: &str, mut is: Vec<Vec<u8>>, mut should: Vec<Vec<u8>>, in_order: bool) -> Result<(), String> {
    if in_order && is == should {
        return Ok(());
    }
    for frame in std::mem::take(&mut should) {
        match is.iter().position(|sent| *sent == frame) {
            Some(at) => {
                is.remove(at);
            }
            None => should.push(frame),
        }
    }
    let show = |frames: &[Vec<u8>]| frames.iter().map(|frame| format!("\n      {}", hex(frame))).collect::<String>();
    if is.is_empty() && should.is_empty() {
        return if in_order { Err(format!("on {port} everything was sent, but in another order")) } else { Ok(()) };
    }
    Err(format!("on {port}\n    should have been sent:{}\n    was sent instead:{}", show(&should), show(&is)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn info(number: usize, mtu: u16) -> PortInfo {
    let net = NETS[number];
    let route = |to: &str, via: String| Route { to: to.parse().unwrap(), prefix: 8, via: via.parse().unwrap() };
    let routes = vec![route("192.0.0.0", format!("10.{net}.0.2")), route("2a00::", format!("2001:db8:{net}::2"))];
    PortInfo {
        mac: MACS[number],
        mtu,
        addresses: vec![
            (format!("10.{net}.0.1").parse().unwrap(), 24),
            (format!("2001:db8:{net}::1").parse().unwrap(), 64),
        ],
        routes: if number == 1 || number == 2 { routes } else { vec![] },
        ..PortInfo::named(PORTS[number])
    }
}
