//! The pump: moves frames between a shared-memory port and an interface of the kernel, both ways.
//!
//! It is a process of its own, since it handles frames of functions that nobody needs to trust: it runs as a user of its
//! own without any capability, cannot gain any, sees no more system calls than it needs, and has nothing open but the
//! interface, its port and the log. When it dies the daemon starts another with the same interface.

mod confine;

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use port::{BURST_MAX, Control, OpenOptions, PacketRef, QueuePair, RxQueue, Sleep, TxQueue, Waiter};
use runtime::CommandLine;
use vport::info::PortInfo;

/// How a pump is started; standard input is the queue of a TAP or macvtap interface.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// User and group to become.
    #[arg(long)]
    uid: u32,
    /// The broker's socket.
    #[arg(long)]
    socket: PathBuf,
    /// Name of the port there.
    #[arg(long)]
    port: String,
    /// Longest IP packet in bytes.
    #[arg(long)]
    mtu: u16,
}

/// How long a pump looks for the next frame before it sleeps: about as long as going to sleep and waking up take.
const SPIN: Duration = Duration::from_micros(20);

/// How often it tells what it could not pass on.
const REPORT_PERIOD: Duration = Duration::from_secs(1);

/// The command that starts a pump.
pub(crate) fn command(uid: u32, socket: &Path, port: &PortInfo) -> io::Result<CommandLine> {
    let mut args: Vec<std::ffi::OsString> = vec!["pump".into()];
    args.extend(["--uid".into(), uid.to_string().into(), "--socket".into(), socket.into()]);
    args.extend(["--port".into(), port.name.clone().into(), "--mtu".into(), port.mtu.to_string().into()]);
    Ok(CommandLine { program: crate::process::own_executable()?, args, env: Vec::new(), cwd: "/".into() })
}

/// Runs the pump until it is killed or its port is taken away.
pub fn run(options: &Options) -> Result<()> {
    let interface = io::stdin().as_fd().try_clone_to_owned()?;
    confine::become_nobody(options.uid).context("cannot give up its rights")?;
    let info = PortInfo { mtu: options.mtu, ..PortInfo::named("interface") };
    let mut kernel = port::from_tap_fd(info, vec![interface])?;
    let open = OpenOptions { socket: options.socket.clone(), ..OpenOptions::default() };
    let mut shared = port::open(&options.port, &open)?;
    let control = shared.control();
    let (kernel, shared) = (kernel.queues.remove(0), shared.queues.remove(0));
    pump(kernel, shared, &control)
}

fn pump(mut kernel: QueuePair, mut shared: QueuePair, control: &Control) -> Result<()> {
    let mut waiter = Waiter::new(Sleep::After(SPIN));
    let mut reported = Instant::now();
    loop {
        let moved = forward(&mut *kernel.rx, &mut *shared.tx) + forward(&mut *shared.rx, &mut *kernel.tx);
        if moved > 0 {
            waiter.worked();
        } else {
            waiter.wait(&mut [&mut *kernel.rx, &mut *shared.rx], &[], None)?;
        }
        if reported.elapsed() >= REPORT_PERIOD {
            reported = Instant::now();
            let (rx, tx) = (kernel.rx.counters(), kernel.tx.counters());
            control.report(&[("pump-kernel-full", tx.refused), ("pump-invalid", rx.invalid)]);
        }
    }
}

/// Moves one burst. What the other side refuses is dropped, as a cable to a full or absent peer would; it is counted there.
fn forward(from: &mut dyn RxQueue, to: &mut dyn TxQueue) -> usize {
    let burst = from.recv();
    let mut packets = [PacketRef::from_slice(&[]); BURST_MAX];
    for (i, packet) in packets.iter_mut().enumerate().take(burst.len()) {
        *packet = burst.get(i);
    }
    if !burst.is_empty() {
        to.send(&packets[..burst.len()]);
    }
    burst.len()
}
