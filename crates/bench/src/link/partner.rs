//! The other process of a latency measurement: sends back what comes, first over a port while polling, then over the
//! port while sleeping, then by eventfds. Each phase has a number of trips that both sides know.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use port::{Burst, OpenOptions, QueuePair, Sleep, TxQueue, Waiter};
use traffic::cores::pin;
use traffic::interrupt::die_with_parent;
use traffic::stamp::now_ns;

/// Where in a frame the partner writes when it received it, while it sleeps between packets.
pub const STAMP: std::ops::Range<usize> = 16..24;
/// How long a packet may take before the other side is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Every how many polls the clock is looked at for that.
const LOOK_EVERY: u32 = 1 << 20;

/// Arguments of the partner.
#[derive(Clone, Debug, clap::Args)]
pub struct Partner {
    /// The broker's socket
    #[arg(long)]
    pub socket: PathBuf,
    /// The port
    #[arg(long)]
    pub port: String,
    /// The core to stay on
    #[arg(long)]
    pub core: usize,
    /// What to do, how often
    #[command(flatten)]
    pub trips: Trips,
}

/// How often each phase goes to and fro.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Trips {
    /// Over the port, both sides polling
    #[arg(long, default_value_t = 0)]
    pub polling: u64,
    /// Over the port, both sides sleeping
    #[arg(long, default_value_t = 0)]
    pub sleeping: u64,
    /// By eventfds alone: rung on standard input, answered on standard output
    #[arg(long, default_value_t = 0)]
    pub eventfd: u64,
}

impl Trips {
    /// As the partner's arguments.
    pub fn arguments(self) -> [String; 6] {
        let Self { polling, sleeping, eventfd } = self;
        ["--polling", &polling.to_string(), "--sleeping", &sleeping.to_string(), "--eventfd", &eventfd.to_string()]
            .map(str::to_owned)
    }
}

/// Is the partner of the process that started this one.
pub fn be_partner(args: &Partner) -> anyhow::Result<()> {
    die_with_parent();
    pin(args.core)?;
    let options = OpenOptions { socket: args.socket.clone(), ..OpenOptions::default() };
    let queue = port::open(&args.port, &options)?.queues.into_iter().next();
    let mut queue = queue.context("a port has a queue")?;
    // Who started it ends it.
    let never = AtomicBool::new(false);
    for _ in 0..args.trips.polling {
        polled(&mut queue, &never, |burst, tx| tx.send(&[burst.get(0)]))?;
    }
    let mut habit = sleeper();
    for _ in 0..args.trips.sleeping {
        slept(&mut queue, &mut habit, &never, |burst, tx| {
            let received_ns = now_ns();
            burst.get_mut(0).head_mut()[STAMP].copy_from_slice(&received_ns.to_be_bytes());
            tx.send(&[burst.get(0)])
        })?;
    }
    let (rung, answer) = (io::stdin(), io::stdout());
    for _ in 0..args.trips.eventfd {
        take(rung.as_fd())?;
        ring(answer.as_fd())?;
    }
    Ok(())
}

/// Polls until a packet is there, and hands it on. Fails where `stop` is set before.
#[inline]
pub fn polled<T>(
    queue: &mut QueuePair,
    stop: &AtomicBool,
    handle: impl FnOnce(&mut Burst<'_>, &mut dyn TxQueue) -> T,
) -> anyhow::Result<T> {
    let mut polls = 0_u32;
    let mut give_up = None;
    loop {
        let mut burst = queue.rx.recv();
        if !burst.is_empty() {
            return Ok(handle(&mut burst, queue.tx.as_mut()));
        }
        polls = polls.wrapping_add(1);
        if polls.is_multiple_of(LOOK_EVERY) {
            ensure!(!stop.load(Ordering::Relaxed), "interrupted");
            let now = Instant::now();
            ensure!(now < *give_up.get_or_insert(now + PATIENCE), "the other process does not answer");
        }
        // As a waiter that never sleeps does.
        std::hint::spin_loop();
    }
}

/// A waiter that goes to sleep at once.
pub fn sleeper() -> Waiter {
    Waiter::new(Sleep::After(Duration::ZERO))
}

/// Sleeps until a packet is there, and hands it on. Fails where `stop` is set before.
pub fn slept<T>(
    queue: &mut QueuePair,
    waiter: &mut Waiter,
    stop: &AtomicBool,
    handle: impl FnOnce(&mut Burst<'_>, &mut dyn TxQueue) -> T,
) -> anyhow::Result<T> {
    let mut give_up = None;
    loop {
        let mut burst = queue.rx.recv();
        if !burst.is_empty() {
            return Ok(handle(&mut burst, queue.tx.as_mut()));
        }
        let woken = waiter.wait(&mut [queue.rx.as_mut()], &[], None);
        woken?;
        ensure!(!stop.load(Ordering::Relaxed), "interrupted");
        if give_up.is_none_or(|give_up| Instant::now() > give_up) {
            ensure!(give_up.is_none(), "the other process does not answer");
            give_up = Some(Instant::now() + PATIENCE);
        }
    }
}

/// Waits until an eventfd was rung.
pub fn take(eventfd: BorrowedFd<'_>) -> io::Result<()> {
    nix::unistd::read(eventfd, &mut [0; 8]).map(drop).map_err(io::Error::from)
}

/// Rings an eventfd.
pub fn ring(eventfd: BorrowedFd<'_>) -> io::Result<()> {
    nix::unistd::write(eventfd, &1_u64.to_ne_bytes()).map(drop).map_err(io::Error::from)
}
