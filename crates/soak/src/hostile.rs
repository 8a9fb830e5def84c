//! The hostile campaign: a peer built for the purpose attacks a victim by every byte and message that it has. The victim's
//! other link carries checked packets all the time and loses none; the victim never dies, never hangs, delivers nothing that
//! was not validated, and says of every broken rule which it was.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use vport::broker::Event;
use vport::client::{Attachment, attach};
use vport::packet::PacketRef;

use crate::census::Census;
use crate::checker::Checker;
use crate::course::Course;
use crate::frames::{self, Stamp};
use crate::journal::{Field, Journal, now_ns};
use crate::outcome::{Outcome, Tally, Times};
use crate::random::Random;
use crate::rig::{PATIENCE, Rig};
use crate::victim::{SHAPES, kind, port};

/// Runs the campaign with processes of `program`. Events are connections and links that were attacked.
pub fn run(course: &Course, program: &Path) -> Result<Outcome> {
    let mut outcome = Outcome::new("hostile");
    let mut scene = Scene::set(program)?;
    // As after the campaign: each link was up once, and its peer is gone.
    scene.heal()?;
    let before = Census::at_rest(&scene.pids());
    scene.begin_attack()?;

    let signs = &Signs::default();
    let (honest, checked) = std::thread::scope(|scope| {
        let mut honest = scene.honest.take().context("an honest end")?;
        let carrier = scope.spawn(move || {
            let checked = carry(&mut honest, signs);
            (honest, checked)
        });
        let watched = scene.watch(course, signs, &mut outcome);
        signs.stop.store(true, Ordering::Relaxed);
        let carried = carrier.join().map_err(|_| anyhow::anyhow!("the honest end has failed"))?;
        outcome.failures.extend(watched.err().map(|error| format!("{error:#}")));
        anyhow::Ok(carried)
    })?;
    scene.honest = Some(honest);
    outcome.tally.add(checked.tally);
    outcome.notes.push(format!(
        "{} packets went over the victim's other link and back in {}",
        checked.packets, checked.round_trips
    ));
    if outcome.failures.is_empty() {
        scene.end_attack()?;
        scene.heal()?;
        scene.conclude(&before, &mut outcome);
    }
    Ok(outcome)
}

#[derive(Default)]
struct Signs {
    stop: AtomicBool,
    /// Packets that came back.
    back: AtomicU64,
}

/// The broker, the victim and its two peers.
struct Scene {
    rig: Rig,
    directory: tempfile::TempDir,
    program: std::path::PathBuf,
    victim: Child,
    journal: Journal,
    liar: Option<Child>,
    liars: u64,
    liar_journal: Journal,
    honest: Option<Attachment>,
    /// Rules that the victim said were broken, and how often; refusals by the broker.
    rules: BTreeMap<String, u64>,
    refusals: BTreeMap<String, u64>,
    accusations: u64,
}

impl Scene {
    fn set(program: &Path) -> Result<Self> {
        let rig = Rig::new(&["victim", "liar", "honest"])?;
        for (n, [of_liar, of_victim]) in SHAPES.into_iter().enumerate() {
            rig.link_of(kind(n), [("liar", &port(n), of_liar), ("victim", &port(n), of_victim)])?;
        }
        rig.broker.allow_succession("liar", true)?;
        let link = rig.link([("honest", "victim", 1), ("victim", "honest", 1)])?;
        let directory = tempfile::Builder::new().prefix("kaista-soak-").tempdir()?;
        let journals = ["victim", "liar"].map(|name| Journal::create(&directory.path().join(name)));
        let [journal, liar_journal] = journals;
        let (journal, liar_journal) = (journal?, liar_journal?);
        let victim = rig.start(program, "victim", "victim", directory.path(), &[])?;
        let honest = attach(&rig.socket("honest"), "victim", PATIENCE, 192)?;
        rig.up(&link)?;
        Ok(Self {
            rig,
            directory,
            program: program.into(),
            victim,
            journal,
            liar: None,
            liars: 0,
            liar_journal,
            honest: Some(honest),
            rules: BTreeMap::new(),
            refusals: BTreeMap::new(),
            accusations: 0,
        })
    }

