//! The User Plane Function as a program: what `kaista-upf` and `kaista upf` run.

use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing_subscriber::EnvFilter;

use crate::acquaintances;
use crate::bell::Bell;
use crate::buffers::Parked;
use crate::clock::Clock;
use crate::config::{Config, PortConfig};
use crate::control;
use crate::crew::Crew;
use crate::elastic::Elastic;
use crate::function::{Place, Plan, Upf};
use crate::log::{self, Throttle};
use crate::metrics::{self, Exporter};
use crate::n4;
use crate::pipeline::{Dispatcher, Sender};
use crate::slow_path::SlowPath;
use crate::store::{Identity, State, Succession};
use crate::succession::{Goods, Holder, Inheritance};
use crate::tables::{Memory, Tables};
use crate::worker::Worker;

/// Between two reports of the counters.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// How long ports may take to be left by the process that had them.
const PORTS_WITHIN: Duration = Duration::from_secs(10);
/// Packets that waited while no process was there go first: for so long N4 leaves the cores to them.
const PACKETS_FIRST: Duration = Duration::from_millis(200);
/// How long a process that has died may take to let go of addresses and files.
const GONE_WITHIN: Duration = Duration::from_secs(1);
/// For how long buckets may be on their way when this process ends.
const SETTLED_WITHIN: Duration = Duration::from_millis(500);
/// Between two looks whether a thread has ended.
const END_POLL: Duration = Duration::from_millis(5);

/// Runs a UPF with the configuration at `path` until SIGTERM or SIGINT. Logs to standard error.
///
/// # Errors
/// The configuration is wrong, or the system refuses what it asks for.
pub fn run(path: &Path) -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let (subscriber, throttle) = log::subscriber(filter, std::io::stderr);
    tracing::subscriber::set_global_default(subscriber).context("a log was begun before")?;
    end_with_any_thread();
    let config = Config::read(path).with_context(|| path.display().to_string())?;
    // Before any thread starts, so that all inherit it.
    let signals = block_signals().context("signals")?;
    serve(&config, &signals, &throttle)
}

