//! The UPF put together: tables, workers, mostly one a queue pair, the slow path, and the rings between them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::Duration;

use port::owner::GroupError;
use port::{Control, Port};

use crate::alarms::{self, AlarmReceiver, Alarms};
use crate::bell::Bell;
use crate::board::{Board, PortCounts};
use crate::buffers::{self, Room};
use crate::clock::Clock;
use crate::config::Config;
use crate::drops::{DropBoard, DropReason};
use crate::elastic::{Elastic, Elasticity, Ground, Terms};
use crate::mail::{self, Inbox, Outbox};
use crate::model::{Lanes, Model, Shifting};
use crate::nat::log::LogReader;
use crate::nat::{self, Nat, SourceNat};
use crate::pipeline::{Dispatcher, Sender};
use crate::side::{PortId, PortKind, Side, Sides};
use crate::slow_path::{self, Counters, EchoLine, SlowPath};
use crate::tables::{BUCKETS, Memory, Settings, Tables};
use crate::trace::{self, Tracer, Traces};
use crate::worker::{self, Assembly, Habits, Worker};

/// Bytes of a ring between two workers.
const HANDOVER_RING: usize = 1 << 20;
/// Bytes of a ring to or from the slow path.
const SLOW_PATH_RING: usize = 256 << 10;

/// What of the configuration concerns the data plane.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Most sessions held at a time.
    pub max_sessions: usize,
    /// How much of a maximum bit rate may pass at once after a pause, in milliseconds of that rate.
    pub policer_burst_ms: u32,
    /// Octets of packets that may wait for their UEs, of all sessions.
    pub max_buffered_octets: usize,
    /// For how long each waits at most.
    pub max_buffered: Duration,
    /// Leave the UDP checksum of outer IPv6 headers zero.
    pub ipv6_zero_checksum: bool,
    /// The clock of workers and N4.
    pub clock: Clock,
    /// For how long after the start no error indications are sent.
    pub error_indication_hold: Duration,
    /// Data networks with source NAT.
    pub nats: Vec<(PortId, SourceNat)>,
    /// How workers come and go. None: all of them run, and buckets move where that helps.
    pub elasticity: Option<Elasticity>,
    /// How packets get to workers.
    pub model: Model,
    /// Whether one thread sends for all workers of a pipeline, of whom there are as many as the elasticity has at most.
    pub sender: bool,
}

impl Plan {
    /// Most workers that are asked for, if that is said.
    fn most_workers(&self) -> Option<usize> {
        self.elasticity.map(|elasticity| elasticity.terms.max).filter(|&max| max != usize::MAX)
    }

    /// How many workers there are: one for each of the ports' queue pairs, of which N3 has so many, or with a sender as many as are asked
    /// for.
    fn workers(&self, queues: usize, places: &[Place]) -> Result<usize, AssemblyError> {
        if let Some(Place { port, .. }) = places.iter().find(|place| queues == 0 || place.port.queues.len() != queues) {
            let (name, queues_of_it) = (port.info.name.clone(), port.queues.len());
            return Err(AssemblyError::Queues { n3: queues, name, queues: queues_of_it });
        }
        match self.most_workers() {
            Some(max @ 1..=BUCKETS) if self.sender && self.model == Model::Pipeline => Ok(max),
            _ if self.sender => Err(AssemblyError::Sender),
            Some(max) if max > queues => Err(AssemblyError::Workers { max, queues }),
            _ => Ok(queues),
        }
    }

    fn elasticity(&self, workers: usize) -> Elasticity {
        self.elasticity.unwrap_or_else(|| Elasticity { terms: Terms::fixed(workers), ..Elasticity::default() })
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            max_sessions: 1 << 17,
            policer_burst_ms: 50,
            max_buffered_octets: 64 << 20,
            max_buffered: buffers::MAX_AGE,
            ipv6_zero_checksum: false,
            clock: Clock::new(),
            error_indication_hold: Duration::ZERO,
            nats: vec![],
            elasticity: None,
            model: Model::default(),
            sender: false,
        }
    }
}

