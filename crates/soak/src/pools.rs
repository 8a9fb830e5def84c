//! The pool campaign: the processes behind two ports come and go under load. While it is scaled from one member to four and
//! back, nothing may be lost, nothing may overtake, and every bucket's state must be handed over exactly once. Members that are
//! killed lose what they held, and nothing else.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use vport::broker::{BrokerError, Event};
use vport::client::attach;
use vport::steering::{BUCKETS, BucketTable};

use crate::census::Census;
use crate::course::{self, Course};
use crate::journal::{Field, Journal};
use crate::ledger::Ledger;
use crate::load::{Load, flows_of};
use crate::member::{END, SUM_UP};
use crate::outcome::{Outcome, Tally, Times};
use crate::process::nap;
use crate::random::Random;
use crate::rig::{PATIENCE, Rig};
use crate::steering::another;

/// All that can be members at a time.
const MEMBERS: [&str; 4] = ["m0", "m1", "m2", "m3"];
/// Queues of each, at both ports.
const QUEUES: usize = 2;

type Owners = [u8; BUCKETS];

/// Runs the campaign with processes of `program`. Events are members that were started, drained or killed.
pub fn run(course: &Course, program: &Path) -> Result<Outcome> {
    let mut outcome = Outcome::new("pools");
    for part in [Part::Scale, Part::Kill].into_iter().take_while(|_| !course::is_stopped()) {
        under_load(&course.part(2), part, program, &mut outcome)?;
    }
    Ok(outcome)
}

/// What happens to members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// They are started and drained.
    Scale,
    /// They are started and killed.
    Kill,
}

/// How members are killed.
#[derive(Clone, Copy, Debug)]
enum How {
    /// All at once.
    All,
    /// One, and another of its name goes on with what it had.
    Back,
    /// One that is about to take its place.
    Coming,
    /// One, while buckets move.
    Moving,
    /// One, when they have not moved for a moment.
    Still,
}

/// Two producers, one of them mostly idle; a pool, a sink, and a balancer. Adds what was found to `outcome`.
pub fn under_load(course: &Course, part: Part, program: &Path, outcome: &mut Outcome) -> Result<()> {
    let load = &Load::new(nap);
    let mut scene = Scene::set(program, load)?;
    let source = attach(&scene.rig.socket("source"), "out", PATIENCE, 192)?;
    let mut sink = attach(&scene.rig.socket("sink"), "in", PATIENCE, 192)?;
    std::thread::scope(|scope| {
        let queues = source.queues.into_iter().zip(0..);
        let producers: Vec<_> = queues
            .map(|(mut queue, parity)| scope.spawn(move || load.produce(&mut queue, parity, parity == 1)))
            .collect();
        let judge = scope.spawn(move || load.judge(&mut sink));

        let played = scene.play(course, part, outcome);
        load.signs.failed.fetch_or(played.is_err(), Ordering::Relaxed);
        load.signs.stop.store(true, Ordering::Relaxed);
        let sent: u64 = producers.into_iter().map(|producer| producer.join().unwrap_or_default()).sum();
        let concluded = played.and_then(|()| {
            let missing = load.conclude(sent.saturating_sub(scene.held));
            let found = scene.found();
            outcome.tally.add(Tally { lost: found.lost.max(missing), ..found });
            scene.conclude(part, sent, outcome)
        });
        load.signs.done.store(true, Ordering::Relaxed);
        let concluded = concluded.and(judge.join().map_err(|_| anyhow::anyhow!("the sink has failed; see above")));
        outcome.failures.extend(concluded.err().map(|error| format!("{part:?}: {error:#}")));
    });
    outcome.events += scene.events;
    Ok(())
}

/// The broker, the members, and who decides over them.
struct Scene<'a> {
    rig: Rig,
    directory: tempfile::TempDir,
    program: PathBuf,
    load: &'a Load,
    ledger: Ledger,
    members: Vec<Place>,
    owners: Owners,
    /// Members that were started, drained or killed.
    events: u64,
    /// Buckets that were to move.
    moved: u64,
    /// New members, from their start to their place.
    started: Times,
    /// Changes of the table, from the broker's answer to the end.
    steered: Times,
    /// Buckets, from the old owner's hands to the new one's.
    handed: Times,
    /// From a death to the end of the change that gives the buckets away.
    recovered: Times,
    /// What was done last, in words.
    story: String,
    /// Packets that dead members held: all, and at most at once.
    held: u64,
    held_most: u64,
}

