//! Two processes at the ends of a site's link, and what must be true of them whatever happens to them.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::census::Census;
use crate::course;
use crate::end::FLOWS;
use crate::journal::{Field, Journal};
use crate::outcome::{Tally, Times};
use crate::rig::PATIENCE;
use crate::site::{Kind, Side, Site};

/// A node, its link, and both ends' processes.
pub struct Pair {
    /// The node.
    pub site: Site,
    kind: Kind,
    ends: [End; 2],
    /// Lost without a gap: accepted from a process that then died, or at the end.
    lost: u64,
    /// What is being done to it, in words.
    pub story: Vec<String>,
    /// From just before a new process connected, or from when its peer went on if that was later, to the first packets both ways.
    pub reattached: Times,
    /// The longest time in which an end that could send and receive had no packet, each time that keeper or daemon was away.
    pub silences: Times,
}

struct End {
    journal: Journal,
    incarnation: u32,
    child: Option<Child>,
    /// Gaps that the other end had found before the process here was started.
    gaps_before: u64,
}

/// Packets that show that traffic flows.
const FLOWING: u64 = 100;

impl Pair {
    /// Makes it, with traffic both ways.
    pub fn start(program: &Path, kind: Kind) -> Result<Self> {
        let site = Site::start(program, kind)?;
        let end = |side: Side| -> Result<End> {
            Ok(End { journal: Journal::create(&site.file(side.name()))?, incarnation: 0, child: None, gaps_before: 0 })
        };
        let ends = [end(Side::Producer)?, end(Side::Consumer)?];
        let (story, reattached, silences) = (Vec::new(), Times::default(), Times::default());
        let mut pair = Self { site, kind, ends, lost: 0, story, reattached, silences };
        Side::BOTH.into_iter().try_for_each(|side| pair.spawn(side))?;
        pair.flows("traffic flows", &Side::BOTH.map(|side| (side, 0)))?;
        Ok(pair)
    }

    fn end(&self, side: Side) -> &End {
        &self.ends[side as usize]
    }

    /// The journal of a side.
    pub fn journal(&self, side: Side) -> &Journal {
        &self.end(side).journal
    }

    /// The process of a side.
    pub fn pid(&self, side: Side) -> Option<Pid> {
        self.end(side).child.as_ref().map(|child| Pid::from_raw(child.id() as i32))
    }

    /// Starts the next process of a side, in a part of the program.
    fn begin(&mut self, side: Side, part: &str, arguments: &[String]) -> Result<()> {
        let file = self.site.file(side.name());
        let mut command: Command = self.site.process(part, side);
        let gaps_before = self.journal(side.other()).get(Field::Lost);
        let end = &mut self.ends[side as usize];
        end.gaps_before = gaps_before;
        end.incarnation += 1;
        (0..side.queues()).for_each(|kind| end.journal.set_accepted(kind, 0));
        end.journal.set(Field::StopAt, 0);
        end.journal.set(Field::ConnectingNs, 0);
        command.arg("--journal").arg(file).args(["--incarnation", &end.incarnation.to_string()]).args(arguments);
        end.child = Some(command.stdout(Stdio::null()).spawn().context(part.to_owned())?);
        Ok(())
    }

    /// Starts the next process of a side.
    pub fn spawn(&mut self, side: Side) -> Result<()> {
        self.begin(side, "end", &[])
    }

    /// Starts a process that speaks by hand, and waits until it has stopped itself. False: it has ended before.
    pub fn spawn_hand(&mut self, side: Side, point: usize) -> Result<bool> {
        let numbers = ["--queues", &side.queues().to_string(), "--point", &point.to_string()].map(str::to_owned);
        let kind = ["--kind".to_owned(), self.kind.to_string()];
        self.begin(side, "hand", &numbers.into_iter().chain(kind).collect::<Vec<_>>())?;
        self.has_stopped(side, PATIENCE)
    }

