//! A session manager's end of the reliable delivery (TS 29.244, 6.4): one request at a time over a UDP socket, sent again
//! with the same bytes until it is answered.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::header::{Header, HeaderError, MessageType};
use crate::message::{ParseError, Request, Response};
use crate::node::{Heartbeat, RecoveryTimeStamp};

/// Sends requests to one peer and waits for its responses. Heartbeats of the peer are answered while it waits, and by
/// [`Client::serve`] otherwise.
#[derive(Debug)]
pub struct Client {
    socket: UdpSocket,
    peer: SocketAddr,
    recovery: RecoveryTimeStamp,
    retry: Retry,
    sequence: u32,
    peer_recovery: Option<RecoveryTimeStamp>,
    buffer: Vec<u8>,
}

/// How often to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// How long to wait for a response before the request is sent again.
    pub t1: Duration,
    /// How often it is sent in all.
    pub n1: u32,
}

impl Default for Retry {
    fn default() -> Self {
        Self { t1: Duration::from_secs(1), n1: 3 }
    }
}

/// Why a request got no response.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The peer is silent.
    #[error("{peer} does not answer a request of type {}, sent {tries} times", .message_type.0)]
    NoAnswer {
        /// The peer.
        peer: SocketAddr,
        /// The request's type.
        message_type: MessageType,
        /// How often it was sent.
        tries: u32,
    },
    /// The peer answers what this crate cannot parse.
    #[error("the response of {peer} is wrong: {error}")]
    Response {
        /// The peer.
        peer: SocketAddr,
        /// What is wrong.
        error: ParseError,
    },
    /// The socket fails.
    #[error("PFCP socket: {0}")]
    Io(#[from] io::Error),
}

/// The longest datagram that UDP can carry.
const DATAGRAM_MAX: usize = 65_507;

impl Client {
    /// A client on `socket`, which must not be connected. `recovery` is this node's start.
    pub fn new(socket: UdpSocket, peer: SocketAddr, recovery: RecoveryTimeStamp, retry: Retry) -> Self {
        Self { socket, peer, recovery, retry, sequence: 0, peer_recovery: None, buffer: vec![0; DATAGRAM_MAX] }
    }

    /// The peer.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The peer's start, as it last told. A change means that its sessions are gone.
    pub fn peer_recovery(&self) -> Option<RecoveryTimeStamp> {
        self.peer_recovery
    }

    /// Sends `request` about the peer's session `seid` (0 if there is none yet), as often as it takes, and returns the
    /// response; rejections are responses too.
    pub fn request(&mut self, seid: u64, request: &Request) -> Result<Response, ClientError> {
        self.sequence = (self.sequence + 1) & 0xff_ffff;
        let sequence = self.sequence;
        let datagram = request.encode(seid, sequence);
        for _ in 0..self.retry.n1 {
            self.send(&datagram)?;
            let until = Instant::now() + self.retry.t1;
            if let Some(response) = self.await_response(request.message_type(), sequence, until)? {
                return Ok(response);
            }
        }
        let message_type = request.message_type();
        Err(ClientError::NoAnswer { peer: self.peer, message_type, tries: self.retry.n1 })
    }

    /// Answers what the peer sends on its own, for `time`.
    pub fn serve(&mut self, time: Duration) -> Result<(), ClientError> {
        let until = Instant::now() + time;
        while let Some(len) = self.receive(until)? {
            self.answer(len)?;
        }
        Ok(())
    }

    fn await_response(
        &mut self,
        request: MessageType,
        sequence: u32,
        until: Instant,
    ) -> Result<Option<Response>, ClientError> {
        // A response's type follows its request's, but for an unsupported version.
        let expected = [MessageType(request.0 + 1), MessageType::VERSION_NOT_SUPPORTED_RESPONSE];
        while let Some(len) = self.receive(until)? {
            let Ok((header, body)) = Header::parse(&self.buffer[..len]) else { continue };
            if header.sequence == sequence && expected.contains(&header.message_type) {
                let response = Response::parse(&header, body);
                let response = response.map_err(|error| ClientError::Response { peer: self.peer, error })?;
                self.note_recovery(&response);
                return Ok(Some(response));
            }
            self.answer(len)?;
        }
        Ok(None)
    }

    fn note_recovery(&mut self, response: &Response) {
        match response {
            Response::Heartbeat(heartbeat) => self.peer_recovery = Some(heartbeat.recovery),
            Response::AssociationSetup(setup) => self.peer_recovery = Some(setup.recovery),
            _ => {}
        }
    }

    /// Answers the request in the first `len` octets of the buffer; heartbeats only, the rest is left to time out.
    fn answer(&mut self, len: usize) -> Result<(), ClientError> {
        let (sequence, answer) = match Header::parse(&self.buffer[..len]) {
            Ok((header, body)) => match Request::parse(&header, body) {
                Ok(Request::Heartbeat(heartbeat)) => {
                    self.peer_recovery = Some(heartbeat.recovery);
                    (header.sequence, Response::Heartbeat(Heartbeat { recovery: self.recovery }))
                }
                _ => return Ok(()),
            },
            Err(HeaderError::Version { message_type, sequence, .. })
                if message_type != MessageType::VERSION_NOT_SUPPORTED_RESPONSE =>
            {
                (sequence, Response::VersionNotSupported)
            }
            Err(_) => return Ok(()),
        };
        self.send(&answer.encode(0, sequence))
    }

    /// A peer that is not there yet is told by ICMP, and is then the same as a silent one.
    fn send(&self, datagram: &[u8]) -> Result<(), ClientError> {
        match self.socket.send_to(datagram, self.peer) {
            Err(error) if !is_transient(&error) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Waits for the next datagram of the peer; `None` once it is `until`.
    fn receive(&mut self, until: Instant) -> Result<Option<usize>, ClientError> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.socket.set_read_timeout(Some(left))?;
            match self.socket.recv_from(&mut self.buffer) {
                Ok((len, from)) if from.ip() == self.peer.ip() => return Ok(Some(len)),
                Ok(_) => {}
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Whether an error of a UDP socket says no more than that nothing came, or that a peer that was sent to is not there,
/// which ICMP tells.
pub fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::*;
    matches!(
        error.kind(),
        WouldBlock
            | TimedOut
            | Interrupted
            | ConnectionRefused
            | ConnectionReset
            | HostUnreachable
            | NetworkUnreachable
    )
}
