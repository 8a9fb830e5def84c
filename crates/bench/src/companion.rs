//! Other programs of ours that a measurement runs.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

/// A program that runs until this is dropped. One that would go on for ever, were this process killed, is told to die with it.
pub struct Companion(pub Child);

impl Companion {
    /// Starts it. What it says on its standard output is not read.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let child = command.stdout(Stdio::null()).spawn();
        Ok(Self(child.with_context(|| format!("cannot start {}", command.get_program().display()))?))
    }

    /// Fails if it has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.0.try_wait()? {
            Some(status) => anyhow::bail!("a measured program ended early, with {status}"),
            None => Ok(()),
        }
    }

    /// Stops it where it is, until it is told to go on.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Has it go on for as long as something takes, and pauses it again unless that fails.
    pub fn during<T>(&self, what: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        self.signal(Signal::CONT)?;
        let done = what()?;
        self.pause()?;
        Ok(done)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        // Nobody has waited for it, so that its number is nobody else's.
        Ok(kill_process(Pid::from_child(&self.0), signal)?)
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        // Harmless where it has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The path of another of our programs: beside this one, or where `make install` puts it.
pub fn path(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.parent().context("a program lies in a folder")?;
    [folder.join(name), folder.join("../libexec/kaista").join(name), folder.join("..").join(name)]
        .into_iter()
        .find(|path| path.is_file())
        .with_context(|| format!("{name} is not beside {}", own.display()))
}

/// Runs one of our programs over DPDK, `kaista-...-dpdk`: one file is all of them, and acts as the one whose name it is given.
pub fn over_dpdk(name: &str) -> anyhow::Result<Command> {
    let mut command = Command::new(path("kaista-dpdk")?);
    command.arg0(name);
    Ok(command)
}