    /// Whether the process of a side has stopped itself; false if it has ended, or not within a time.
    pub fn has_stopped(&self, side: Side, within: Duration) -> Result<bool> {
        let (pid, start) = (self.pid(side).context("a process")?, Instant::now());
        while start.elapsed() < within {
            // Left to be waited for: an end belongs to its `Child`.
            let look = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
            match waitid(Id::Pid(pid), look)? {
                WaitStatus::Stopped(..) => return Ok(true),
                WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return Ok(false),
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Ok(false)
    }

    /// Sends a signal to the process of a side.
    pub fn signal(&self, side: Side, signal: Signal) -> Result<()> {
        Ok(kill(self.pid(side).context("a process")?, signal)?)
    }

    /// Kills the process of a side, and holds what it had sent against what arrives. The next may come before that.
    pub fn kill(&mut self, side: Side) -> Result<Dead> {
        let mut child = self.ends[side as usize].child.take().context("a process")?;
        child.kill()?;
        child.wait()?;
        Ok(self.dead(side))
    }

    /// Waits for the end of a process that ends by itself.
    pub fn wait(&mut self, side: Side) -> Result<Dead> {
        let mut child = self.ends[side as usize].child.take().context("a process")?;
        let start = Instant::now();
        while child.try_wait()?.is_none() {
            if start.elapsed() > PATIENCE {
                child.kill()?;
                child.wait()?;
                bail!("a {} by hand does not end", side.name());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(self.dead(side))
    }

    fn dead(&self, side: Side) -> Dead {
        let end = self.end(side);
        let accepted = (0..side.queues()).map(|kind| end.journal.accepted(kind)).collect();
        let seen_by = self.end(side.other()).incarnation;
        Dead { side, incarnation: end.incarnation, accepted, seen_by, gaps_before: end.gaps_before }
    }

    /// Starts the next process of a side, and waits until packets flow both ways with it: how long that took is noted.
    pub fn replace(&mut self, dead: &[Dead], side: Side) -> Result<()> {
        let received = self.journal(side).get(Field::Received);
        self.spawn(side)?;
        self.settle(dead, side, received)?;
        self.note_reattached(side, 0);
        Ok(())
    }

    /// Notes how long a new process of a side took, whose peer could answer from `since_ns` on.
    pub fn note_reattached(&mut self, side: Side, since_ns: u64) {
        let connecting = self.journal(side).get(Field::ConnectingNs);
        let first = Side::BOTH.map(|side| self.journal(side).get(Field::FirstNs)).into_iter().max().unwrap_or(0);
        self.reattached.add(Duration::from_nanos(first.saturating_sub(connecting.max(since_ns))));
    }

    /// Runs what is done to keeper or daemon, and lets packets flow again; notes the longest time in which an end had none.
    pub fn listen(&mut self, happens: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let silence = |pair: &Self| Side::BOTH.map(|side| pair.journal(side).take(Field::SilenceNs)).into_iter().max();
        silence(self);
        happens(self)?;
        let received = self.received();
        self.flows("packets beside another keeper or daemon", &received)?;
        self.silences.add(Duration::from_nanos(silence(self).unwrap_or(0)));
        Ok(())
    }

    /// Waits until packets flow both ways with a new process of a side, which had received so many, and until all has come
    /// that those before it had sent.
    pub fn settle(&mut self, dead: &[Dead], side: Side, received: u64) -> Result<()> {
        let survivor = side.other();
        let incarnation = u64::from(self.end(side).incarnation);
        self.until(&format!("packets of {} {incarnation} arrive", side.name()), |pair| {
            pair.journal(survivor).get(Field::PeerIncarnation) == incarnation
        })?;
        self.flows(&format!("a new {} gets packets", side.name()), &[(side, received)])?;
        // Of every queue: one that still sends to the dead, whose packets nobody has, is not held against the new one.
        let sender = self.end(survivor).incarnation;
        self.until(&format!("a new {} gets packets of every queue", side.name()), |pair| {
            (0..survivor.queues()).all(|kind| pair.journal(side).arrived(sender, kind).is_some())
        })?;
        dead.iter().try_for_each(|dead| self.bury(dead))
    }

    /// What a process had sent before it died must arrive at the end of those who lived on.
    fn bury(&mut self, dead: &Dead) -> Result<()> {
        let survivor = dead.side.other();
        if self.end(survivor).incarnation != dead.seen_by {
            return Ok(());
        }
        for (kind, accepted) in dead.accepted.iter().enumerate() {
            let arrived = |pair: &Self| pair.journal(survivor).arrived(dead.incarnation, kind).unwrap_or(0);
            let start = Instant::now();
            let received = self.journal(survivor).get(Field::Received);
            // Long enough to be no matter of a busy machine: the survivor has gone on all the time.
            while arrived(self) < *accepted && start.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(1));
            }
            let missing = accepted.saturating_sub(arrived(self));
            if missing > 0 && self.journal(survivor).get(Field::Received) < received + FLOWING {
                bail!("the {} has not gone on for {PATIENCE:?}", survivor.name());
            }
            self.lose(survivor, dead, kind, missing);
        }
        Ok(())
    }

    /// Counts what is missing at the end of what a process had sent. Gaps are counted where they are.
    fn lose(&mut self, survivor: Side, dead: &Dead, kind: usize, missing: u64) {
        let gaps = self.journal(survivor).get(Field::Lost).saturating_sub(dead.gaps_before);
        if missing > gaps {
            eprintln!(
                "of {} {} (kind {kind}) {missing} of {} packets are missing, {gaps} in gaps",
                dead.side.name(),
                dead.incarnation,
                dead.accepted[kind]
            );
            self.lost += missing - gaps;
        }
    }

    /// Waits until packets come to each side named, beyond what it had received then.
    pub fn flows(&mut self, what: &str, sides: &[(Side, u64)]) -> Result<()> {
        self.until(what, |pair| {
            sides.iter().all(|(side, before)| pair.journal(*side).get(Field::Received) >= before + FLOWING)
        })
    }

    /// Whether an end is away or stopped, so that no packets flow.
    pub fn is_waiting(&self) -> bool {
        Side::BOTH.into_iter().any(|side| {
            let state = self.pid(side).and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok());
            // The state stands behind the program's name, which is in brackets.
            state.is_none_or(|stat| stat.rsplit(") ").next().is_none_or(|rest| rest.starts_with(['T', 'Z'])))
        })
    }

    /// What each side has received.
    pub fn received(&self) -> [(Side, u64); 2] {
        Side::BOTH.map(|side| (side, self.journal(side).get(Field::Received)))
    }

    /// Waits until something holds, as long as both ends live.
    pub fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) -> Result<()> {
        let start = Instant::now();
        while !holds(self) {
            for side in Side::BOTH {
                let child = self.ends[side as usize].child.as_mut();
                if let Some(status) = child.map(Child::try_wait).transpose()?.flatten() {
                    bail!("in vain: {what}: the {} has ended, {status}\n{}", side.name(), self.site.last_words());
                }
            }
            if start.elapsed() > PATIENCE || course::is_overdue() {
                bail!("in vain: {what}\n{}\n{}", self.picture(), self.site.last_words());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// How far both ends are.
    pub fn picture(&self) -> String {
        let of = |side: Side| {
            let journal = self.journal(side);
            let get = |field| journal.get(field);
            format!(
                "{} {}: {} rounds, {} received, peer {}, accepted {} {}, {}, invalid {}",
                side.name(),
                self.end(side).incarnation,
                get(Field::Rounds),
                get(Field::Received),
                get(Field::PeerIncarnation),
                journal.accepted(0),
                journal.accepted(1),
                journal.tally(),
                get(Field::Invalid)
            )
        };
        Side::BOTH.map(of).join("\n")
    }

    /// Keeper, daemon and both ends.
    pub fn pids(&self) -> Vec<i32> {
        let status = self.site.status();
        let node = status.iter().flat_map(|status| [status.keeper_pid, status.daemon_pid]);
        node.chain(Side::BOTH.into_iter().filter_map(|side| self.pid(side)).map(Pid::as_raw)).collect()
    }

    /// Replaces one end, then the other: whatever was before, both then hold what a link needs and no more.
    pub fn tidy(&mut self) -> Result<()> {
        for side in [Side::Producer, Side::Consumer] {
            let dead = self.kill(side)?;
            self.replace(&[dead], side)?;
        }
        Ok(())
    }

    /// What all hold, tidied, as soon as that is the same twice: on a busy machine not everything is there yet at the first count.
    pub fn tidy_census(&mut self) -> Result<Census> {
        let start = Instant::now();
        self.tidy()?;
        let mut last = self.census()?;
        loop {
            self.tidy()?;
            let now = self.census()?;
            let [more, less] = [now.beyond(&last), last.beyond(&now)];
            if more.0 + less.0 == 0 {
                return Ok(now);
            }
            if start.elapsed() > PATIENCE {
                bail!("what processes hold is not the same twice: more of {:?}, less of {:?}", more.1, less.1);
            }
            last = now;
        }
    }

    /// What all processes of the pair and its node hold, as soon as the keeper has what the consumer has: it is given
    /// segments beside the traffic in them.
    fn census(&self) -> Result<Census> {
        let start = Instant::now();
        loop {
            let census = Census::at_rest(&self.pids());
            if census.first_has_all_of_last() {
                return Ok(census);
            }
            if start.elapsed() > PATIENCE {
                bail!("the keeper does not get the segments of the consumer: {census:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Lets both ends come to rest, and sums up.
    pub fn finish(&mut self) -> Result<Tally> {
        for side in Side::BOTH {
            self.journal(side).set(Field::Finish, 1);
        }
        self.until("both ends stop sending", |pair| {
            Side::BOTH.into_iter().all(|side| pair.journal(side).get(Field::Finished) != 0)
        })?;
        for side in Side::BOTH {
            let last = self.dead(side);
            self.bury_at_rest(&last);
        }
        Ok(self.tally())
    }

    /// As [`Pair::bury`], of an end that has stopped sending.
    fn bury_at_rest(&mut self, last: &Dead) {
        let survivor = last.side.other();
        for (kind, accepted) in last.accepted.iter().enumerate() {
            let arrived = |pair: &Self| pair.journal(survivor).arrived(last.incarnation, kind).unwrap_or(0);
            let start = Instant::now();
            while arrived(self) < *accepted && start.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(1));
            }
            let missing = accepted.saturating_sub(arrived(self));
            self.lose(survivor, last, kind, missing);
        }
    }

    /// What went wrong so far.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally { lost: self.lost, ..Tally::default() };
        for side in Side::BOTH {
            tally.add(self.journal(side).tally());
            tally.lost += self.journal(side).get(Field::Invalid);
        }
        tally
    }

    /// Packets that were on their way to processes that died.
    pub fn held(&self) -> u64 {
        Side::BOTH.map(|side| self.journal(side).get(Field::Held)).iter().sum()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for end in &mut self.ends {
            if let Some(mut child) = end.child.take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// A process that is no more, and what it had sent.
#[derive(Debug)]
pub struct Dead {
    side: Side,
    incarnation: u32,
    accepted: Vec<u64>,
    /// The incarnation of the other end that was there.
    seen_by: u32,
    gaps_before: u64,
}

const _: () = assert!(FLOWS <= crate::journal::FLOWS_MAX as u64);