fn serve(config: &Config, signals: &SignalFd, throttle: &Throttle) -> anyhow::Result<()> {
    let began = Instant::now();
    let Beginning { places, n4_config, mut inheritance, socket, mut state } = Beginning::of(config)?;
    let ports: Vec<_> = places.iter().map(|place| place.port.control()).collect();
    let clock = state.as_ref().map_or_else(Clock::new, State::clock);
    let (memory, succession) = match &mut state {
        Some(state) => (state.take_memory(), Some(state.succession())),
        None => (Memory::private(config.max_sessions)?, None),
    };
    let plan = Plan { clock, ..Plan::from(config) };
    let Upf { tables, workers, dispatcher, sender, slow_path, meters, counts, traces, bells, control: node, elastic } =
        Upf::with_memory(&plan, places, memory)?;
    if config.execution.varies() && elastic.is_none() && counts.busy().len() > 1 {
        tracing::warn!("the node decides which buckets are whose: all workers run, and buckets stay");
    }
    let elastic_shown = elastic.clone();
    let mut plane = Plane { workers, dispatcher, sender, slow_path, tables: tables.clone(), elastic };
    let neighbours = plane.slow_path.acquaintances();
    let written_down = state.as_ref().map(State::neighbours);
    if let (Some(file), true) = (&written_down, state.as_ref().is_some_and(State::is_found)) {
        plane.slow_path.know(&acquaintances::read(file));
    }
    // By the rules that an earlier process left packets are forwarded at once, and N4 follows. It goes first where another
    // process forwards still, and where rules are missing: peers would be told that they have tunnels which are not there.
    let complete = inheritance.is_none() && state.as_ref().is_none_or(|state| state.are_all(tables.sessions()));
    let (plane, running) = match complete {
        false => (Some(plane), None),
        true => (None, plane.start(&ports, None, signals)?),
    };
    if running.is_some() && tables.sessions() > 0 {
        let_packets_go_first(tables.sessions(), began);
    }
    let (n4_bell, n4_socket, clock) = (meters.bell.clone(), socket.try_clone()?, meters.clock);
    let endpoint = match state {
        Some(state) => n4::Endpoint::with_state(socket, n4_config, tables.clone(), meters, state)?,
        None => n4::Endpoint::new(socket, n4_config, tables.clone(), meters),
    };
    let sources = metrics::Sources {
        counts: counts.clone(),
        ledger: endpoint.ledger(),
        tables: tables.clone(),
        elastic: elastic_shown,
    };
    let inherited = inheritance.as_mut().and_then(|inheritance| inheritance.metrics.take());
    let exporter = exporter(config, inherited, sources)?;
    let operators = control::Server::new(
        control::Address::parse(&config.control),
        control::Sources { inquiry: endpoint.inquiry(), tables, counts: counts.clone(), traces, clock },
    );

    let goods = Goods {
        socket: n4_socket,
        metrics: exporter.as_ref().map(Exporter::socket).transpose()?,
        neighbours: neighbours.clone(),
        custody: endpoint.custody(),
    };
    let running = match plane {
        Some(plane) => plane.start(&ports, inheritance, signals)?,
        None => running,
    };
    let Some(running) = running else { return Ok(()) };
    if let Some(Err(error)) = succession.map(Succession::complete) {
        tracing::error!(%error, "the next process will not find the rules, and forward later");
    }
    drop(ports);
    if let Some(file) = written_down {
        neighbours.keep_in(file);
    }

    let n4 = N4::start(endpoint, n4_bell)?;
    // Whoever only looks has no part in the UPF's end.
    spawn("control", move || operators.run())?;
    let holder = Holder::new();
    let (server, address) = (holder.clone(), config.n4.listen);
    spawn("succession", move || server.run(address, &goods))?;
    if let Some(exporter) = exporter {
        spawn("metrics", move || exporter.run())?;
    }
    tracing::info!(workers = running.crew.workers(), n4 = %config.n4.listen, "ready");

    let report = || node.report(&counts.all());
    wait_for_signal(signals, || {
        report();
        throttle.tell();
    })?;
    let heir = holder.leave();
    tracing::info!("{}", if heir.is_some() { "another process goes on" } else { "stopping" });
    n4.end();
    // Packets are forwarded while peers release their associations. To another process these go as they are.
    if heir.is_none() {
        wait_for_end(&n4.thread, signals)?;
    }
    let waiting = running.end(&bells, heir.is_some());
    report();
    match heir {
        Some(heir) => heir.tell(&waiting).context("the process that was to go on"),
        None => Ok(()),
    }
}

/// Waits, while packets are forwarded by the rules of so many sessions that were left.
fn let_packets_go_first(sessions: usize, began: Instant) {
    tracing::info!(sessions, ms = began.elapsed().as_millis(), "forwards by the rules that were left");
    std::thread::sleep(PACKETS_FIRST);
}

/// What a process begins with.
struct Beginning {
    places: Vec<Place>,
    n4_config: n4::Config,
    /// Of the process that is replaced, if one is.
    inheritance: Option<Inheritance>,
    /// N4's.
    socket: UdpSocket,
    /// What is kept in the state directory, if there is to be one.
    state: Option<State>,
}

impl Beginning {
    /// Opens the ports, and takes N4's address and the state directory.
    fn of(config: &Config) -> anyhow::Result<Self> {
        let open = |(kind, port): (_, &PortConfig)| port.open_for(kind, config.execution.model);
        let places = config.ports().map(open).collect::<anyhow::Result<Vec<_>>>()?;
        let n4_config = n4::Config::from(config);
        let inheritance = match port::Succession::is_wanted() {
            true => Inheritance::ask(config.n4.listen)?,
            false => None,
        };
        let bind = || UdpSocket::bind(config.n4.listen).with_context(|| format!("N4 address {}", config.n4.listen));
        let socket = match &inheritance {
            Some(inheritance) => inheritance.socket.try_clone()?,
            None => patiently(bind)?,
        };
        let state = patiently(|| state(config, &n4_config, &places, inheritance.is_some()))?;
        Ok(Self { places, n4_config, inheritance, socket, state })
    }
}

