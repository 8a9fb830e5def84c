//! A planned replacement: a UPF process goes on where another one stops, while packets flow.
//!
//! ```text
//! heir                                     holder
//! opens its ports beside the holder's
//! connects, says its version          ->   N4 rests, the store is closed; packets are forwarded
//!                                     <-   N4's socket, neighbours
//! restores the sessions
//! takes the ports over                     is told to end, works off what its ports have
//!                                     <-   packets that wait for their UEs
//! forwards, serves N4                      ends
//! ```
//!
//! Until the holder is told to end, it goes on as before if the heir dies: the heir has changed nothing. If the holder dies,
//! the heir goes on at once, as after any kill.

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::acquaintances::{Acquaintances, Known};
use crate::buffers::Parked;
use crate::control::Address;
use crate::n4::Custody;

/// Of what the two say to each other. An heir says it before anything is changed for it, and one of another version is refused.
const VERSION: u32 = 2;
/// How long either waits for what the other has at hand.
const PATIENCE: Duration = Duration::from_secs(15);
/// Between two attempts to listen, where the UPF that this one has replaced still does.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// Octets of a message at most.
const MESSAGE_MAX: usize = 1 << 30;
/// Parts of sessions' waiting packets in a message: some 64 MiB at most.
const PARKED_AT_A_TIME: usize = 64;

/// What the holder has beside the store; N4's socket comes along, and that of metrics if there is one.
#[derive(Debug, Serialize, Deserialize)]
struct Estate {
    has_metrics: bool,
    neighbours: Vec<Known>,
}

/// In the network namespace, by N4's address: both processes serve there, and two containers share no files for it.
fn address(n4: SocketAddr) -> Address {
    Address::Abstract(format!("kaista-upf-{n4}.succession"))
}

/// A UPF that has just replaced another one may not listen yet.
fn connect(address: &Address) -> Option<UnixStream> {
    let begin = Instant::now();
    loop {
        match address.connect() {
            Ok(stream) => return Some(stream),
            Err(_) if begin.elapsed() < 2 * TRY_AGAIN => std::thread::sleep(TRY_AGAIN / 10),
            Err(_) => return None,
        }
    }
}

/// What an heir gets from the UPF that it replaces.
pub struct Inheritance {
    stream: UnixStream,
    /// N4's socket, bound.
    pub socket: UdpSocket,
    /// Where scrapes come, if anywhere.
    pub metrics: Option<TcpListener>,
    /// Neighbours that are resolved.
    pub neighbours: Vec<Known>,
}

impl Inheritance {
    /// Asks the UPF that runs beside this one. None where there is none.
    ///
    /// # Errors
    /// It does not hand anything over.
    pub fn ask(n4: SocketAddr) -> anyhow::Result<Option<Self>> {
        let Some(mut stream) = connect(&address(n4)) else { return Ok(None) };
        stream.set_read_timeout(Some(PATIENCE))?;
        send(&mut stream, &VERSION, &[])?;
        let (answer, mut fds) = match receive::<Result<Estate, String>>(&mut stream) {
            Ok(received) => received,
            Err(error) => {
                tracing::warn!(%error, "the UPF that was to be replaced has ended");
                return Ok(None);
            }
        };
        let estate = answer.map_err(|why| anyhow::anyhow!("the UPF that runs hands nothing over: {why}"))?;
        let metrics = if estate.has_metrics { fds.pop() } else { None };
        let socket = fds.pop().context("the UPF that runs has no socket for N4")?;
        Ok(Some(Self {
            stream,
            socket: socket.into(),
            metrics: metrics.map(Into::into),
            neighbours: estate.neighbours,
        }))
    }

