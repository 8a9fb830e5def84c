//! Where the node keeps its files, beside those that belong to the containers ([`runtime::Layout`]).

use std::path::PathBuf;

use runtime::Layout;

/// The directories of one node. Two nodes with different directories do not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Sockets, sandboxes, bundles: what a reboot may take away.
    pub run: PathBuf,
    /// Descriptors, logs, images, state directories of functions: what stays.
    pub state: PathBuf,
}

impl Paths {
    /// `KAISTA_RUN_DIR` and `KAISTA_STATE_DIR`, or `/run/kaista` and `/var/lib/kaista`.
    pub fn from_env() -> Self {
        let layout = Layout::from_env();
        Self { run: layout.run().into(), state: layout.state().into() }
    }

    /// The same directories as containers see them.
    pub fn layout(&self) -> Layout {
        Layout::new(&self.run, &self.state)
    }

    /// The control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.run.join("kaistad.sock")
    }

    /// Whoever holds the lock on this file is the node.
    pub fn lock(&self) -> PathBuf {
        self.run.join("kaistad.lock")
    }

    /// What keeper, daemon and pumps say.
    pub fn daemon_log(&self) -> PathBuf {
        self.state.join("kaistad.log")
    }

    /// What shall be: a descriptor for each slice.
    pub fn descriptors(&self) -> PathBuf {
        self.state.join("descriptors")
    }

    /// What is: a record for each slice of the processes and links that were made for it.
    pub fn records(&self) -> PathBuf {
        self.run.join(".records")
    }

    /// The directory of a pump's port socket.
    pub fn pump(&self, slice: &str, link: &str) -> PathBuf {
        self.pumps().join(slice).join(link)
    }

    /// The directories of all pumps.
    pub fn pumps(&self) -> PathBuf {
        self.run.join(".pumps")
    }

    /// Captured output of a slice's functions.
    pub fn logs(&self, slice: &str) -> PathBuf {
        self.state.join("logs").join(slice)
    }
}