impl From<&Config> for Plan {
    fn from(config: &Config) -> Self {
        Self {
            max_sessions: config.max_sessions,
            policer_burst_ms: config.policer_burst_ms,
            max_buffered_octets: (config.max_buffered_mib as usize) << 20,
            max_buffered: Duration::from_secs(config.max_buffered_s.into()),
            ipv6_zero_checksum: config.ipv6_zero_checksum,
            clock: Clock::new(),
            error_indication_hold: Duration::from_secs(config.gtpu.error_indication_hold_s.into()),
            nats: config.nats().map(|(port, nat)| (port, nat.clone())).collect(),
            elasticity: Some(config.execution.elasticity()),
            model: config.execution.model,
            sender: config.execution.sender,
        }
    }
}

/// A port with what it is for.
pub struct Place {
    /// What it is for.
    pub kind: PortKind,
    /// Network instances that it belongs to; any where there are none.
    pub network_instances: Vec<String>,
    /// The open port.
    pub port: Port,
}

/// Why ports make no UPF.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    /// The workers need a queue pair of each port.
    #[error("n3 has {n3} queue pairs and port {name} has {queues}; all ports have the same number")]
    Queues {
        /// Queue pairs of N3.
        n3: usize,
        /// Another port.
        name: String,
        /// Its queue pairs.
        queues: usize,
    },
    /// Each worker needs ports outside to translate by.
    #[error(
        "source NAT on port {name} has too few blocks of ports for {workers} workers: give it more addresses, or smaller blocks"
    )]
    NatBlocks {
        /// The port.
        name: String,
        /// How many workers there are.
        workers: usize,
    },
    /// A UPF has N3 and at least one data network, and not too many ports.
    #[error("a UPF has N3, then N6, and at most {} ports", PortId::MAX)]
    Ports,
    /// There cannot be so many workers.
    #[error(
        "execution.workers is up to {max}, and ports have {queues} queue pairs: each worker needs one of every port, but in a pipeline with a sender"
    )]
    Workers {
        /// Most workers that were asked for.
        max: usize,
        /// Queue pairs of each port.
        queues: usize,
    },
    /// A sender is of a pipeline, and there is nothing else that says how many workers there are.
    #[error("a sender is of a pipeline with a number of workers, 1 to {BUCKETS}")]
    Sender,
    /// The ports' steering has another user.
    #[error("the ports' steering")]
    Steering(#[from] GroupError),
    /// The system refused.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// A UPF that is ready to run: each worker and the slow path on a thread of its own.
pub struct Upf {
    /// The session tables.
    pub tables: Tables,
    /// The workers, one a queue pair.
    pub workers: Vec<Worker>,
    /// What receives for them, in a pipeline.
    pub dispatcher: Option<Dispatcher>,
    /// What sends for them, in a pipeline that has it.
    pub sender: Option<Sender>,
    /// The slow path.
    pub slow_path: SlowPath,
    /// What N4 needs to keep account of usage.
    pub meters: Meters,
    /// What the threads count.
    pub counts: Counts,
    /// Packets of a UE, if somebody watches it.
    pub traces: Traces,
    /// Wakes every thread, so that it looks whether it is to stop.
    pub bells: Vec<Arc<Bell>>,
    /// For reports to the node.
    pub control: Control,
    /// Decides over workers and buckets, where buckets move: where there are several workers, and no source NAT. Nothing moves
    /// before it is run, or told to.
    pub elastic: Option<Elastic>,
}

/// How N4 hears of usage.
#[derive(Debug)]
pub struct Meters {
    /// The workers' clock.
    pub clock: Clock,
    /// What workers, in their order, and the slow path tell.
    pub alarms: Vec<AlarmReceiver>,
    /// Rung for each alarm.
    pub bell: Arc<Bell>,
    /// Where GTP-U echo requests are sent from.
    pub echoes: Option<EchoLine>,
}

/// The counters of all threads together.
#[derive(Clone, Debug)]
pub struct Counts {
    drops: Vec<DropBoard>,
    workers: Vec<Board>,
    dispatcher: Option<Board>,
    sender: Option<Board>,
    sides: Sides,
    slow_path: Arc<Counters>,
    clock: Clock,
}

impl Upf {
    /// A UPF between N3 and one data network, whatever network instances rules name, see [`Upf::over`].
    pub fn new(plan: &Plan, n3: Port, n6: Port) -> Result<Self, AssemblyError> {
        let place = |kind, port| Place { kind, network_instances: vec![], port };
        Self::over(plan, vec![place(PortKind::N3, n3), place(PortKind::N6, n6)])
    }

    /// A UPF between these ports, the first of which is N3 and the second a data network, with a worker for each of their
    /// queue pairs.
    pub fn over(plan: &Plan, places: Vec<Place>) -> Result<Self, AssemblyError> {
        Self::with_memory(plan, places, Memory::private(plan.max_sessions)?)
    }

    /// The same with the rules and counters in `memory`. What an earlier process left there is in force.
    pub fn with_memory(plan: &Plan, places: Vec<Place>, memory: Memory) -> Result<Self, AssemblyError> {
        let begins = |place: &Place, kind| place.kind == kind;
        let (n3, queues) = match &places[..] {
            [n3, n6, ..] if begins(n3, PortKind::N3) && begins(n6, PortKind::N6) && places.len() <= PortId::MAX => {
                (n3, n3.port.queues.len())
            }
            _ => return Err(AssemblyError::Ports),
        };
        let count = plan.workers(queues, &places)?;
        let control = n3.port.control();
        let side = |(number, place): (usize, &Place)| {
            let nats = plan.nats.iter().filter(|(port, _)| port.number() == number);
            let side = Side::new(&place.port.info, &place.network_instances).of_kind(place.kind);
            side.with_nat(nats.flat_map(|(_, nat)| nat.each_address()))
        };
        let sides = Sides::new(places.iter().enumerate().map(side).collect());
        let (nats, nat_logs) = nats(plan, &sides, count)?;
        let settings =
            Settings { max_sessions: plan.max_sessions, policer_burst_ms: plan.policer_burst_ms, workers: count };
        let slow_bell = Arc::new(Bell::new()?);
        let (wanted, wanted_by_rules) = mpsc::channel();
        let wake = slow_bell.clone();
        let tell = Box::new(move |port, address| {
            // Fails only when the slow path has ended.
            let _ = wanted.send((port, address));
            wake.ring();
        });
        let (tables, readers) = Tables::over(&settings, sides, memory, tell)?;
        let bells: Vec<_> = (0..count).map(|worker| readers[worker].bell(worker)).collect();
        let clock = plan.clock;
        let n4_bell = Arc::new(Bell::new()?);
        // One for each worker, and one for the slow path.
        let (alarms, receivers) = (0..=count).map(|_| alarms::channel(n4_bell.clone())).unzip();
        let (tracers, traces) = trace::channel(count);
        let (links, mut slow_links) = rings(&bells, &slow_bell, wanted_by_rules, alarms, tracers);
        slow_links.error_indication_hold = plan.error_indication_hold;
        slow_links.nat_logs = nat_logs;
        let echo_line = slow_links.echo_line();
        let habits = Habits {
            room: Room::for_at_most(plan.max_buffered_octets, plan.max_buffered),
            ipv6_zero_checksum: plan.ipv6_zero_checksum,
            clock,
        };
        let lanes = Lanes::lay((plan.model, plan.sender), places, &bells, clock, plan.nats.is_empty())?;
        let (dispatcher, sender) = (lanes.dispatcher, lanes.sender);
        let workers: Vec<_> = readers
            .into_iter()
            .zip(lanes.queues)
            .zip(links)
            .zip(nats)
            .map(|(((reader, queues), links), nat)| Worker::over(reader, queues, links, habits.clone()).with_nat(nat))
            .collect();
        let beside = dispatcher.iter().map(Dispatcher::bell).chain(sender.iter().map(Sender::bell));
        let bells = [bells, beside.collect()].concat();
        let (workers, elastic) = match lanes.shifting {
            Some(shifting) => elastic(
                shifting,
                workers,
                &plan.elasticity(count),
                &tables,
                dispatcher.as_ref().map(Dispatcher::board),
                (clock, &bells),
            )?,
            None => (workers, None),
        };
        let slow_path = SlowPath::new(tables.clone(), slow_links);
        let counts = Counts {
            drops: workers
                .iter()
                .map(Worker::drops)
                .chain([slow_path.board()])
                .chain(sender.iter().map(Sender::drops))
                .collect(),
            workers: workers.iter().map(Worker::board).collect(),
            dispatcher: dispatcher.as_ref().map(Dispatcher::board),
            sender: sender.as_ref().map(Sender::board),
            sides: tables.sides(),
            slow_path: slow_path.counters(),
            clock,
        };
        let meters = Meters { clock, alarms: receivers, bell: n4_bell, echoes: Some(echo_line) };
        Ok(Self {
            tables,
            workers,
            dispatcher,
            sender,
            slow_path,
            meters,
            counts,
            traces,
            bells: [bells, vec![slow_bell]].concat(),
            control,
            elastic,
        })
    }
}

/// What a thread does: it goes on until what it is called with is set and the bells are rung.
pub type Work<'u> = Box<dyn FnMut(&AtomicBool) -> io::Result<()> + Send + 'u>;

impl Upf {
    /// The work of each thread on the way of packets.
    pub fn threads(&mut self) -> impl Iterator<Item = Work<'_>> {
        let workers = self.workers.iter_mut().map(|worker| Box::new(|stop: &AtomicBool| worker.run(stop)) as _);
        let dispatcher =
            self.dispatcher.iter_mut().map(|dispatcher| Box::new(|stop: &AtomicBool| dispatcher.run(stop)) as _);
        let sender = self.sender.iter_mut().map(|sender| Box::new(|stop: &AtomicBool| sender.run(stop)) as _);
        dispatcher.chain(workers).chain(sender)
    }
}

