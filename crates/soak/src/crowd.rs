//! All UEs of a UPF: packets of each in turn, uplink and downlink, and what comes out is judged session by session.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use pfcp::Request;
use port::{BURST_MAX, PacketRef};

use crate::checker::Checker;
use crate::frames::Stamp;
use crate::outcome::Tally;
use crate::stage::{self, PATIENCE, Side, Stage};

/// Octets of a user's packet: these count as used.
pub const PACKET: usize = 60;
/// At its end: whose it is, its number, and what shows that no bit is another.
const STAMP: usize = 32;
/// Packets on their way in one direction, where none may be lost: rings have room for more.
const WINDOW: u64 = 4_096;
/// Sessions that are looked at for one burst: few of them may be missing.
const LOOKED_AT: usize = 4_096;
/// What has not come when nothing has for so long does not come.
const QUIET: Duration = Duration::from_millis(100);

/// A UPF, and as many UEs as it has sessions.
pub struct Crowd {
    /// The UPF's surroundings.
    pub stage: Stage,
    /// What flows through it.
    pub traffic: Traffic,
    /// Of its sessions.
    seids: Vec<u64>,
}

/// What is sent and found.
pub struct Traffic {
    ways: [Way; 2],
    /// Packets say to which act they belong: only those of the present one are judged.
    act: Act,
    number: u32,
    found: Tally,
    last: Instant,
    silence: Duration,
}

/// What is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Of each session a packet comes. Others may be lost, and those that wait for a neighbour are overtaken.
    Recovery,
    /// Each packet comes, once and in order.
    Steady,
}

/// Uplink or downlink.
struct Way {
    from: Side,
    to: Side,
    /// A frame of each session.
    frames: Vec<Vec<u8>>,
    /// Whose turn it is.
    at: usize,
    /// Of each session, in this act, and in all.
    sent: Vec<u64>,
    sent_ever: Vec<u64>,
    arrived_ever: Vec<u64>,
    /// Of all sessions, in this act.
    sum: Sum,
    /// The sessions of which nothing has come in this act.
    missing: Vec<bool>,
    left: usize,
    checkers: Vec<Checker>,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    sent: u64,
    arrived: u64,
    refused: u64,
}

/// Runs a campaign of a stage: where that gives up it panics, which is the campaign's failure.
pub fn caught<T>(campaign: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(campaign)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        bail!("{}", text.unwrap_or("it panicked"))
    })
}

impl Crowd {
    /// Starts a UPF, which is `program` in one of its parts, with so many sessions. Returns when all forward.
    pub fn begin(program: &Path, net: u8, sessions: u32) -> Result<Self> {
        let room = sessions.next_power_of_two() as usize;
        let mut stage = Stage::of(vec![program.into(), "upf".into()], net, "", room, "");
        stage.start();
        stage.associate();
        let requests = (0..sessions).map(|number| Request::SessionEstablishment(stage::simple(number)));
        let established = stage.flood(requests);
        // Before there are many: what waits for a neighbour would not have room.
        stage.await_both_ways(stage::teid_of(&established[sessions as usize - 1]), sessions - 1);
        let tunnels = established.iter().zip(0..).map(|(session, number)| (number, stage::teid_of(session)));
        let uplink = tunnels.map(|(number, teid)| stage.frame(teid, number).0).collect();
        let downlink = (0..sessions).map(|number| stage.downlink_frame(number)).collect();
        let ways = [Way::new(Side::N3, Side::N6, uplink), Way::new(Side::N6, Side::N3, downlink)];
        let seids = established.iter().map(|session| session.up_f_seid.seid).collect();
        let (found, last, silence) = (Tally::default(), Instant::now(), Duration::ZERO);
        let traffic = Traffic { ways, act: Act::Steady, number: 0, found, last, silence };
        let mut crowd = Self { stage, traffic, seids };
        crowd.await_all(Instant::now())?;
        Ok(crowd)
    }

