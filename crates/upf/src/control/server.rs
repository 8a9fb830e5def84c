//! Answers what operators ask, on threads of its own.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::socket::{Address, admits};
use super::{Detail, Dropped, Event, Request, Seid, Summary};
use crate::clock::Clock;
use crate::drops::DropReason;
use crate::function::Counts;
use crate::n4::Inquiry;
use crate::rules::Session;
use crate::tables::Tables;
use crate::trace::Traces;

/// Connections at a time.
const CONNECTIONS: usize = 8;
/// Longest request.
const REQUEST_MAX: u64 = 4 << 10;
/// How long a peer may take to ask, and to take what it is told.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts to listen where somebody else does, say a UPF that this one is to replace.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// Sessions that N4 is asked for at a time: so many, that it serves its peers in between.
const SESSIONS_AT_A_TIME: usize = 64;

/// What answers come from.
#[derive(Clone)]
pub struct Sources {
    /// N4.
    pub inquiry: Inquiry<Tables>,
    /// The session tables.
    pub tables: Tables,
    /// What threads count.
    pub counts: Counts,
    /// Packets of a UE.
    pub traces: Traces,
    /// The workers' clock.
    pub clock: Clock,
}

/// The server.
pub struct Server {
    address: Address,
    sources: Sources,
}

/// A connection to an operator.
pub(super) struct Peer(UnixStream);

impl Server {
    /// A server for operators that connect to `address`.
    pub fn new(address: Address, sources: Sources) -> Self {
        Self { address, sources }
    }

    /// Serves until the process ends. That nobody can ask is no reason for a UPF to end.
    ///
    /// # Errors
    /// None; it is a thread's whole work.
    pub fn run(&self) -> io::Result<()> {
        let mut said = false;
        let listener = loop {
            match self.address.listen() {
                Ok(listener) => break listener,
                Err(error) => {
                    if !std::mem::replace(&mut said, true) {
                        tracing::warn!(address = ?self.address, %error, "no control socket yet");
                    }
                    std::thread::sleep(TRY_AGAIN);
                }
            }
        };
        let connections = Arc::new(AtomicUsize::new(0));
        loop {
            let Ok((stream, _)) = listener.accept() else {
                // Too many files, or no memory: that may be over soon.
                std::thread::sleep(TRY_AGAIN);
                continue;
            };
            if connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS || !admits(&stream) {
                connections.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (sources, held) = (self.sources.clone(), connections.clone());
            let served = std::thread::Builder::new().name("control".into()).spawn(move || {
                // What goes wrong with one connection is its peer's business.
                drop(serve(stream, &sources));
                held.fetch_sub(1, Ordering::Relaxed);
            });
            if served.is_err() {
                connections.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

fn serve(stream: UnixStream, sources: &Sources) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = Vec::new();
    BufReader::new((&stream).take(REQUEST_MAX)).read_until(b'\n', &mut line)?;
    let mut peer = Peer(stream);
    let answered = match serde_json::from_slice(&line) {
        Ok(request) => answer(&mut peer, request, sources)?,
        Err(error) => Err(format!("not understood: {error}")),
    };
    peer.tell(&answered.map_or_else(|message| Event::Failed { message }, |()| Event::Done))
}

/// Answers, or says why not.
fn answer(peer: &mut Peer, request: Request, sources: &Sources) -> io::Result<Result<(), String>> {
    match request {
        Request::Sessions => sources.each_session(peer),
        Request::Session { up_seid: Seid(up_seid) } => match sources.session(up_seid) {
            Err(message) => Ok(Err(message)),
            Ok(session) => {
                let detail = Detail::of(session, sources.tables.worker_of(up_seid));
                peer.tell(&Event::Detail(Box::new(detail))).map(Ok)
            }
        },
        Request::Drops => {
            for &reason in DropReason::ALL {
                peer.tell(&Event::Drop(Dropped::of(reason, sources.counts.dropped(reason))))?;
            }
            Ok(Ok(()))
        }
        Request::Trace { ue } => super::trace::serve(peer, ue, sources),
    }
}

const BUSY: &str = "N4 has no time to answer";

impl Sources {
    fn each_session(&self, peer: &mut Peer) -> io::Result<Result<(), String>> {
        let mut next = Some(0);
        while let Some(from) = next {
            let page =
                self.inquiry.ask(move |node| node.sessions_from(from).take(SESSIONS_AT_A_TIME).collect::<Vec<_>>());
            let Some(sessions) = page else { return Ok(Err(BUSY.into())) };
            next = sessions.last().and_then(|last| last.up_seid.checked_add(1));
            for session in sessions {
                let summary = Summary::of(&session, self.tables.worker_of(session.up_seid));
                peer.tell(&Event::Session(summary))?;
            }
        }
        Ok(Ok(()))
    }

    pub(super) fn session(&self, up_seid: u64) -> Result<Session, String> {
        let found = self.inquiry.ask(move |node| node.session(up_seid)).ok_or(BUSY)?;
        found.ok_or_else(|| format!("there is no session {up_seid:#x}"))
    }
}

impl Peer {
    pub(super) fn tell(&mut self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        self.0.write_all(&line)
    }

    pub(super) fn stream(&self) -> &UnixStream {
        &self.0
    }
}