/// Workers that own buckets, and whoever decides over them.
fn elastic(
    mut shifting: Shifting,
    workers: Vec<Worker>,
    elasticity: &Elasticity,
    tables: &Tables,
    dispatcher: Option<Board>,
    (clock, bells): (Clock, &[Arc<Bell>]),
) -> io::Result<(Vec<Worker>, Option<Elastic>)> {
    let (watch, is_steered) = (Arc::new(Bell::new()?), shifting.is_steered);
    let workers = shifting.owning(workers);
    let workers: Vec<_> = workers.into_iter().map(|worker| worker.with_watch(watch.clone(), is_steered)).collect();
    let ground = Ground {
        clock,
        homes: tables.homes(),
        boards: workers.iter().map(Worker::board).collect(),
        dispatcher,
        bells: bells.to_vec(),
        chart: shifting.chart,
        is_steered,
    };
    let elastic = Elastic::new(shifting.decider, elasticity, ground, watch);
    Ok((workers, Some(elastic)))
}

/// What each of so many workers translates, and what they tell of it.
fn nats(plan: &Plan, sides: &Sides, workers: usize) -> Result<(Vec<Nat>, Vec<LogReader>), AssemblyError> {
    let nat = |worker| {
        let (log, reader) = nat::log::channel();
        let name = |port| sides.get(port).name.clone();
        let nat = Nat::new(&plan.nats, worker, workers, log);
        Ok((nat.map_err(|port| AssemblyError::NatBlocks { name: name(port), workers })?, reader))
    };
    (0..workers).map(nat).collect()
}