    /// Waits for the holder's last word, or its end: packets that wait. None if this process is to end instead.
    ///
    /// # Errors
    /// The system refuses.
    pub fn wait(self, signals: &SignalFd) -> anyhow::Result<Option<Vec<Parked>>> {
        loop {
            let mut ends =
                [PollFd::new(&self.stream, PollFlags::IN), PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
            match poll(&mut ends, None) {
                Ok(_) if !ends[1].revents().is_empty() => return Ok(None),
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(self.hear()))
    }

    /// What waits, until the holder has said all. Should it die before that, what it has said.
    fn hear(mut self) -> Vec<Parked> {
        let mut waiting = vec![];
        loop {
            match receive::<Vec<Parked>>(&mut self.stream) {
                Ok((part, _)) if part.is_empty() => return waiting,
                Ok((part, _)) => waiting.extend(part),
                Err(error) => {
                    tracing::warn!(%error, "the UPF that was to be replaced has ended; packets that wait there are lost");
                    return waiting;
                }
            }
        }
    }
}

/// What is handed over.
#[derive(Debug)]
pub struct Goods {
    /// N4's socket.
    pub socket: UdpSocket,
    /// Where scrapes come.
    pub metrics: Option<TcpListener>,
    /// Neighbours, as they are at the time.
    pub neighbours: Acquaintances,
    /// Of N4.
    pub custody: Custody,
}

/// Hands everything over to whoever comes to replace this UPF.
#[derive(Clone)]
pub struct Holder(Arc<Mutex<Stage>>);

enum Stage {
    /// Nobody has come, or whoever came is gone.
    Alone,
    /// An heir has what there is, and gets ready.
    Given(UnixStream),
    /// This process ends.
    Leaving,
}

impl Holder {
    /// One that hands nothing over yet.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Stage::Alone)))
    }

    /// Serves heirs, one after the other, until the process ends.
    ///
    /// # Errors
    /// None; it is a thread's whole work.
    pub fn run(&self, n4: SocketAddr, goods: &Goods) -> io::Result<()> {
        let address = address(n4);
        let listener = loop {
            match address.listen() {
                Ok(listener) => break listener,
                Err(_) => std::thread::sleep(TRY_AGAIN),
            }
        };
        loop {
            if let Err(error) = self.serve(&listener, goods) {
                tracing::warn!(%error, "nothing was handed over");
                std::thread::sleep(TRY_AGAIN);
            }
        }
    }

    fn serve(&self, listener: &UnixListener, goods: &Goods) -> io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        if !crate::control::admits(&stream) {
            return Ok(());
        }
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let (version, _) = receive::<u32>(&mut stream)?;
        let why = if version != VERSION {
            format!("it speaks version {VERSION} of succession, and not {version}")
        } else if !goods.custody.take() {
            "sessions are not kept, so that there is nothing to go on with".into()
        } else {
            String::new()
        };
        if !why.is_empty() {
            send(&mut stream, &Err::<Estate, _>(&why), &[])?;
            return Err(io::Error::other(why));
        }
        stream.set_read_timeout(None)?;
        tracing::info!("sessions are handed over; N4 waits");
        let given = self.give(&mut stream, goods);
        if given.is_ok() {
            // Nothing comes but its end.
            let _ = stream.read(&mut [0]);
        }
        let mut stage = self.lock();
        if !matches!(*stage, Stage::Leaving) {
            *stage = Stage::Alone;
            goods.custody.give_back();
            tracing::warn!("the UPF that was to replace this one is gone; N4 goes on");
        }
        given
    }

    fn give(&self, stream: &mut UnixStream, goods: &Goods) -> io::Result<()> {
        let estate = Estate { has_metrics: goods.metrics.is_some(), neighbours: goods.neighbours.all() };
        let fds: Vec<_> = [goods.socket.as_fd()].into_iter().chain(goods.metrics.iter().map(AsFd::as_fd)).collect();
        let given = Stage::Given(stream.try_clone()?);
        let mut stage = self.lock();
        if matches!(*stage, Stage::Leaving) {
            return Err(io::Error::other("this process ends"));
        }
        *stage = given;
        drop(stage);
        send(stream, &Ok::<_, String>(estate), &fds)
    }