/// N4, on a thread of its own.
struct N4 {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    bell: Arc<Bell>,
}

impl N4 {
    /// `bell` wakes it.
    fn start(mut endpoint: n4::Endpoint<Tables>, bell: Arc<Bell>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stops = stop.clone();
        Ok(Self { thread: spawn("n4", move || endpoint.run(&stops))?, stop, bell })
    }

    /// Tells it to end.
    fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.bell.ring();
    }
}

/// Serves scrapes where the configuration says: on the socket of the process that is replaced, if that is there.
fn exporter(
    config: &Config,
    inherited: Option<TcpListener>,
    sources: metrics::Sources,
) -> anyhow::Result<Option<Exporter>> {
    let Some(address) = config.metrics else { return Ok(None) };
    Ok(Some(match inherited.filter(|socket| socket.local_addr().ok() == Some(address)) {
        Some(socket) => Exporter::on(socket, sources),
        None => Exporter::bind(address, sources).with_context(|| format!("metrics address {address}"))?,
    }))
}

/// What forwards, before it does.
struct Plane {
    workers: Vec<Worker>,
    dispatcher: Option<Dispatcher>,
    sender: Option<Sender>,
    slow_path: SlowPath,
    tables: Tables,
    elastic: Option<Elastic>,
}

/// What forwards.
struct Running {
    crew: Crew,
    slow_path: JoinHandle<()>,
    stop_slow_path: Arc<AtomicBool>,
    elastic: Option<Watching>,
}

/// Whoever decides over workers.
struct Watching {
    elastic: Elastic,
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
}

impl Watching {
    fn start(elastic: Elastic) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (looks, stops) = (elastic.clone(), stop.clone());
        Ok(Self { elastic, thread: spawn("elastic", move || looks.run(&stops))?, stop })
    }

    /// Nothing moves from here on.
    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.elastic.watch().ring();
        // A thread that panicked has ended the process already.
        let _ = self.thread.join();
        if !self.elastic.settle_within(SETTLED_WITHIN) {
            tracing::warn!("buckets are on their way at the end");
        }
    }
}

impl Plane {
    /// Takes the ports over and forwards. None if this process is to end.
    fn start(
        mut self,
        ports: &[port::Control],
        inheritance: Option<Inheritance>,
        signals: &SignalFd,
    ) -> anyhow::Result<Option<Running>> {
        if let Some(inheritance) = &inheritance {
            self.slow_path.know(&inheritance.neighbours);
        }
        if !take_over(ports, inheritance, &self.tables, &mut self.workers, signals)? {
            return Ok(None);
        }
        let crew = Crew::start(self.workers, self.dispatcher, self.sender)?;
        let stop_slow_path = Arc::new(AtomicBool::new(false));
        let (mut slow_path, stops) = (self.slow_path, stop_slow_path.clone());
        let slow_path = spawn("slow-path", move || slow_path.run(&stops))?;
        let elastic = self.elastic.map(Watching::start).transpose()?;
        Ok(Some(Running { crew, slow_path, stop_slow_path, elastic }))
    }
}

impl Running {
    /// Ends it. What is returned waits, and another process goes on with it.
    fn end(self, bells: &[Arc<Bell>], leaving: bool) -> Vec<Parked> {
        self.elastic.into_iter().for_each(Watching::end);
        let waiting = self.crew.end(bells, leaving);
        self.stop_slow_path.store(true, Ordering::Relaxed);
        bells.iter().for_each(|bell| bell.ring());
        // A thread that panicked has ended the process already.
        let _ = self.slow_path.join();
        waiting
    }
}

