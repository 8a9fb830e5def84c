//! `n4.restore_100k_s`, or `n4.restore_s` of another number of sessions: a UPF process is killed under traffic, and started again
//! with the same state directory. The time counts from just before the exec until packets of sampled sessions, spread over all of
//! them, have left by N6.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use port::{PacketRef, PortInfo, QueuePair, Steering};
use traffic::frame;
use vport::broker::EndSpec;

use super::manager::{Manager, Session};
use super::{AT_ONCE, packet};
use crate::companion::Companion;
use crate::folder::Folder;
use crate::links::Links;
use crate::progress::Progress;
use crate::rig::{self, Way};

/// Sessions whose packets say that all sessions are back.
const SAMPLED: u32 = 200;
/// Packets of the traffic that are sent at a time, and the pause behind them: the process may have both cores.
const AT_A_TIME: usize = 32;
const PAUSE: Duration = Duration::from_micros(200);
/// Nothing comes any more when nothing has come for so long.
const QUIET: Duration = Duration::from_millis(50);
/// How long a start may take at most.
const PATIENCE: Duration = Duration::from_secs(30);

/// A UPF process between a base station and a host that are this process.
pub struct Restarted {
    links: Links,
    folder: Folder,
    gnb: End,
    host: End,
    process: Option<Companion>,
    /// A packet of each sampled session, by the UE's address.
    sampled: BTreeMap<Ipv4Addr, Vec<u8>>,
}

impl Restarted {
    /// A UPF with so many sessions.
    pub fn with_sessions(count: u32, progress: &Progress) -> anyhow::Result<Self> {
        let folder = Folder::new()?;
        let links = Links::new([
            [
                end("gnb", rig::GNB, rig::GNB_MAC, Steering::None),
                EndSpec::of("upf", steered(rig::n3(), Steering::Teid)),
            ],
            [
                EndSpec::of("upf", steered(rig::n6(), Steering::UeAddress)),
                end("host", rig::SERVER, rig::SERVER_MAC, Steering::None),
            ],
        ])?;
        let gnb = End { queue: links.open("gnb", "gnb")?, mac: rig::GNB_MAC };
        let host = End { queue: links.open("host", "host")?, mac: rig::SERVER_MAC };
        let n4 = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("a port for N4")?.local_addr()?;
        let text = format!(
            "n4: {{listen: '{n4}', nodeId: 127.0.0.1, heartbeatS: 86400}}\nn3: {{port: n3}}\nn6: {{port: n6}}\n\
             maxSessions: {}\nstateDirectory: {}\ncontrol: {}\n",
            count.next_power_of_two(),
            folder.path().join("state").display(),
            folder.path().join("control").display(),
        );
        std::fs::write(folder.path().join("upf.yaml"), text)?;
        let mut all = Self { links, folder, gnb, host, process: None, sampled: BTreeMap::new() };
        all.start()?;
        let mut manager = all.associate(n4)?;
        let step = (count / SAMPLED).max(1);
        manager.establish(0..count, AT_ONCE, |session| {
            if session.number % step == 0 || session.number == count - 1 {
                all.sample(&session);
            }
            progress.go_on()
        })?;
        all.await_traffic(progress)?;
        Ok(all)
    }

    /// Kills the process, and starts another one: how long it takes from there until all sampled sessions forward.
    pub fn kill(&mut self, progress: &Progress) -> anyhow::Result<Duration> {
        self.await_traffic(progress)?;
        // SIGKILL; returns when the process is gone.
        self.process = None;
        self.host.drain();
        let began = self.start()?;
        Ok(self.await_traffic(progress)? - began)
    }

    fn sample(&mut self, session: &Session) {
        self.sampled.insert(rig::ue(session.number), packet(Way::Uplink, session));
    }