/// Rings from every thread to every other that it has something to tell.
fn rings(
    bells: &[Arc<Bell>],
    slow_bell: &Arc<Bell>,
    wanted: mpsc::Receiver<slow_path::neighbours::Key>,
    mut alarms: Vec<Alarms>,
    tracers: Vec<Tracer>,
) -> (Vec<worker::Links>, slow_path::Links) {
    let count = bells.len();
    let mut inboxes: Vec<Vec<Inbox>> = (0..count).map(|_| vec![]).collect();
    let mut outboxes: Vec<Vec<Option<Outbox>>> = (0..count).map(|_| vec![]).collect();
    for outboxes in &mut outboxes {
        for (to, inboxes) in inboxes.iter_mut().enumerate() {
            let (outbox, inbox) = mail::channel(HANDOVER_RING, bells[to].clone());
            inboxes.push(inbox);
            outboxes.push(Some(outbox));
        }
    }
    let (outbox, inbox) = mail::channel(SLOW_PATH_RING, bells[0].clone());
    inboxes[0].push(inbox);
    let (to_slow_path, from_workers): (Vec<_>, Vec<_>) =
        (0..count).map(|_| mail::channel(SLOW_PATH_RING, slow_bell.clone())).unzip();
    let assembly = Assembly::new(count);
    let slow_alarms = alarms.pop().expect("the slow path has one, too");
    let links = inboxes
        .into_iter()
        .zip(outboxes)
        .zip(to_slow_path)
        .zip(alarms)
        .zip(tracers)
        .map(|((((inboxes, workers), slow_path), alarms), tracer)| worker::Links {
            inboxes,
            workers,
            slow_path,
            alarms,
            tracer,
            assembly: assembly.clone(),
        })
        .collect();
    (links, slow_path::Links::new(from_workers, outbox, wanted, slow_bell.clone(), slow_alarms))
}