/// Takes the ports over, and packets that wait, from the process that is replaced if there is one. False if this process is to end.
fn take_over(
    ports: &[port::Control],
    inheritance: Option<Inheritance>,
    tables: &Tables,
    workers: &mut [Worker],
    signals: &SignalFd,
) -> anyhow::Result<bool> {
    // Where nobody is to be succeeded, nothing comes of it.
    ports.iter().for_each(port::Control::take_over);
    if let Some(inheritance) = inheritance {
        tracing::info!("ready to take over");
        let Some(waiting) = inheritance.wait(signals)? else { return Ok(false) };
        for parked in waiting {
            // Without a session nothing waits for anybody.
            let Some(home) = tables.home_of(parked.up_seid()) else { continue };
            if let Some(worker) = tables.homes().owner(home).and_then(|owner| workers.get_mut(owner)) {
                worker.unpark(home, parked);
            }
        }
    }
    if !port::await_ports(ports, PORTS_WITHIN) {
        anyhow::bail!("whoever has the ports does not leave them");
    }
    Ok(true)
}

/// Tries again for a while where this process is to replace another one: if that has died, it may not be gone altogether.
fn patiently<T>(mut attempt: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let begin = Instant::now();
    loop {
        match attempt() {
            Err(_) if port::Succession::is_wanted() && begin.elapsed() < GONE_WITHIN => std::thread::sleep(END_POLL),
            done => return done,
        }
    }
}

/// What is kept in the state directory, if there is to be one.
fn state(config: &Config, n4: &n4::Config, places: &[Place], is_inherited: bool) -> anyhow::Result<Option<State>> {
    let Some(directory) = &config.state_directory else {
        if is_inherited {
            anyhow::bail!("no stateDirectory: there is nothing to go on with");
        }
        tracing::info!("no stateDirectory: sessions end with this process");
        return Ok(None);
    };
    let tunnels = places.iter().filter(|place| place.kind.has_tunnels());
    let access = tunnels.flat_map(|place| &place.port.info.addresses).map(|(address, _)| address.to_string()).collect();
    let identity = Identity { node: format!("{:?} at {}", n4.node_id, n4.address), access };
    Ok(Some(match is_inherited {
        true => State::inherit(directory, identity, config.max_sessions)?,
        false => State::open(directory, identity, config.max_sessions, n4.recovery)?,
    }))
}

/// A thread that fails takes the process with it: a UPF without one of its parts is restarted sooner than it is noticed.
fn end_with_any_thread() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        default(info);
        std::process::abort();
    }));
}

pub(crate) fn spawn(
    name: &str,
    work: impl FnOnce() -> std::io::Result<()> + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let name = name.to_owned();
    std::thread::Builder::new().name(name.clone()).spawn(move || {
        if let Err(error) = work() {
            tracing::error!(thread = name, %error, "ended");
            std::process::exit(1);
        }
    })
}

fn block_signals() -> nix::Result<SignalFd> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set.add(Signal::SIGINT);
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}

/// Returns when the thread has ended, or another signal has come.
fn wait_for_end(thread: &JoinHandle<()>, signals: &SignalFd) -> anyhow::Result<()> {
    while !thread.is_finished() {
        let timeout = Timespec { tv_sec: 0, tv_nsec: END_POLL.as_nanos() as i64 };
        match poll(&mut [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Returns when a signal to end has come. Calls `tick` every [`REPORT_EVERY`] until then.
fn wait_for_signal(signals: &SignalFd, tick: impl Fn()) -> anyhow::Result<()> {
    let mut next = Instant::now() + REPORT_EVERY;
    loop {
        let left = next.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)], Some(&timeout)) {
            Ok(0) => {
                tick();
                next += REPORT_EVERY;
            }
            Ok(_) => {
                signals.read_signal()?;
                return Ok(());
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