    /// This process is to end. The heir, if there is one: from now on it goes on, whatever happens.
    pub fn leave(&self) -> Option<Heir> {
        match std::mem::replace(&mut *self.lock(), Stage::Leaving) {
            Stage::Given(stream) => Some(Heir(stream)),
            Stage::Alone | Stage::Leaving => None,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Stage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Holder {
    fn default() -> Self {
        Self::new()
    }
}

/// An heir that is ready.
pub struct Heir(UnixStream);

impl Heir {
    /// The last word: packets that wait.
    ///
    /// # Errors
    /// The heir is gone.
    pub fn tell(mut self, waiting: &[Parked]) -> io::Result<()> {
        // Nothing is behind everything.
        for part in waiting.chunks(PARKED_AT_A_TIME).chain([&[][..]]) {
            send(&mut self.0, &part, &[])?;
        }
        Ok(())
    }
}

fn send(stream: &mut UnixStream, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let octets = postcard::to_allocvec(message).map_err(io::Error::other)?;
    let len = (octets.len() as u64).to_le_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    let sent = rustix::net::sendmsg(&*stream, &[io::IoSlice::new(&len)], &mut ancillary, SendFlags::NOSIGNAL)?;
    stream.write_all(&len[sent..])?;
    stream.write_all(&octets)
}

fn receive<M: DeserializeOwned>(stream: &mut UnixStream) -> io::Result<(M, Vec<OwnedFd>)> {
    let mut len = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut part = [io::IoSliceMut::new(&mut len)];
    let received = rustix::net::recvmsg(&*stream, &mut part, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
    if received == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = rights.flatten().collect();
    stream.read_exact(&mut len[received..])?;
    let len = usize::try_from(u64::from_le_bytes(len)).unwrap_or(usize::MAX);
    if len > MESSAGE_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut octets = vec![];
    stream.take(len as u64).read_to_end(&mut octets)?;
    Ok((postcard::from_bytes(&octets).map_err(io::Error::other)?, fds))
}

#[cfg(test)]
mod tests {
    use pfcp::rule::BufferingDuration;
    use port::PacketRef;

    use super::*;
    use crate::buffers::{Buffers, Room, Waiting};
    use crate::side::PortId;

    fn waiting(sessions: u64) -> Vec<Parked> {
        let mut buffers = Buffers::new(Room::new(1 << 20));
        for up_seid in 1..=sessions {
            let waiting =
                Waiting { up_seid, pdr: 2, max_packets: 1, notify: false, duration: BufferingDuration::default() };
            assert!(buffers.keep(0, &waiting, PortId::N6, &PacketRef::from_slice(&[7; 60]), 0).waits);
        }
        buffers.park()
    }

    fn inheritance() -> (Inheritance, UnixStream) {
        let (stream, holder) = UnixStream::pair().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        (Inheritance { stream, socket, metrics: None, neighbours: vec![] }, holder)
    }

    #[test]
    fn a_message_has_packets_of_some_sessions_only() {
        let (Inheritance { mut stream, .. }, holder) = inheritance();
        Heir(holder).tell(&waiting(200)).unwrap();
        let sessions = [64, 64, 64, 8, 0].map(|_| receive::<Vec<Parked>>(&mut stream).unwrap().0.len());
        assert_eq!(sessions, [64, 64, 64, 8, 0]);
    }

    #[test]
    fn packets_that_wait_come_along_however_many_there_are() {
        for sessions in [0, 1, 64, 200] {
            let (inheritance, holder) = inheritance();
            let waiting = waiting(sessions);
            let told = std::thread::spawn({
                let waiting = waiting.clone();
                move || Heir(holder).tell(&waiting)
            });
            assert_eq!(inheritance.hear(), waiting);
            told.join().unwrap().unwrap();
        }
    }

    #[test]
    fn what_a_holder_has_said_before_it_died_is_not_lost() {
        let (inheritance, mut holder) = inheritance();
        let waiting = waiting(3);
        send(&mut holder, &waiting, &[]).unwrap();
        drop(holder);
        assert_eq!(inheritance.hear(), waiting);
    }
}
