//! A [`Node`] on a UDP socket.

use std::io;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pfcp::RecoveryTimeStamp;
use pfcp::client::is_transient;

use super::{Config, Datagram, Node, RuleTables};

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
}

impl<T: RuleTables> Endpoint<T> {
    /// An endpoint on a bound socket.
    pub fn new(socket: UdpSocket, config: Config, tables: T) -> Self {
        Self { socket, node: Node::new(config, tables) }
    }

    /// Serves peers until `stop` is set, or the socket fails for good.
    ///
    /// It waits for the second that its recovery time stamp names. So no two endpoints that have served, one after the
    /// other, have the same time stamp, however fast the second is started: peers notice every restart.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        self.await_start();
        let mut buffer = vec![0; DATAGRAM_MAX];
        while !stop.load(Ordering::Relaxed) {
            self.turn(&mut buffer)?;
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

    /// Waits for one datagram, or until something is due.
    fn turn(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let now = Instant::now();
        self.node.tick(now).iter().for_each(|datagram| self.send(datagram));
        let due = self.node.due().map_or(STOP_LATENCY, |due| due.saturating_duration_since(now));
        // A timeout of zero would mean none.
        self.socket.set_read_timeout(Some(due.clamp(Duration::from_millis(1), STOP_LATENCY)))?;
        match self.socket.recv_from(buffer) {
            Ok((len, from)) => {
                if let Some(answer) = self.node.handle(&buffer[..len], from, Instant::now()) {
                    self.send(&answer);
                }
                Ok(())
            }
            Err(error) if is_transient(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What cannot be sent is the same as what is lost on its way: the peer asks again.
    fn send(&self, datagram: &Datagram) {
        if let Err(error) = self.socket.send_to(&datagram.octets, datagram.to) {
            tracing::debug!("cannot send to {}: {error}", datagram.to);
        }
    }
}