/// What can be a member, and the process that is.
struct Place {
    journal: Journal,
    child: Option<Child>,
    /// Arrivals whose times are noted.
    noted: u64,
}

impl<'a> Scene<'a> {
    /// With one member.
    fn set(program: &Path, load: &'a Load) -> Result<Self> {
        let rig = Rig::new(&[&["source", "sink"][..], &MEMBERS].concat())?;
        rig.link_pools([(&["source"], "out", 2), (&MEMBERS, "in", QUEUES as u16)])?;
        rig.link_pools([(&["sink"], "in", 2), (&MEMBERS, "out", QUEUES as u16)])?;
        let directory = tempfile::Builder::new().prefix("kaista-soak-").tempdir()?;
        let place = |name: &&str| -> Result<Place> {
            Ok(Place { journal: Journal::create(&directory.path().join(name))?, child: None, noted: 0 })
        };
        let mut scene = Self {
            members: MEMBERS.iter().map(place).collect::<Result<_>>()?,
            ledger: Ledger::open(&directory.path().join("ledger"))?,
            rig,
            directory,
            program: program.into(),
            load,
            owners: *BucketTable::fixed(QUEUES).owners(),
            events: 0,
            moved: 0,
            started: Times::default(),
            steered: Times::default(),
            handed: Times::default(),
            recovered: Times::default(),
            story: String::new(),
            held: 0,
            held_most: 0,
        };
        scene.start(0)?;
        Ok(scene)
    }

    fn play(&mut self, course: &Course, part: Part, outcome: &mut Outcome) -> Result<()> {
        let mut random = Random::new(9);
        self.cycle(&mut random)?;
        self.rest()?;
        let before = Census::at_rest(&self.pids());
        self.events = 0;
        let (mut said, mut last) = (Instant::now(), Tally::default());
        while course.goes_on(self.events) {
            match part {
                Part::Scale => self.cycle(&mut random)?,
                Part::Kill => self.lose(&mut random)?,
            }
            let found = self.found();
            if found != std::mem::replace(&mut last, found) {
                outcome.notes.push(format!("{part:?}: after event {} ({}): {found}", self.events, self.story));
            }
            course.say(&mut said, || format!("pools: {part:?}, {} events", self.events));
        }
        // As before. The peer keeps a generation until all who were not in it have sent in a later one, or died in one: the
        // first member, who sends nothing to the source, too.
        self.join_all(&mut random)?;
        self.drain(0, &mut random)?;
        self.cycle(&mut random)?;
        self.rest()?;
        let (leaked, what) = before.settle(|| self.pids(), Duration::from_secs(20));
        outcome.tally.leaked += leaked;
        outcome.notes.extend(what.into_iter().map(|what| format!("leaked: {what}")));
        Ok(())
    }

    /// From one member, or some, to all and back to the first, with some changes of owners between.
    fn cycle(&mut self, random: &mut Random) -> Result<()> {
        self.story = "a cycle".into();
        self.join_all(random)?;
        for _ in 0..random.below(8) {
            let owners = another(random, &self.owners, &queues_of(&self.living()));
            self.steer(&owners)?;
        }
        shuffled(random).into_iter().try_for_each(|member| self.drain(member, random))
    }

    fn join_all(&mut self, random: &mut Random) -> Result<()> {
        while let Some(member) = self.absent(random) {
            self.join(member)?;
            doze(random);
        }
        Ok(())
    }

    /// Kills somebody, somehow, and gives to others what was his.
    fn lose(&mut self, random: &mut Random) -> Result<()> {
        let wanted = 2 + random.below(MEMBERS.len() - 1);
        while let Some(member) = self.absent(random).filter(|_| self.living().len() < wanted) {
            self.join(member)?;
        }
        let living = self.living();
        let someone = vec![*random.pick(&living)];
        let mut buckets = self.buckets_of(&someone);
        let how = *random.pick(&[How::All, How::Back, How::Coming, How::Moving, How::Moving, How::Still, How::Still]);
        self.story = format!("{how:?} {someone:?} of {living:?}");
        match how {
            How::All => self.bury(&living, u128::MAX, false),
            How::Back => self.bury(&someone, buckets, true),
            How::Coming => match self.absent(random) {
                // It has nothing to lose.
                Some(member) => {
                    self.spawn(member)?;
                    std::thread::sleep(Duration::from_micros(random.below(20_000) as u64));
                    self.bury(&[member], 0, false)
                }
                None => self.bury(&someone, buckets, false),
            },
            How::Moving => {
                self.begin(&another(random, &self.owners, &queues_of(&living)))?;
                buckets |= self.buckets_of(&someone);
                std::thread::sleep(Duration::from_micros(random.below(3_000) as u64));
                self.bury(&someone, buckets, false)
            }
            How::Still => {
                doze(random);
                self.bury(&someone, buckets, false)
            }
        }
    }

