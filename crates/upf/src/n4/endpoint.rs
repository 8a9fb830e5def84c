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
use super::{Config, Datagram, Ledger, Node, RuleTables};
use crate::function::Meters;

/// The longest datagram that UDP can carry.
const DATAGRAM_MAX: usize = 65_507;
/// How often to look whether the second of the start has come.
const START_POLL: Duration = Duration::from_millis(5);
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
}

impl<T: RuleTables> Endpoint<T> {
    /// An endpoint on a bound socket.
    pub fn new(socket: UdpSocket, config: Config, tables: T, meters: Meters) -> Self {
        let (inquiry, questions) = inquiry::channel(meters.bell.clone());
        let release = config.release;
        let node = Node::new(config, tables, meters.clock);
        Self { socket, node, meters, ledger: Ledger::default(), inquiry, questions, release }
    }

    /// What it sends, receives and holds.
    pub fn ledger(&self) -> Ledger {
        self.ledger.clone()
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
        }
        self.leave(&mut buffer)
    }

    fn leave(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let start = Instant::now();
        if self.release.is_zero() || self.node.is_alone() {
            return Ok(());
        }
        self.node.leave(self.release, start).iter().for_each(|datagram| self.send(datagram));
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

    /// Waits for one datagram, an alarm, or until something is due.
    fn turn(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let now = Instant::now();
        self.node.tick(now).iter().for_each(|datagram| self.send(datagram));
        self.hear_alarms();
        self.questions.answer(&self.node);
        self.ledger.hold(self.node.holdings());
        if !self.wait(now)? {
            return Ok(());
        }
        match self.socket.recv_from(buffer) {
            Ok((len, from)) => {
                self.ledger.enter(false, &buffer[..len]);
                if let Some(answer) = self.node.handle(&buffer[..len], from, Instant::now()) {
                    self.send(&answer);
                }
                Ok(())
            }
            Err(error) if is_transient(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Has the node look at what workers have counted, where they say so.
    fn hear_alarms(&mut self) {
        let now = Instant::now();
        for receiver in &mut self.meters.alarms {
            if receiver.overflowed() {
                self.node.look_at_all(now).iter().for_each(|datagram| send(&self.socket, &self.ledger, datagram));
            }
            while let Some(id) = receiver.take() {
                self.node.alarm(id, now).iter().for_each(|datagram| send(&self.socket, &self.ledger, datagram));
            }
        }
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

    fn send(&self, datagram: &Datagram) {
        send(&self.socket, &self.ledger, datagram);
    }
}

/// What cannot be sent is the same as what is lost on its way: it is sent again, or asked for again.
fn send(socket: &UdpSocket, ledger: &Ledger, datagram: &Datagram) {
    ledger.enter(true, &datagram.octets);
    if let Err(error) = socket.send_to(&datagram.octets, datagram.to) {
        tracing::debug!("cannot send to {}: {error}", datagram.to);
    }
}