    fn begin_attack(&mut self) -> Result<()> {
        self.liars += 1;
        let seed = self.liars.to_string();
        let more = ["--seed".as_ref(), seed.as_ref()];
        self.liar = Some(self.rig.start(&self.program, "liar", "liar", self.directory.path(), &more)?);
        Ok(())
    }

    fn end_attack(&mut self) -> Result<()> {
        if let Some(mut liar) = self.liar.take() {
            liar.kill()?;
            liar.wait()?;
        }
        Ok(())
    }

    /// An honest function in the liar's place has every link for itself, and what it sends arrives. Twice: of the
    /// generation before the present one a port may keep something.
    fn heal(&mut self) -> Result<()> {
        for n in (0..SHAPES.len()).chain(0..SHAPES.len()) {
            let mut peer = attach(&self.rig.socket("liar"), &port(n), PATIENCE, 192)?;
            self.rig.up(&format!("liar.{0}-victim.{0}", port(n)))?;
            let (before, start) = (self.journal.get(Field::Received), Instant::now());
            let mut number = 0;
            while self.journal.get(Field::Received) < before + 1_000 {
                let stamp = Stamp { flow: number as u16, incarnation: 0, number };
                let frame = frames::frame(stamp, frames::len_of(number));
                for (rx, tx) in &mut peer.queues {
                    tx.send(&[PacketRef::from_slice(&frame)]);
                    rx.recv();
                }
                number += 1;
                if start.elapsed() > PATIENCE {
                    bail!("link {n} does not heal: {number} frames were sent");
                }
                self.is_alive()?;
            }
        }
        // Events carry descriptors.
        self.hear()
    }

    fn is_alive(&mut self) -> Result<()> {
        match self.victim.try_wait()? {
            Some(status) => bail!("the victim has ended: {status}"),
            None => Ok(()),
        }
    }

    fn pids(&self) -> Vec<i32> {
        vec![self.victim.id() as i32, std::process::id() as i32]
    }

    /// Looks on until the campaign is over: whether everything goes on that must.
    fn watch(&mut self, course: &Course, signs: &Signs, outcome: &mut Outcome) -> Result<()> {
        let mut random = Random::new(5);
        let (mut said, mut liar_since) = (Instant::now(), Instant::now());
        let mut life = Duration::from_secs(2);
        let mut pulses = [Pulse::default(), Pulse::default(), Pulse::default()];
        while course.goes_on(outcome.events) {
            std::thread::sleep(Duration::from_millis(20));
            self.is_alive()?;
            self.hear()?;
            outcome.events = self.liar_journal.get(Field::Rounds);
            pulses[0].beats("the victim's loop", self.journal.get(Field::Rounds))?;
            pulses[1].beats("the victim's other link", signs.back.load(Ordering::Relaxed))?;
            pulses[2].beats("the liar, whom the broker must serve,", outcome.events)?;
            if let Some(status) = self.liar.as_mut().map(Child::try_wait).transpose()?.flatten() {
                bail!("the liar has ended: {status}");
            }
            if liar_since.elapsed() > life {
                // In the middle of something.
                self.end_attack()?;
                self.begin_attack()?;
                (liar_since, life) = (Instant::now(), Duration::from_millis(500 + random.below(5_000) as u64));
            }
            course.say(&mut said, || {
                let noticed: u64 = self.rules.values().sum();
                format!("hostile: {} attacks, {noticed} broken rules noticed", outcome.events)
            });
        }
        self.hear()
    }

