//! `kaista upf`: a way to a UPF's control socket, which has a name in the function's network namespace and no file. The daemon
//! connects, and passes the connection on; what goes over it is none of its business.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use runtime::{FunctionId, Sandbox};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::Daemon;
use super::serve::{Answer, find, refuse};
use crate::control::{Event, Failure, FunctionRef, Reply, wire};

/// Where a UPF listens unless its configuration says otherwise.
const SOCKET: &[u8] = b"kaista-upf";

/// Passes on a connection.
pub(super) fn serve(daemon: &Daemon, stream: &UnixStream, function: Option<&FunctionRef>) -> Answer {
    let connection = match function {
        Some(function) => {
            let (slice, _) = find(daemon, function)?;
            let what = |_| refuse(format!("{function} has no control socket: it is no UPF, or does not run"));
            connect_to(daemon, &slice, &function.function).map_err(what)?
        }
        None => only(daemon)?,
    };
    wire::send(stream, &Event::Connected, &[connection.as_fd()])?;
    Ok(Reply::Done)
}

/// To the only function that listens.
fn only(daemon: &Daemon) -> Result<OwnedFd, Failure> {
    let mut found = Vec::new();
    for (slice, handle) in daemon.workers() {
        let containers: Vec<_> = handle.view().containers.keys().cloned().collect();
        for container in containers {
            found.extend(connect_to(daemon, &slice, &container).ok().map(|fd| (format!("{slice}/{container}"), fd)));
        }
    }
    match found.pop() {
        None => Err(refuse("no function is a UPF that runs")),
        Some((_, connection)) if found.is_empty() => Ok(connection),
        Some((last, _)) => {
            let names: Vec<_> = found.into_iter().map(|(name, _)| name).chain([last]).collect();
            Err(refuse(format!("there are several UPFs: say which: {}", names.join(", "))))
        }
    }
}

/// Whoever listens may be hostile; it gets no more than a connection, and nobody waits for it to take it.
fn connect_to(daemon: &Daemon, slice: &str, container: &str) -> anyhow::Result<OwnedFd> {
    let id = FunctionId::new(slice, container)?;
    let sandbox = Sandbox::open(&daemon.node.layout, &id)?.ok_or_else(|| anyhow::anyhow!("{id} has no sandbox"))?;
    let connection = sandbox.net()?.within(|| -> rustix::io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(SOCKET)?)?;
        Ok(socket)
    })??;
    rustix::io::ioctl_fionbio(&connection, false)?;
    Ok(connection)
}