    /// Kills members that have these buckets, and has others go on with them, or one of the same name that `returns`. What
    /// is missing then is what they held: of each flow what came behind what they had sent, and before what the next one got first.
    fn bury(&mut self, dead: &[usize], buckets: u128, returns: bool) -> Result<()> {
        let flows: Vec<u16> = flows_of(buckets).collect();
        self.load.doubt(buckets);
        let start = Instant::now();
        let alive = self.ledger.sent(&flows);
        dead.iter().try_for_each(|member| self.kill(*member))?;
        let sent = self.ledger.sent(&flows);
        self.events += dead.len() as u64;
        if returns || self.living().is_empty() {
            self.start(dead[0])?;
        }
        let owners = if returns { self.owners } else { balanced(&self.owners, &queues_of(&self.living())) };
        self.steer(&owners)?;
        self.recovered.add(start.elapsed());
        self.pass(buckets)?;
        // Where a follower has begun, and sent on, before it was asked what the dead one had, that is not known but for what it had
        // while it lived.
        let begun = self.ledger.begun(&flows);
        let from =
            alive.iter().zip(&sent).zip(&begun).map(|((alive, sent), begun)| if sent <= begun { sent } else { alive });
        let held = flows
            .iter()
            .zip(from.zip(&begun))
            .map(|(flow, (from, begun))| self.load.excuse(*flow, *from, *begun))
            .sum();
        self.load.doubt(0);
        self.held += held;
        self.held_most = self.held_most.max(held);
        Ok(())
    }

    /// What went wrong so far. What members dropped, because they did not own it, is missing at the sink, too.
    fn found(&self) -> Tally {
        let mut found = self.load.tally();
        found.lost = found.lost.max(self.sum(Field::Invalid));
        found.reordered += self.sum(Field::Reordered);
        found
    }

    fn spawn(&mut self, member: usize) -> Result<()> {
        let place = &mut self.members[member];
        [Field::Finish, Field::Finished, Field::Owned].into_iter().for_each(|field| place.journal.set(field, 0));
        let ledger = self.directory.path().join("ledger");
        let more = ["--ledger".as_ref(), ledger.as_os_str()];
        let child = self.rig.start(&self.program, "member", MEMBERS[member], self.directory.path(), &more)?;
        place.child = Some(child);
        Ok(())
    }

    /// Starts a member, and waits until it steers.
    fn start(&mut self, member: usize) -> Result<()> {
        self.until("the broker knows of a death", |scene| Ok(!scene.is_present(member)?))?;
        let start = Instant::now();
        self.spawn(member)?;
        self.events += 1;
        self.until("a member takes its place", |scene| scene.is_present(member))?;
        self.started.add(start.elapsed());
        Ok(())
    }

    /// Starts a member, and gives it its share.
    fn join(&mut self, member: usize) -> Result<()> {
        self.start(member)?;
        self.steer(&balanced(&self.owners, &queues_of(&self.living())))
    }

    /// Gives all its buckets to others, and ends it: then it must have nothing to lose.
    fn drain(&mut self, member: usize, random: &mut Random) -> Result<()> {
        let others: Vec<usize> = self.living().into_iter().filter(|other| *other != member).collect();
        self.steer(&balanced(&self.owners, &queues_of(&others)))?;
        self.until("a drained member has no bucket", |scene| Ok(scene.journal(member).get(Field::Owned) == 0))?;
        self.events += 1;
        if random.once_in(2) {
            return self.kill(member);
        }
        self.journal(member).set(Field::Finish, END);
        let mut child = self.members[member].child.take().context("a member")?;
        let mut status = None;
        let ended = self.until("a member ends", |_| {
            status = child.try_wait()?;
            Ok(status.is_some())
        });
        if !status.is_some_and(|status| status.success()) {
            child.kill()?;
            bail!("a member that was to end: {:?}", child.wait()?);
        }
        ended
    }

