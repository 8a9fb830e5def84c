//! A [`Node`] on a UDP socket.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pfcp::RecoveryTimeStamp;
use pfcp::client::is_transient;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::inquiry::{self, Inquiry, Questions};
use super::{Config, Custody, Datagram, Ledger, Node, NotRestored, RuleTables};
use crate::function::Meters;
use crate::store::{Batch, Keeper, State, StateError};

/// The longest datagram that UDP can carry.
const DATAGRAM_MAX: usize = 65_507;
/// Datagrams that are handled before anything else is looked at again. Their answers depend on one commit of the store.
const BURST: usize = 64;
/// How often to look whether the second of the start has come.
const START_POLL: Duration = Duration::from_millis(5);
/// Between two attempts to keep sessions again, where they could not be kept.
const KEEP_AGAIN: Duration = Duration::from_secs(10);
/// Between two looks whether it is to go on.
const REST_POLL: Duration = Duration::from_millis(10);
/// How long it may take to notice that the endpoint is to stop.
const STOP_LATENCY: Duration = Duration::from_millis(500);

/// The N4 endpoint. It blocks on its socket, so it has a thread of its own.
pub struct Endpoint<T> {
    socket: UdpSocket,
    node: Node<T>,
    meters: Meters,
    release: Duration,
    ledger: Ledger,
    inquiry: Inquiry<T>,
    questions: Questions<T>,
    keeping: Option<Keeping>,
    custody: Custody,
}

/// What outlives the process.
struct Keeping {
    keeper: Keeper,
    /// When to try again, should nothing be kept.
    again: Instant,
}

impl<T: RuleTables> Endpoint<T> {
    /// An endpoint on a bound socket.
    pub fn new(socket: UdpSocket, config: Config, tables: T, meters: Meters) -> Self {
        let (inquiry, questions) = inquiry::channel(meters.bell.clone());
        let release = config.release;
        let node = Node::new(config, tables, meters.clock);
        let custody = Custody::new(meters.bell.clone());
        Self { socket, node, meters, ledger: Ledger::default(), inquiry, questions, release, keeping: None, custody }
    }

    /// An endpoint that goes on with the sessions in `state`, and keeps its own there. Its clock is the meters'.
    ///
    /// The recovery time stamp is that of the process before if and only if everything of it is restored.
    pub fn with_state(
        socket: UdpSocket,
        config: Config,
        tables: T,
        meters: Meters,
        mut state: State,
    ) -> Result<Self, StateError> {
        let (new_start, release) = (config.recovery, config.release);
        let config = Config { recovery: state.recovery(), ..config };
        let began = Instant::now();
        let mut node = if !state.is_found() {
            Node::new(config, tables, meters.clock)
        } else {
            let begun = state.begin_to_restore();
            match Node::restore(config, tables, meters.clock, state.database(), begun, began) {
                Ok(node) => {
                    let (sessions, ms) = (node.sessions.len(), began.elapsed().as_millis());
                    tracing::info!(sessions, ms, "restored; the recovery time stamp stays");
                    state.restored();
                    node
                }
                Err(not) if state.is_inherited() => return Err(StateError::NotInherited(not.error.to_string())),
                Err(not) => {
                    let NotRestored { error, config, tables } = *not;
                    state.start_anew(&error.to_string(), new_start, &tables.counters())?;
                    let config = Config { recovery: state.recovery(), ..config };
                    Node::new(config, tables, meters.clock)
                }
            }
        };
        let ledger = Ledger::default();
        let sent = ledger.clone();
        let keeper = socket.try_clone().and_then(|socket| {
            state.keep(node.counters(), node.last_change(), Box::new(move |datagram| send(&socket, &sent, datagram)))
        });
        let keeper = keeper.map_err(StateError::Thread)?;
        node.keep(keeper.durable());
        let (inquiry, questions) = inquiry::channel(meters.bell.clone());
        let keeping = Some(Keeping { keeper, again: began });
        let custody = Custody::new(meters.bell.clone());
        Ok(Self { socket, node, meters, ledger, inquiry, questions, release, keeping, custody })
    }

    /// What it sends, receives and holds.
    pub fn ledger(&self) -> Ledger {
        self.ledger.clone()
    }

    /// Has it rest, from other threads.
    pub fn custody(&self) -> Custody {
        self.custody.clone()
    }

    /// Asks it from other threads.
    pub fn inquiry(&self) -> Inquiry<T> {
        self.inquiry.clone()
    }

