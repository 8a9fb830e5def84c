//! Other programs of ours that a measurement runs.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::Context;

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
