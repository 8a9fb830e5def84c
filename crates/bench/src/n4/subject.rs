//! The UPF that is measured: its N4 endpoint on a socket, and one worker between two open-loop sources.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use port::synthetic::Synthetic;
use port::{Port, PortInfo, RxQueue};
use upf::bell::Bell;
use upf::config::Config;
use upf::function::{Counts, Plan, Upf};
use upf::n4;
use upf::side::PortId;
use upf::store::{Identity, State};

use super::source::{Feed, Pace, Source, WITHOUT_PAUSE};
use crate::folder::Folder;
use crate::line::Tally;
use crate::rig::{self, Way};

/// Where the session manager is.
pub const MANAGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// The UPF, running. It ends when dropped.
pub struct Subject {
    /// Its N4 address.
    pub n4: SocketAddr,
    /// What comes from the RAN, and what comes from the data network.
    pub inputs: [Input; 2],
    sent: Arc<Tally>,
    counts: Counts,
    stop: Arc<AtomicBool>,
    bells: Vec<Arc<Bell>>,
    threads: Vec<JoinHandle<()>>,
    /// Where its sessions are kept.
    _state: Option<Folder>,
}

/// One direction of the traffic.
pub struct Input {
    /// Which.
    pub way: Way,
    feed: Sender<Feed>,
    /// How fast they come.
    pub pace: Arc<Pace>,
}

impl Subject {
    /// Starts a UPF for so many sessions, which are kept in `state`; its worker is on the second of `cores`, everything else on
    /// the first.
    pub fn start(max_sessions: usize, cores: [usize; 2], state: Option<Folder>) -> anyhow::Result<Self> {
        // Threads begin where their maker is.
        traffic::cores::pin(cores[0])?;
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("a socket for N4")?;
        let n4_address = socket.local_addr()?;
        // The session manager has no time for heartbeats, and behind N3 nobody answers echo requests.
        let text = format!(
            "n4: {{listen: '{n4_address}', nodeId: 127.0.0.1, heartbeatS: 86400}}\ngtpu: {{echoS: 0}}\nn3: {{port: n3}}\n\
             n6: {{port: n6}}\nmaxSessions: {max_sessions}"
        );
        let config = Config::parse(&text).map_err(|error| anyhow::anyhow!("{error}"))?;
        let sent = Arc::new(Tally::default());
        let (uplink, n3) = input(Way::Uplink, rig::n3(), &sent)?;
        let (downlink, n6) = input(Way::Downlink, rig::n6(), &sent)?;
        let n4 = n4::Config::from(&config);
        let kept = state.as_ref().map(|folder| keep(folder, max_sessions, &n4)).transpose()?;
        let upf = Upf::new(&Plan::from(&config), n3, n6)?;
        let mut endpoint = match kept {
            Some(state) => n4::Endpoint::with_state(socket, n4, upf.tables.clone(), upf.meters, state)?,
            None => n4::Endpoint::new(socket, n4, upf.tables.clone(), upf.meters),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for mut worker in upf.workers {
            let (stop, core) = (stop.clone(), cores[1]);
            threads.push(std::thread::spawn(move || {
                // Where the core cannot be had for itself, the figures show it.
                let _ = traffic::cores::pin(core);
                let _ = rustix::process::nice(-20);
                worker.run(&stop).expect("a worker over memory does not fail");
            }));
        }
        let stop_n4 = stop.clone();
        threads
            .push(std::thread::spawn(move || endpoint.run(&stop_n4).expect("a socket on the loopback does not fail")));
        let mut slow_path = upf.slow_path;
        let stop_slow_path = stop.clone();
        threads.push(std::thread::spawn(move || {
            slow_path.run(&stop_slow_path).expect("the slow path does not fail");
        }));
        let inputs = [uplink, downlink];
        // Its threads end with it, whatever fails from here on.
        let subject =
            Self { n4: n4_address, inputs, sent, counts: upf.counts, stop, bells: upf.bells, threads, _state: state };
        upf.tables.set_neighbours(&[
            (PortId::N3, IpAddr::from(rig::GNB), Some(rig::GNB_MAC)),
            (PortId::N6, IpAddr::from(rig::SERVER), Some(rig::SERVER_MAC)),
        ])?;
        Ok(subject)
    }

    /// Packets sent so far, both ways.
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// Packets taken so far, both ways.
    pub fn taken(&self) -> u64 {
        self.inputs.iter().map(|input| input.pace.taken()).sum()
    }

    /// Packets that came when the queue was full, both ways.
    pub fn overflown(&self) -> u64 {
        self.inputs.iter().map(|input| input.pace.lost()).sum()
    }

    /// The longest time in which the worker did not poll its ports, since the rate was set.
    pub fn longest_pause(&self) -> Duration {
        let longest_ns = self.inputs.iter().map(|input| input.pace.longest_pause_ns()).max();
        Duration::from_nanos(longest_ns.unwrap_or(0))
    }

    /// Packets dropped so far, by reason.
    pub fn dropped(&self) -> BTreeMap<&'static str, u64> {
        self.counts.all().into_iter().filter(|(name, _)| name.starts_with("drop.")).collect()
    }

    /// Sets the rate of both directions together.
    pub fn set_rate(&self, rate_pps: u64) {
        self.inputs.iter().for_each(|input| input.pace.set(half(rate_pps)));
    }

    /// Waits until nothing is on its way any more: for a while nothing was taken or sent.
    pub fn settle(&self) {
        let mut seen = (0, 0);
        while std::mem::replace(&mut seen, (self.taken(), self.sent())) != (self.taken(), self.sent()) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Input {
    /// Gives the source packets.
    pub fn give(&self, feed: Feed) -> anyhow::Result<()> {
        self.feed.send(feed).map_err(|_| anyhow::anyhow!("the worker has ended"))
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.bells.iter().for_each(|bell| bell.ring());
        for thread in self.threads.drain(..) {
            // What it has to say of a panic it has said.
            let _ = thread.join();
        }
    }
}

/// One direction's part of a rate.
fn half(rate_pps: u64) -> u64 {
    if rate_pps == WITHOUT_PAUSE { WITHOUT_PAUSE } else { rate_pps / 2 }
}

/// A state directory without sessions.
fn keep(folder: &Folder, max_sessions: usize, n4: &n4::Config) -> anyhow::Result<State> {
    let identity = Identity { node: "the one that is measured".into(), access: vec![] };
    Ok(State::open(&folder.path().join("state"), identity, max_sessions, n4.recovery)?)
}

/// A port with one queue: an open-loop source, and a sink that counts into `sent`.
fn input(way: Way, info: PortInfo, sent: &Arc<Tally>) -> anyhow::Result<(Input, Port)> {
    let (source, feed, pace) = Source::new();
    let mut port = Synthetic::new(vec![]).info(info).open();
    let queue = port.queues.pop().context("a port has a queue")?;
    let rx: Box<dyn RxQueue> = Box::new(source);
    port.queues.push(rig::counted(rx, queue.tx, sent));
    Ok((Input { way, feed, pace }, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_direction_has_half_of_a_rate_and_none_a_pause_where_there_is_to_be_none() {
        assert_eq!(half(3_000_000), 1_500_000);
        assert_eq!(half(WITHOUT_PAUSE), WITHOUT_PAUSE);
    }
}
