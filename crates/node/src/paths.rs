//! Where the node keeps its files.

use std::path::PathBuf;

/// The directories of one node. Two nodes with different directories do not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Sockets, sandboxes, bundles: what a reboot may take away.
    pub run: PathBuf,
    /// Descriptors, records of what runs, logs, images, state directories of functions.
    pub state: PathBuf,
}

impl Paths {
    /// `KAISTA_RUN_DIR` and `KAISTA_STATE_DIR`, or `/run/kaista` and `/var/lib/kaista`.
    pub fn from_env() -> Self {
        let directory =
            |variable, default| std::env::var_os(variable).map_or_else(|| PathBuf::from(default), PathBuf::from);
        Self {
            run: directory("KAISTA_RUN_DIR", "/run/kaista"),
            state: directory("KAISTA_STATE_DIR", "/var/lib/kaista"),
        }
    }

    /// The control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.run.join("kaistad.sock")
    }

    /// Whoever holds the lock on this file is the node.
    pub fn lock(&self) -> PathBuf {
        self.run.join("kaistad.lock")
    }

    /// What keeper and daemon say.
    pub fn daemon_log(&self) -> PathBuf {
        self.state.join("kaistad.log")
    }

    /// The stored descriptor and the record of one slice.
    pub fn slice_state(&self, slice: &str) -> PathBuf {
        self.slices().join(slice)
    }

    /// All stored slices.
    pub fn slices(&self) -> PathBuf {
        self.state.join("slices")
    }

    /// Run-time files of one slice.
    pub fn slice_run(&self, slice: &str) -> PathBuf {
        self.run.join("slices").join(slice)
    }

    /// Run-time files of one function: sandbox, bundle, port socket.
    pub fn function_run(&self, slice: &str, function: &str) -> PathBuf {
        self.slice_run(slice).join(function)
    }

    /// The captured output of one function.
    pub fn log(&self, slice: &str, function: &str) -> PathBuf {
        self.slice_state(slice).join("logs").join(function).with_extension("log")
    }

    /// The state directories that functions asked for; they outlive the slice.
    pub fn function_state(&self, slice: &str, function: &str) -> PathBuf {
        self.state.join("functions").join(slice).join(function)
    }

    /// Unpacked images.
    pub fn images(&self) -> PathBuf {
        self.state.join("images")
    }
}
