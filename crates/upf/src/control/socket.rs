//! The control socket: where it is, and who may connect.

use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;

use rustix::net::sockopt::socket_peercred;

/// Where the socket is if nobody says otherwise: there the node's daemon looks for it, in the function's network namespace.
pub const DEFAULT: &str = "@kaista-upf";

/// Where a control socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A name in the network namespace that needs no file.
    Abstract(String),
    /// A file.
    Path(PathBuf),
}

impl Address {
    /// `@NAME`, or a path.
    pub fn parse(text: &str) -> Self {
        match text.strip_prefix('@') {
            Some(name) => Self::Abstract(name.into()),
            None => Self::Path(text.into()),
        }
    }

    /// Connects.
    ///
    /// # Errors
    /// Nobody listens there, or the system refuses.
    pub fn connect(&self) -> io::Result<UnixStream> {
        match self {
            Self::Abstract(name) => UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?),
            Self::Path(path) => UnixStream::connect(path),
        }
    }

    /// Listens. A file that a UPF before has left is replaced.
    pub(crate) fn listen(&self) -> io::Result<UnixListener> {
        match self {
            Self::Abstract(name) => UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?),
            Self::Path(path) => {
                if self.connect().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
                    fs::remove_file(path)?;
                }
                let listener = UnixListener::bind(path)?;
                fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
                Ok(listener)
            }
        }
    }
}

/// Whether the peer may ask: root, and whoever the UPF runs as. In a container everybody may who gets there, for only the
/// function's own programs and the host's root do; and root does not have its own number there.
pub(crate) fn admits(stream: &UnixStream) -> bool {
    if is_in_container() {
        return true;
    }
    socket_peercred(stream).is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

/// Whether this is not the user namespace that the host began with.
fn is_in_container() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let words: Vec<_> = map.split_whitespace().collect();
    !words.is_empty() && words != ["0", "0", "4294967295"]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_was_left_is_replaced_and_one_in_use_is_not() {
        let path = std::env::temp_dir().join(format!("kaista-control-{}", std::process::id()));
        let address = Address::parse(path.to_str().unwrap());
        let first = address.listen().unwrap();
        assert!(address.listen().is_err());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(first);
        drop(address.listen().unwrap());
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_name_that_needs_no_file_begins_with_an_at_sign() {
        assert_eq!(Address::parse("@a"), Address::Abstract("a".into()));
        assert_eq!(Address::parse("/run/a"), Address::Path("/run/a".into()));
    }
}