impl Counts {
    /// Packets dropped for `reason`, as far as published.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops.iter().map(|board| board.get(reason)).sum()
    }

    /// Frames of each port, by what operators call it.
    pub fn ports(&self) -> Vec<(String, PortCounts)> {
        let of = |port: PortId| {
            let boards = self.workers.iter().chain(&self.sender).map(|board| board.port(port.number()));
            boards.fold(PortCounts::default(), PortCounts::and)
        };
        self.sides.iter().map(|(port, _)| (self.sides.label(port), of(port))).collect()
    }

    /// Whether the port that operators call so has source NAT.
    pub fn has_nat(&self, label: &str) -> bool {
        self.sides.iter().any(|(port, side)| side.has_nat() && self.sides.label(port) == label)
    }

    /// Packets that wait for their UEs.
    pub fn buffered_packets(&self) -> u64 {
        self.workers.iter().map(Board::buffered_packets).sum()
    }

    /// How long each worker has had packets to treat.
    pub fn busy(&self) -> Vec<Duration> {
        self.workers.iter().map(|board| self.busy_of(board)).collect()
    }

    /// The same of a dispatcher, if there is one.
    pub fn dispatcher_busy(&self) -> Option<Duration> {
        self.dispatcher.as_ref().map(|board| self.busy_of(board))
    }

    /// The same of a sender, if there is one.
    pub fn sender_busy(&self) -> Option<Duration> {
        self.sender.as_ref().map(|board| self.busy_of(board))
    }

    fn busy_of(&self, board: &Board) -> Duration {
        let now_ns = self.clock.now_ns();
        Duration::from_nanos(now_ns.saturating_sub(board.idle_ns(now_ns)))
    }

    /// What the slow path has done.
    pub fn slow_path(&self) -> &Counters {
        &self.slow_path
    }

    /// Everything that has happened at least once, by the name of its counter.
    pub fn all(&self) -> Vec<(&'static str, u64)> {
        use std::sync::atomic::Ordering::Relaxed;
        let drops = DropReason::ALL.iter().map(|&reason| (reason.name(), self.dropped(reason)));
        let slow_path = [
            ("slow_path.answers", self.slow_path.answers.load(Relaxed)),
            ("slow_path.complaints_sent", self.slow_path.complaints_sent.load(Relaxed)),
            ("slow_path.error_indications", self.slow_path.error_indications.load(Relaxed)),
            ("slow_path.reassembled", self.slow_path.reassembled.load(Relaxed)),
            ("slow_path.too_long_told", self.slow_path.too_long_told.load(Relaxed)),
        ];
        drops.chain(slow_path).filter(|&(_, count)| count > 0).collect()
    }
}
