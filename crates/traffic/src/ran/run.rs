//! The program: ports, threads, signals.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use port::{Control, OpenOptions, Port, QueuePair, RxQueue, Sleep, Waiter};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::ran::bearers::Bearers;
use crate::ran::config::Config;
use crate::ran::gnb::{Gnb, Halves};
use crate::ran::smf::{News, Signals, Smf};

/// Time between two reports of the gNB's counters.
const REPORT_EVERY: Duration = Duration::from_millis(250);
/// Rounds between two looks at the clock while packets flow.
const ROUNDS: u32 = 64;

/// Runs the simulator until SIGTERM or SIGINT.
pub fn run(config: &Config) -> anyhow::Result<()> {
    // Blocked before there are other threads, so that all of them have it so.
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGTERM);
    ends.add(Signal::SIGINT);
    ends.thread_block().context("cannot block signals")?;

    let n3 = open(&config.gnb.port)?;
    let uu = open(&config.ue.port)?;
    let gnb_address = gnb_address(config, &n3)?;
    let wanted = config.wanted();
    let gnb = Gnb::new(gnb_address, &n3.info, &uu.info, Bearers::new(&wanted));
    let signals = Arc::new(Signals::default());
    let (mailbox, news) = mailbox()?;
    let smf = Smf::new(&config.smf, gnb_address, &wanted, move |item| mailbox.put(item))?;

    std::thread::spawn({
        let signals = signals.clone();
        move || {
            let _ = ends.wait();
            signals.stop.store(true, Ordering::Relaxed);
        }
    });
    let upf = config.smf.upf;
    tracing::info!("gNB {gnb_address} on {}, UEs on {}, UPF {upf}", config.gnb.port, config.ue.port);
    std::thread::Builder::new().name("gnb".into()).spawn({
        let signals = signals.clone();
        move || {
            if let Err(error) = forward(gnb, n3, uu, &news, &signals) {
                tracing::error!("the gNB stops: {error:#}");
                // Nothing works without it: end, and be started again.
                std::process::exit(1);
            }
        }
    })?;
    smf.run(&signals)
}

fn open(name: &str) -> anyhow::Result<Port> {
    port::open(name, &OpenOptions::default()).with_context(|| format!("cannot open port {name}"))
}

fn gnb_address(config: &Config, n3: &Port) -> anyhow::Result<IpAddr> {
    let first = n3.info.addresses.first().map(|(address, _)| *address);
    config
        .gnb
        .address
        .or(first)
        .with_context(|| format!("port {} has no address and gnb.address is not set", n3.info.name))
}

/// The gNB's thread.
fn forward(mut gnb: Gnb, n3: Port, uu: Port, news: &Inbox, signals: &Signals) -> anyhow::Result<()> {
    let control = n3.control();
    let (mut n3, mut uu) = (first_queue(n3)?, first_queue(uu)?);
    let mut waiter = Waiter::new(Sleep::After(Duration::from_micros(50)));
    let mut reporter = Reporter { control, next: Instant::now() };
    loop {
        let now = Instant::now();
        news.take(&mut gnb, n3.tx.as_mut(), now);
        let mut found = 0;
        for _ in 0..ROUNDS {
            let round = gnb.uplink(&mut Halves { rx: uu.rx.as_mut(), tx: uu.tx.as_mut() }, n3.tx.as_mut(), now)
                + gnb.downlink(&mut Halves { rx: n3.rx.as_mut(), tx: n3.tx.as_mut() }, uu.tx.as_mut(), now);
            found += round;
            if round == 0 {
                break;
            }
        }
        if gnb.take_suspicion() {
            signals.suspect.store(true, Ordering::Relaxed);
        }
        reporter.tick(&gnb, now);
        if found > 0 {
            waiter.worked();
        } else {
            let queues: &mut [&mut dyn RxQueue] = &mut [n3.rx.as_mut(), uu.rx.as_mut()];
            waiter.wait(queues, &[news.fd()], Some(REPORT_EVERY))?;
        }
    }
}

fn first_queue(port: Port) -> anyhow::Result<QueuePair> {
    let name = port.info.name;
    port.queues.into_iter().next().with_context(|| format!("port {name} has no queue"))
}

struct Reporter {
    control: Control,
    next: Instant,
}

impl Reporter {
    fn tick(&mut self, gnb: &Gnb, now: Instant) {
        if now >= self.next {
            self.control.report(&gnb.named_counters());
            self.next = now + REPORT_EVERY;
        }
    }
}

/// The session manager's end of the way to the gNB's thread.
struct Mailbox {
    sender: Sender<News>,
    bell: OwnedFd,
}

/// The gNB's end.
struct Inbox {
    receiver: Receiver<News>,
    bell: OwnedFd,
}

fn mailbox() -> anyhow::Result<(Mailbox, Inbox)> {
    let (sender, receiver) = channel();
    let (ours, theirs) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).context("cannot make a pipe")?;
    Ok((Mailbox { sender, bell: theirs }, Inbox { receiver, bell: ours }))
}

impl Mailbox {
    fn put(&self, news: News) {
        let _ = self.sender.send(news);
        // A full pipe is a bell that rings already.
        let _ = rustix::io::write(&self.bell, &[1]);
    }
}

impl Inbox {
    fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn take(&self, gnb: &mut Gnb, n3: &mut dyn port::TxQueue, now: Instant) {
        let mut rung = false;
        while let Ok(News::Tunnel { number, endpoint }) = self.receiver.try_recv() {
            rung = true;
            gnb.bearers.set_uplink(number, endpoint);
            if let Some((upf, _)) = endpoint {
                gnb.greet(upf, n3, now);
            }
        }
        if rung {
            while rustix::io::read(&self.bell, &mut [0; 256]).is_ok_and(|len| len > 0) {}
        }
    }
}