    fn kill(&mut self, member: usize) -> Result<()> {
        let mut child = self.members[member].child.take().context("a member")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Changes the table, and waits until all buckets are where they belong.
    fn steer(&mut self, owners: &Owners) -> Result<()> {
        let epoch = self.begin(owners)?;
        let start = Instant::now();
        let mut last = 0;
        self.until("buckets arrive", |scene| {
            last = scene.hear()?.max(last);
            Ok(last == epoch)
        })?;
        self.steered.add(start.elapsed());
        for place in &mut self.members {
            // A change brings fewer than a journal has room for.
            let times = place.journal.arrivals_since(place.noted);
            place.noted += times.len() as u64;
            times.into_iter().for_each(|ns| self.handed.add(Duration::from_nanos(ns)));
        }
        Ok(())
    }

    /// Begins a change of the table, as soon as that can be. Returns its epoch.
    fn begin(&mut self, owners: &Owners) -> Result<u64> {
        let mut begun = None;
        self.until("the broker is ready for a change", |scene| {
            begun = match scene.rig.broker.set_owners(MEMBERS[0], owners) {
                Ok(epoch) => Some(epoch),
                Err(BrokerError::Busy(_)) => None,
                Err(error) => bail!(error),
            };
            Ok(begun.is_some())
        })?;
        self.moved += owners.iter().zip(&self.owners).filter(|(new, old)| new != old).count() as u64;
        self.owners = *owners;
        begun.context("an epoch")
    }

    /// What the broker says: the last epoch that was closed, if one was.
    fn hear(&self) -> Result<u64> {
        let mut last = 0;
        for event in self.rig.events.try_iter() {
            match event {
                Event::Steered { epoch, .. } => last = epoch,
                Event::Quarantined { link, accused, reason, .. } => {
                    bail!("{} is said to break the rules on {link}: {reason}", accused.function)
                }
                Event::Refused { function, reason } => bail!("{function} was refused: {reason}"),
                _ => {}
            }
        }
        Ok(last)
    }

    /// Everybody has the newest generation and table, and thousands of packets have passed since.
    fn rest(&mut self) -> Result<()> {
        let owners = self.owners;
        self.steer(&owners)?;
        self.pass(0xff)
    }

    /// Has a packet of each flow of these buckets pass.
    fn pass(&mut self, buckets: u128) -> Result<()> {
        let flows: Vec<u16> = flows_of(buckets).collect();
        let numbers = self.load.next(&flows);
        self.load.call(buckets);
        self.until("a packet of each flow arrives", |scene| Ok(scene.load.has_come(&flows, &numbers)))
    }

    /// Waits until something holds, as long as all members live.
    fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> Result<bool>) -> Result<()> {
        let start = Instant::now();
        while !holds(self)? {
            for (name, place) in MEMBERS.iter().zip(&mut self.members) {
                if let Some(status) = place.child.as_mut().map(Child::try_wait).transpose()?.flatten() {
                    bail!("in vain: {what}: {name} has ended, {status}");
                }
            }
            if start.elapsed() > PATIENCE || course::is_overdue() || self.load.signs.failed.load(Ordering::Relaxed) {
                bail!("in vain: {what}: {:?}, {} packets came", self.rig.broker.pools()?, self.load.came());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    fn is_present(&self, member: usize) -> Result<bool> {
        Ok(self.rig.broker.pools()?[0].present[member])
    }

    fn journal(&self, member: usize) -> &Journal {
        &self.members[member].journal
    }

    /// Of all members.
    fn sum(&self, field: Field) -> u64 {
        self.members.iter().map(|place| place.journal.get(field)).sum()
    }

    fn living(&self) -> Vec<usize> {
        (0..MEMBERS.len()).filter(|member| self.members[*member].child.is_some()).collect()
    }

    fn absent(&self, random: &mut Random) -> Option<usize> {
        let absent: Vec<usize> = (0..MEMBERS.len()).filter(|member| self.members[*member].child.is_none()).collect();
        (!absent.is_empty()).then(|| *random.pick(&absent))
    }

    /// The buckets of members, by the table that was given last.
    fn buckets_of(&self, members: &[usize]) -> u128 {
        let theirs = |bucket: &u8| members.contains(&(usize::from(self.owners[usize::from(*bucket)]) / QUEUES));
        (0..BUCKETS as u8).filter(theirs).fold(0, |set, bucket| set | 1 << bucket)
    }

    /// This process, and the first member.
    fn pids(&self) -> Vec<i32> {
        let first = self.members[0].child.iter().map(Child::id);
        [std::process::id()].into_iter().chain(first).map(|pid| pid as i32).collect()
    }

    /// When all has come.
    fn conclude(&mut self, part: Part, sent: u64, outcome: &mut Outcome) -> Result<()> {
        self.journal(0).set(Field::Finish, SUM_UP);
        self.until("a member sums up", |scene| Ok(scene.journal(0).get(Field::Finished) != 0))?;
        self.hear()?;
        let arrived = self.sum(Field::Arrived);
        let [owned, entered, hops] =
            [Field::Owned, Field::Entered, Field::Hops].map(|field| self.journal(0).get(field));
        if owned != BUCKETS as u64 {
            outcome.failures.push(format!("of all buckets {owned} are where they belong in the end"));
        }
        if part == Part::Scale && (arrived, hops, entered) != (self.moved, self.moved, sent) {
            outcome.failures.push(format!(
                "{} buckets moved, and {arrived} states arrived, {hops} by their own count; of {sent} packets they know {entered}",
                self.moved
            ));
        }
        let passed: Vec<u64> = self.members.iter().map(|place| place.journal.get(Field::Received)).collect();
        outcome.notes.push(format!(
            "{part:?}: {} members started, drained or killed; {sent} packets, by members {passed:?}; until one that was \
             started had its place: {}",
            self.events, self.started
        ));
        outcome.notes.push(format!("{part:?}: {} changes; until closed: {}", self.steered.len(), self.steered));
        outcome.notes.push(format!(
            "{part:?}: {arrived} buckets handed over with their state; from hand to hand: {}",
            self.handed
        ));
        if part == Part::Kill {
            outcome.notes.push(format!(
                "{part:?}: the dead held {} packets, {} at most at once; {} that they had sent were overtaken; until \
                 others went on: {}",
                self.held,
                self.held_most,
                self.load.overtaken(),
                self.recovered
            ));
        }
        Ok(())
    }
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        for mut child in self.members.iter_mut().filter_map(|place| place.child.take()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// All but the first, in any order.
fn shuffled(random: &mut Random) -> Vec<usize> {
    let mut left: Vec<usize> = (1..MEMBERS.len()).collect();
    (1..MEMBERS.len()).map(|_| left.swap_remove(random.below(left.len()))).collect()
}

fn doze(random: &mut Random) {
    std::thread::sleep(Duration::from_millis(random.below(20) as u64));
}

fn queues_of(members: &[usize]) -> Vec<u8> {
    members.iter().flat_map(|member| member * QUEUES..(member + 1) * QUEUES).map(|queue| queue as u8).collect()
}

/// The table that spreads the buckets evenly over these queues, and moves as few as it can.
fn balanced(owners: &Owners, queues: &[u8]) -> Owners {
    let count = |queue: u8| owners.iter().filter(|owner| **owner == queue).count();
    // Who has most may keep one more, where it does not come out even.
    let mut queues: Vec<(u8, usize)> = queues.iter().map(|queue| (*queue, count(*queue))).collect();
    queues.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let (each, over) = (BUCKETS / queues.len(), BUCKETS % queues.len());
    let mut room: Vec<(u8, usize)> =
        queues.iter().enumerate().map(|(n, (queue, _))| (*queue, each + usize::from(n < over))).collect();
    let mut given = [None; BUCKETS];
    for (owner, given) in owners.iter().zip(&mut given) {
        if let Some((_, left)) = room.iter_mut().find(|(queue, left)| queue == owner && *left > 0) {
            *left -= 1;
            *given = Some(*owner);
        }
    }
    let mut rest = room.into_iter().flat_map(|(queue, left)| std::iter::repeat_n(queue, left));
    given.map(|given| given.unwrap_or_else(|| rest.next().expect("as much room as buckets")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moves(from: &Owners, to: &Owners) -> usize {
        from.iter().zip(to).filter(|(from, to)| from != to).count()
    }

    #[test]
    fn a_pool_is_balanced_by_the_fewest_moves() {
        let mut owners = *BucketTable::fixed(QUEUES).owners();
        for (members, moved) in [(&[0, 1, 2, 3][..], 96), (&[0, 1, 2, 3], 0), (&[0, 2, 3], 32), (&[2], 86), (&[1], 128)]
        {
            let queues = queues_of(members);
            let next = balanced(&owners, &queues);
            let counts = queues.iter().map(|queue| next.iter().filter(|owner| *owner == queue).count());
            let (least, most) = (counts.clone().min().unwrap(), counts.clone().max().unwrap());
            assert_eq!((counts.sum::<usize>(), moves(&owners, &next)), (BUCKETS, moved), "{members:?}");
            assert!(most - least <= 1);
            owners = next;
        }
    }
}