    fn hear(&mut self) -> Result<()> {
        for event in self.rig.events.try_iter() {
            match event {
                Event::Quarantined { reporter, accused, reason, .. } if reporter.function == "victim" => {
                    if accused.function != "liar" {
                        bail!("the victim accuses {} of: {reason}", accused.function);
                    }
                    let rule = reason.split(" (seen").next().unwrap_or_default().to_owned();
                    *self.rules.entry(rule).or_default() += 1;
                }
                Event::Quarantined { .. } => self.accusations += 1,
                Event::Refused { reason, .. } => {
                    let words = reason.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default();
                    *self.refusals.entry(words.trim().to_owned()).or_default() += 1;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn conclude(&mut self, before: &Census, outcome: &mut Outcome) {
        let (leaked, what) = before.settle(|| self.pids(), Duration::from_secs(20));
        outcome.tally.add(Tally { leaked, corrupted: self.journal.get(Field::Corrupted), ..Tally::default() });
        outcome.notes.extend(what.into_iter().map(|what| format!("leaked: {what}")));
        let list = |counts: &BTreeMap<String, u64>| {
            counts.iter().map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>().join("; ")
        };
        outcome.notes.push(format!(
            "{} links attacked, {} frames delivered, {} noticed as wrong; the longest round of the victim took {} us",
            self.liar_journal.get(Field::Received),
            self.journal.get(Field::Received),
            self.journal.get(Field::Invalid),
            self.journal.get(Field::Held)
        ));
        outcome.notes.push(format!("quarantined, and why: {}", list(&self.rules)));
        outcome.notes.push(format!("refused, and why: {}", list(&self.refusals)));
        outcome.notes.push(format!("{} accusations by the liar; {} liars were killed", self.accusations, self.liars));
        if self.rules.is_empty() {
            outcome.failures.push("no broken rule was noticed".into());
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.end_attack();
        let _ = self.victim.kill();
        let _ = self.victim.wait();
    }
}

/// Something that must go on.
#[derive(Default)]
struct Pulse {
    last: u64,
    since: Option<Instant>,
}

impl Pulse {
    fn beats(&mut self, what: &str, value: u64) -> Result<()> {
        if self.last != value || self.since.is_none() {
            (self.last, self.since) = (value, Some(Instant::now()));
        }
        if self.since.is_some_and(|since| since.elapsed() > PATIENCE) {
            bail!("{what} has not gone on for {PATIENCE:?}");
        }
        Ok(())
    }
}

/// What the honest end has seen.
struct Checked {
    tally: Tally,
    packets: u64,
    round_trips: Times,
}

/// Sends numbered packets to the victim, and judges what comes back, until told to stop and all is back.
fn carry(honest: &mut Attachment, signs: &Signs) -> Checked {
    /// Packets on their way at most.
    const WINDOW: u64 = 256;
    let (rx, tx) = &mut honest.queues[0];
    let (mut checker, mut room) = (Checker::new(1, 1), Vec::new());
    let (mut sent, mut back, mut last) = (0_u64, 0_u64, Instant::now());
    let (mut timed, mut round_trips) = (None, Times::default());
    loop {
        let stop = signs.stop.load(Ordering::Relaxed);
        if !stop && sent < back + WINDOW {
            let stamp = Stamp { flow: 0, incarnation: 0, number: sent };
            let frame = frames::frame(stamp, frames::len_of(sent));
            timed = timed.or(Some((sent, now_ns())));
            sent += tx.send(&[PacketRef::from_slice(&frame)]) as u64;
        }
        let burst = rx.recv();
        for i in 0..burst.len() {
            let Some(stamp) = frames::check(&burst.get(i), &mut room) else {
                checker.corrupted();
                continue;
            };
            checker.take(stamp);
            if let Some((_, since)) = timed.take_if(|(number, _)| *number == stamp.number) {
                round_trips.add(Duration::from_nanos(now_ns() - since));
            }
        }
        back += burst.len() as u64;
        if !burst.is_empty() {
            last = Instant::now();
        } else {
            std::thread::sleep(Duration::from_micros(20));
        }
        signs.back.store(back, Ordering::Relaxed);
        if stop && (back >= sent || last.elapsed() > PATIENCE) {
            break;
        }
    }
    let mut tally = checker.tally();
    tally.lost = tally.lost.max(sent.saturating_sub(back));
    Checked { tally, packets: back, round_trips }
}