    /// Serves peers until `stop` is set, or the socket fails for good. With a time for it, it then asks them to release their
    /// associations, and goes on until they have.
    ///
    /// It waits for the second that its recovery time stamp names. So no two endpoints that have served, one after the
    /// other, have the same time stamp, however fast the second is started: peers notice every restart.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        self.socket.set_nonblocking(true)?;
        self.await_start();
        let mut buffer = vec![0; DATAGRAM_MAX];
        while !stop.load(Ordering::Relaxed) {
            self.turn(&mut buffer)?;
            if self.custody.is_wanted() && !self.rest(stop) {
                return Ok(());
            }
        }
        self.leave(&mut buffer)
    }

    /// Closes the store, and does nothing that would change anything in it, as long as another process may go on with it. False
    /// if that process has.
    fn rest(&mut self, stop: &AtomicBool) -> bool {
        self.pass_on(vec![]);
        let closed = self.keeping.as_ref().is_some_and(|keeping| keeping.keeper.rest());
        // Whoever wanted it may have given up meanwhile.
        if self.custody.rests(closed) {
            while !self.custody.wait(REST_POLL) {
                if stop.load(Ordering::Relaxed) {
                    return false;
                }
                self.questions.answer(&self.node);
            }
        }
        if closed && let Some(keeping) = &self.keeping {
            keeping.keeper.resume();
        }
        true
    }

    fn leave(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let start = Instant::now();
        if self.release.is_zero() || self.node.is_alone() {
            return Ok(());
        }
        let datagrams = self.node.leave(self.release, start);
        self.pass_on(datagrams);
        while !self.node.is_alone() && start.elapsed() < self.release {
            self.turn(buffer)?;
        }
        Ok(())
    }

    fn await_start(&self) {
        // No longer than the second takes, should the clock be set back.
        let latest = Instant::now() + Duration::from_secs(1);
        while self.node.recovery().is_after(RecoveryTimeStamp::now()) && Instant::now() < latest {
            std::thread::sleep(START_POLL);
        }
    }

    /// Waits for datagrams, an alarm, or until something is due.
    fn turn(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let now = Instant::now();
        let datagrams = self.node.tick(now);
        self.pass_on(datagrams);
        let echoes = self.node.take_echoes();
        self.meters.echoes.iter().for_each(|line| line.ask(&echoes));
        self.hear_alarms();
        self.keep_again(now);
        self.questions.answer(&self.node);
        self.ledger.hold(self.node.holdings());
        if self.wait(now)? { self.receive(buffer) } else { Ok(()) }
    }

    /// Handles the datagrams that have come.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let mut answers = Vec::with_capacity(BURST);
        let mut result = Ok(());
        for _ in 0..BURST {
            match self.socket.recv_from(buffer) {
                Ok((len, from)) => {
                    self.ledger.enter(false, &buffer[..len]);
                    answers.extend(self.node.handle(&buffer[..len], from, Instant::now()));
                }
                Err(error) if is_transient(&error) => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.pass_on(answers);
        result
    }

    /// Has the node look at what workers have counted, where they say so.
    fn hear_alarms(&mut self) {
        let now = Instant::now();
        let mut datagrams = vec![];
        for receiver in &mut self.meters.alarms {
            if receiver.overflowed() {
                self.node.look_at_all();
            }
            for alarm in receiver.take_some() {
                datagrams.extend(self.node.alarm(alarm, now));
            }
        }
        self.pass_on(datagrams);
    }

    /// Sleeps until there is a datagram, an alarm, or something is due. Whether there is a datagram.
    fn wait(&mut self, now: Instant) -> io::Result<bool> {
        let bell = &self.meters.bell;
        bell.doze();
        let asked = !self.questions.is_empty();
        let alarmed = asked || self.meters.alarms.iter().any(|receiver| !receiver.is_empty());
        let due = self.node.due().map_or(STOP_LATENCY, |due| due.saturating_duration_since(now));
        let timeout = if alarmed { Duration::ZERO } else { due.min(STOP_LATENCY) };
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let mut ends = [
            PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN),
        ];
        let polled = poll(&mut ends, Some(&timeout));
        bell.wake();
        if ends[1].revents().contains(PollFlags::IN) {
            bell.silence();
        }
        match polled {
            // An error of the socket is told when it is read.
            Ok(_) => Ok(!ends[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends the datagrams, when all that has changed until now is durable.
    fn pass_on(&mut self, datagrams: Vec<Datagram>) {
        let Some(keeping) = &self.keeping else {
            return datagrams.iter().for_each(|datagram| send(&self.socket, &self.ledger, datagram));
        };
        let (number, changes) = self.node.take_changes();
        // Heartbeats say nothing that could be forgotten, and whether the UPF lives.
        let (beats, datagrams): (Vec<_>, _) = datagrams.into_iter().partition(Datagram::is_heartbeat);
        beats.iter().for_each(|datagram| send(&self.socket, &self.ledger, datagram));
        if !changes.is_empty() || !datagrams.is_empty() {
            keeping.keeper.submit(Batch { changes, number, is_all: false, datagrams });
        }
    }

    /// Has everything written where nothing is kept any more.
    fn keep_again(&mut self, now: Instant) {
        let Some(keeping) = self.keeping.as_mut().filter(|keeping| keeping.keeper.is_lost()) else { return };
        if now >= keeping.again {
            keeping.again = now + KEEP_AGAIN;
            let (number, changes) = self.node.all_changes();
            keeping.keeper.submit(Batch { changes, number, is_all: true, datagrams: vec![] });
        }
    }
}

/// What cannot be sent is the same as what is lost on its way: it is sent again, or asked for again.
fn send(socket: &UdpSocket, ledger: &Ledger, datagram: &Datagram) {
    ledger.enter(true, &datagram.octets);
    if let Err(error) = socket.send_to(&datagram.octets, datagram.to) {
        tracing::debug!(peer = %datagram.to, %error, "cannot send");
    }
}