    /// Starts the process; when that was.
    fn start(&mut self) -> anyhow::Result<Instant> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["upf", "--die-with-parent", "--config"]).arg(self.folder.path().join("upf.yaml"));
        command.env("KAISTA_PORTS", self.links.socket("upf"));
        // With RUST_LOG the process says what it does.
        if std::env::var_os("RUST_LOG").is_none() {
            command.stderr(Stdio::null());
        }
        let began = Instant::now();
        self.process = Some(Companion::start(&mut command)?);
        Ok(began)
    }

    fn associate(&mut self, n4: SocketAddr) -> anyhow::Result<Manager> {
        let until = Instant::now() + PATIENCE;
        loop {
            match Manager::associate(n4) {
                // Nobody listens yet.
                Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
                other => return other,
            }
            self.process.iter_mut().try_for_each(Companion::check)?;
        }
    }

    /// Sends packets of all sampled sessions in turn until one of each has come out; when the last one did.
    fn await_traffic(&mut self, progress: &Progress) -> anyhow::Result<Instant> {
        let mut missing: Vec<_> = self.sampled.keys().copied().collect();
        let (begin, mut next) = (Instant::now(), 0);
        let frames: Vec<_> = self.sampled.values().collect();
        while !missing.is_empty() {
            progress.go_on()?;
            self.process.iter_mut().try_for_each(Companion::check)?;
            ensure!(begin.elapsed() < PATIENCE, "{} of {} sessions do not forward", missing.len(), frames.len());
            for frame in frames.iter().cycle().skip(next % frames.len()).take(AT_A_TIME) {
                self.gnb.queue.tx.send(&[PacketRef::from_slice(frame)]);
            }
            next += AT_A_TIME;
            self.gnb.take(|_| ());
            self.host.take(|from| missing.retain(|&other| other != from));
            std::thread::sleep(PAUSE);
        }
        Ok(Instant::now())
    }
}

/// A port of this process, which answers whoever asks for its Ethernet address.
struct End {
    queue: QueuePair,
    mac: [u8; 6],
}

impl End {
    /// Takes all that is left of a process that is gone: none of it speaks for the next one.
    fn drain(&mut self) {
        let mut quiet = Instant::now();
        while quiet.elapsed() < QUIET {
            if self.take(|_| ()) > 0 {
                quiet = Instant::now();
            }
        }
    }

    /// Takes what has come: the source address of each IPv4 packet. How many frames there were.
    fn take(&mut self, mut with: impl FnMut(Ipv4Addr)) -> usize {
        let mut answers = vec![];
        let burst = self.queue.rx.recv();
        let count = burst.len();
        for at in 0..count {
            let head = burst.get(at).head;
            match (frame::ethertype(head), head.get(26..30)) {
                (frame::ETHERTYPE_IPV4, Some(&[a, b, c, d])) => with(Ipv4Addr::new(a, b, c, d)),
                (frame::ETHERTYPE_ARP, _) => answers.extend(arp_answer(head, self.mac)),
                _ => {}
            }
        }
        for answer in answers {
            self.queue.tx.send(&[PacketRef::from_slice(&answer)]);
        }
        count
    }
}

/// The answer to an ARP request (RFC 826), whatever address it asks for.
fn arp_answer(request: &[u8], mac: [u8; 6]) -> Option<Vec<u8>> {
    let asker = request.get(22..32)?;
    let asked = request.get(38..42)?;
    let mut answer = request.get(..42)?.to_vec();
    answer[..6].copy_from_slice(&asker[..6]);
    answer[6..12].copy_from_slice(&mac);
    answer[21] = 2;
    answer[22..28].copy_from_slice(&mac);
    answer[28..32].copy_from_slice(asked);
    answer[32..42].copy_from_slice(asker);
    Some(answer)
}

fn steered(mut info: PortInfo, steering: Steering) -> PortInfo {
    info.steering = steering;
    info
}

/// An end with its own address in the network of its peer.
fn end(name: &str, address: Ipv4Addr, mac: [u8; 6], steering: Steering) -> EndSpec {
    let mut info = steered(PortInfo::named(name), steering);
    info.addresses = vec![(address.into(), 24)];
    info.mac = mac;
    info.mtu = 9_000;
    EndSpec::of(name, info)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_gets_the_address() {
        let mut request = [0; 42];
        request[..6].fill(0xff);
        request[20..22].copy_from_slice(&[0, 1]);
        request[22..32].copy_from_slice(&[1, 1, 1, 1, 1, 1, 10, 0, 0, 1]);
        request[38..42].copy_from_slice(&[10, 0, 0, 2]);
        let answer = arp_answer(&request, [2; 6]).unwrap();
        assert_eq!((&answer[..12], &answer[20..22]), (&[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2][..], &[0, 2][..]));
        assert_eq!(answer[22..42], [2, 2, 2, 2, 2, 2, 10, 0, 0, 2, 1, 1, 1, 1, 1, 1, 10, 0, 0, 1]);
        assert!(arp_answer(&request[..41], [2; 6]).is_none());
    }
}