    /// Sends packets of those of whom none has come since the act began, until one of each has, both ways. How long after `since`
    /// that was of the first, and of the last.
    pub fn await_all(&mut self, since: Instant) -> Result<[Duration; 2]> {
        let (stage, traffic) = (&mut self.stage, &mut self.traffic);
        let mut first = None;
        loop {
            let sent = traffic.send(stage, true);
            if traffic.take(stage) > 0 {
                first = first.or(Some(since.elapsed()));
            }
            if traffic.left() == 0 {
                return Ok([first.unwrap_or_default(), since.elapsed()]);
            }
            if since.elapsed() > PATIENCE {
                bail!("of {} sessions nothing comes; the log: {}", traffic.left(), stage.log());
            }
            if sent == 0 {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }

    /// Packets of each session in turn for a while.
    pub fn play(&mut self, time: Duration) {
        let begin = Instant::now();
        while begin.elapsed() < time {
            self.traffic.turn(&mut self.stage);
        }
    }

    /// Takes what arrives until nothing has for a while.
    pub fn settle(&mut self) {
        let mut quiet = Instant::now();
        while quiet.elapsed() < QUIET {
            match self.traffic.take(&mut self.stage) {
                0 => std::thread::sleep(Duration::from_micros(200)),
                _ => quiet = Instant::now(),
            }
        }
    }

    /// Ends some of the sessions, and compares what they are said to have used uplink with what came and what was sent. In words
    /// what is wrong.
    pub fn check_usage(&mut self, every_packet_came: bool) -> Vec<String> {
        let step = (self.seids.len() / 100).max(1);
        let mut wrong = Vec::new();
        // Of the last one there were packets before.
        for number in (0..self.seids.len() - 1).step_by(step) {
            let counted = stage::end(&mut self.stage, self.seids[number]) / PACKET as u64;
            let [arrived, sent] = self.traffic.uplink_of(number);
            if !(arrived..=sent).contains(&counted) || every_packet_came && counted != arrived {
                wrong.push(format!("session {number} has counted {counted} packets; {sent} were sent, {arrived} came"));
            }
        }
        wrong
    }
}

impl Traffic {
    /// Ends an act: what it found counts. Begins another.
    pub fn begin(&mut self, act: Act) {
        self.found = self.tally();
        (self.act, self.number) = (act, self.number + 1);
        self.ways.iter_mut().for_each(|way| way.begin(act));
        (self.last, self.silence) = (Instant::now(), Duration::ZERO);
    }

    /// What went wrong so far. What is on its way is not lost.
    pub fn tally(&self) -> Tally {
        let mut found = self.found;
        self.ways.iter().flat_map(|way| &way.checkers).for_each(|checker| found.add(checker.tally()));
        found
    }

    /// Sends some packets each way, takes what has arrived, and rests a little.
    pub fn turn(&mut self, stage: &mut Stage) {
        self.send(stage, false);
        self.take(stage);
        std::thread::sleep(Duration::from_micros(50));
    }

    /// Packets sent in this act, and those of them that have not come.
    pub fn sent_and_missing(&self) -> [u64; 2] {
        let sent: u64 = self.ways.iter().map(|way| way.sum.sent).sum();
        [sent, sent.saturating_sub(self.ways.iter().map(|way| way.sum.arrived).sum())]
    }

    /// Times that a port had no room.
    pub fn refused(&self) -> u64 {
        self.ways.iter().map(|way| way.sum.refused).sum()
    }

    /// The longest time without an arrival since the last call.
    pub fn silence(&mut self) -> Duration {
        std::mem::take(&mut self.silence)
    }

    /// Sessions of which nothing has come in this act, counted for each way.
    pub fn left(&self) -> usize {
        self.ways.iter().map(|way| way.left).sum()
    }

    /// Of a session: packets that came in all, and that were sent.
    fn uplink_of(&self, session: usize) -> [u64; 2] {
        [self.ways[0].arrived_ever[session], self.ways[0].sent_ever[session]]
    }

    /// A burst each way, if there is room; `missing`: only of those of whom nothing has come.
    fn send(&mut self, stage: &mut Stage, missing: bool) -> usize {
        let (number, window) = (self.number, if self.act == Act::Steady { WINDOW } else { u64::MAX });
        self.ways.iter_mut().map(|way| way.send(stage, number, window, missing)).sum()
    }

    /// Takes all that has arrived; how many packets of this act.
    fn take(&mut self, stage: &mut Stage) -> usize {
        let (number, found) = (self.number, &mut self.found);
        let arrived: usize = self.ways.iter_mut().map(|way| way.take(stage, number, found)).sum();
        if arrived > 0 {
            self.silence = self.silence.max(self.last.elapsed());
            self.last = Instant::now();
        }
        arrived
    }
}

impl Way {
    fn new(from: Side, to: Side, frames: Vec<Vec<u8>>) -> Self {
        let none = || vec![0; frames.len()];
        let (sent, sent_ever, arrived_ever) = (none(), none(), none());
        let mut way = Self {
            from,
            to,
            frames,
            at: 0,
            sent,
            sent_ever,
            arrived_ever,
            sum: Sum::default(),
            missing: vec![],
            left: 0,
            checkers: vec![],
        };
        way.begin(Act::Steady);
        way
    }

    fn begin(&mut self, act: Act) {
        let sessions = self.frames.len();
        self.sent.fill(0);
        self.sum = Sum::default();
        self.missing = vec![true; sessions];
        self.left = sessions;
        // A checker tells so many flows apart.
        let checkers = if act == Act::Steady { sessions.div_ceil(1 << 16) } else { 0 };
        self.checkers = (0..checkers).map(|_| Checker::new(1 << 16, 1)).collect();
    }

    fn send(&mut self, stage: &mut Stage, act: u32, window: u64, missing: bool) -> usize {
        if self.sum.sent.saturating_sub(self.sum.arrived) + BURST_MAX as u64 > window {
            return 0;
        }
        let count = self.frames.len();
        let turns = (self.at..self.at + count.min(LOOKED_AT)).map(|at| at % count);
        let sessions: Vec<_> = turns.filter(|at| !missing || self.missing[*at]).take(BURST_MAX).collect();
        for &session in &sessions {
            let frame = &mut self.frames[session];
            let at = frame.len() - STAMP;
            frame[at..].copy_from_slice(&stamp(session, act, self.sent[session]));
        }
        let packets: Vec<_> = sessions.iter().map(|session| PacketRef::from_slice(&self.frames[*session])).collect();
        let sent = stage.send_many(self.from, &packets);
        for &session in &sessions[..sent] {
            self.sent[session] += 1;
            self.sent_ever[session] += 1;
        }
        self.at = match (sessions.get(sent), sessions.last()) {
            (Some(&refused), _) => refused,
            (None, Some(&last)) if sessions.len() == BURST_MAX => last + 1,
            _ => (self.at + LOOKED_AT) % count,
        };
        self.sum.sent += sent as u64;
        self.sum.refused += u64::from(sent < sessions.len());
        sent
    }

    fn take(&mut self, stage: &mut Stage, act: u32, found: &mut Tally) -> usize {
        let mut arrived = 0;
        // Whatever comes meanwhile.
        for _ in 0..64 {
            let burst = stage.sweep(self.to, |frame| {
                if stage::is_users(frame) {
                    arrived += usize::from(self.judge(frame, act, found));
                }
            });
            if burst == 0 {
                break;
            }
        }
        arrived
    }

    /// Whether it is of this act.
    fn judge(&mut self, frame: &[u8], act: u32, found: &mut Tally) -> bool {
        let Some((session, of, number)) = self.read(frame) else {
            found.corrupted += 1;
            return false;
        };
        self.arrived_ever[session] += 1;
        if of != act {
            return false;
        }
        self.sum.arrived += 1;
        self.left -= usize::from(std::mem::take(&mut self.missing[session]));
        if let Some(checker) = self.checkers.get_mut(session >> 16) {
            checker.take(Stamp { flow: session as u16, incarnation: 0, number });
        }
        true
    }

    /// Session, act and number of a packet that is as sent.
    fn read(&self, frame: &[u8]) -> Option<(usize, u32, u64)> {
        let (head, packet) = frame.split_last_chunk::<PACKET>()?;
        let (header, last) = packet.split_last_chunk::<STAMP>()?;
        let session = u32::from_be_bytes(*last[12..].first_chunk()?) as usize;
        let (act, number) = (u32::from_be_bytes(*last[8..].first_chunk()?), u64::from_be_bytes(*last.first_chunk()?));
        let sent = self.frames.get(session)?;
        let whole = *last == stamp(session, act, number) && sent[..sent.len() - STAMP].ends_with(header);
        // Downlink it is in the session's tunnel.
        let its = self.to == Side::N6 || head.get(46..50) == Some(&(session as u32 + 1).to_be_bytes());
        (whole && its).then_some((session, act, number))
    }
}

fn stamp(session: usize, act: u32, number: u64) -> [u8; STAMP] {
    let mut octets = [0x55; STAMP];
    octets[..8].copy_from_slice(&number.to_be_bytes());
    octets[8..12].copy_from_slice(&act.to_be_bytes());
    octets[12..16].copy_from_slice(&(session as u32).to_be_bytes());
    octets
}
