//! A change of the bucket table while packets flow, as `docs/ports.md` tells it: no frame is lost, comes twice, overtakes
//! another of its bucket or gets to a worker who does not have its bucket, every bucket moves once, and nobody waits for
//! ever. Senders, queues, decider and owners are those of ports.
//!
//! Shared are all words by which one thread learns of a change from another. What only one worker uses (the buckets that
//! its queue owns, the epoch that the queue has crossed) is plain, and so are the bytes of records, which `link` is about.
//! To loom fences of two threads order what is before the one and behind the other; the language promises less, but
//! nothing less of what is used here: that one of both sees what the other has stored.

use super::world::{Broken, Frames, Owners, World, number, table};
use super::{Depth, check, sleep, thread, without_fences};
use crate::handover::Fate;
use crate::packet::BURST_MAX;

#[cfg(loom)]
use crate::sync::Weak;

const FIRST: Owners = [0, 1];
const MOVED: Owners = [1, 1];
const SWAPPED: Owners = [1, 0];

/// More than a queue takes at once: one that crosses too early gives the bucket away with a frame unread.
const MANY: u8 = BURST_MAX as u8 + 1;

/// A sender against a thread that decides and receives by both queues.
#[derive(Clone, Copy, Debug)]
struct Crossing {
    bursts: &'static [Frames],
    /// After its last burst the sender is killed within one more.
    dies: Option<Frames>,
    /// Of the table, one after the other.
    changes: &'static [Owners],
    /// In which the queues are looked at.
    order: [usize; 2],
}

impl Crossing {
    const SIMPLE: Self = Self { bursts: &[[MANY, 0], [1, 0]], dies: None, changes: &[MOVED], order: [0, 1] };

    fn check(self, depth: Depth, broken: Broken) {
        check(depth, move || self.run(World::new(broken), broken));
    }

    fn run(self, mut world: World, broken: Broken) {
        let (mut sender, generation) = (world.sender, world.generation.clone());
        let producer = thread::spawn(move || {
            if broken.sender_without_fences {
                without_fences();
            }
            self.bursts.iter().for_each(|frames| sender.burst(*frames));
            if let Some(frames) = self.dies {
                sender.die(frames);
                // Said by whoever waits for the process.
                generation.end(Fate::Dead);
            }
            sender
        });
        if broken.decider_without_fences {
            without_fences();
        }
        for owners in self.changes {
            world.decider.set_owners(&table(*owners)).unwrap();
            while world.decider.is_open() {
                for queue in self.order {
                    world.workers[queue].round();
                }
                thread::yield_now();
            }
        }
        world.sender = producer.join().unwrap();
        world.end(*self.changes.last().unwrap());
    }
}

/// Two workers against each other, and a thread that sends, decides and sends again, for each change.
fn handover(depth: Depth, bursts: &'static [Frames], changes: &'static [Owners], broken: Broken) {
    check(depth, move || {
        let World { mut sender, workers, mut decider, generation } = World::new(broken);
        let last = *changes.last().unwrap();
        let workers = workers.map(|mut worker| {
            thread::spawn(move || {
                worker.work(last, changes.len());
                worker
            })
        });
        sender.burst(bursts[0]);
        for (owners, frames) in changes.iter().zip(&bursts[1..]) {
            while decider.set_owners(&table(*owners)).is_err() {
                thread::yield_now();
            }
            sender.burst(*frames);
        }
        let workers = workers.map(|worker| worker.join().unwrap());
        World { sender, workers, decider, generation }.end(last);
    });
}

/// Sender, decider and both workers, each on a thread.
fn change(depth: Depth, bursts: &'static [Frames], owners: Owners, broken: Broken) {
    check(depth, move || {
        let World { mut sender, workers, mut decider, generation } = World::new(broken);
        let producer = thread::spawn(move || {
            bursts.iter().for_each(|frames| sender.burst(*frames));
            sender
        });
        let workers = workers.map(|mut worker| {
            thread::spawn(move || {
                worker.work(owners, 1);
                worker
            })
        });
        decider.set_owners(&table(owners)).unwrap();
        let workers = workers.map(|worker| worker.join().unwrap());
        World { sender: producer.join().unwrap(), workers, decider, generation }.end(owners);
    });
}

/// One worker, `sleeper`, sleeps whenever there is nothing to do for it. Another thread is all others.
fn wake_up(depth: Depth, sleeper: usize, bursts: [Frames; 2], broken: Broken) {
    check(depth, move || {
        let World { mut sender, workers, mut decider, generation } = World::new(broken);
        let [first, second] = workers;
        let (mut worker, mut other) = if sleeper == 0 { (first, second) } else { (second, first) };
        let sleeping = thread::spawn(move || {
            while !worker.has(MOVED) {
                if !worker.round() && !worker.has(MOVED) && worker.rx.arm() {
                    sleep(&worker.rx);
                    worker.rx.disarm();
                }
                thread::yield_now();
            }
            worker
        });
        if broken.decider_without_fences {
            without_fences();
        }
        sender.burst(bursts[0]);
        decider.set_owners(&table(MOVED)).unwrap();
        sender.burst(bursts[1]);
        while !other.has(MOVED) {
            other.round();
            thread::yield_now();
        }
        let worker = sleeping.join().unwrap();
        let workers = if sleeper == 0 { [worker, other] } else { [other, worker] };
        World { sender, workers, decider, generation }.end(MOVED);
    });
}

/// Both workers send on to one queue of another port. They have a frame of bucket 0 to read each, the first sent before the
/// change and the second after it. One thread is the workers, another reads what they sent on.
fn onward(depth: Depth) {
    check(depth, move || {
        let (mut world, mut sink) = World::with_sink();
        world.sender.burst([1, 0]);
        world.decider.set_owners(&table(MOVED)).unwrap();
        world.sender.burst([1, 0]);
        let workers = thread::spawn(move || {
            while world.decider.is_open() {
                world.workers.iter_mut().for_each(|worker| _ = worker.round());
                thread::yield_now();
            }
            world.workers[1].round();
            world
        });
        let mut arrived = 0;
        while arrived < 2 {
            let burst = sink.recv();
            for i in 0..burst.len() {
                assert_eq!(number(burst.get(i).head), arrived, "a frame was overtaken by one of another worker");
                arrived += 1;
            }
            thread::yield_now();
        }
        workers.join().unwrap().end(MOVED);
    });
}

#[test]
fn nothing_of_a_bucket_is_left_when_it_is_given_away() {
    Crossing::SIMPLE.check(Depth::Interruptions(3), Broken::default());
}

#[test]
fn in_every_execution_a_frame_comes_by_the_old_way_or_the_new_one() {
    Crossing { bursts: &[[1, 0]], ..Crossing::SIMPLE }.check(Depth::Whole, Broken::default());
}

/// The queue that gets the bucket looks first.
#[test]
fn a_frame_that_is_there_before_its_bucket_waits() {
    let scene = Crossing { bursts: &[[1, 0], [1, 0]], order: [1, 0], ..Crossing::SIMPLE };
    scene.check(Depth::Interruptions(3), Broken::default());
}

/// Of 60 frames 56 are published in the midst of the burst.
#[test]
fn a_burst_of_which_a_part_is_published_ends_by_the_table_it_began_with() {
    let scene = Crossing { bursts: &[[60, 0], [1, 0]], ..Crossing::SIMPLE };
    scene.check(Depth::Interruptions(3), Broken::default());
}

#[test]
fn queues_swap_buckets() {
    let scene = Crossing { bursts: &[[1, 1], [1, 1]], changes: &[SWAPPED], ..Crossing::SIMPLE };
    scene.check(Depth::Interruptions(2), Broken::default());
}

/// The table of the second change is written where that of the beginning was, which the sender may be reading.
#[test]
fn one_change_follows_another() {
    let scene = Crossing { changes: &[MOVED, FIRST], ..Crossing::SIMPLE };
    scene.check(Depth::Interruptions(3), Broken::default());
}

#[test]
fn a_sender_that_was_killed_in_a_burst_is_crossed_at_its_last_head() {
    let scene = Crossing { bursts: &[], dies: Some([MANY, 0]), ..Crossing::SIMPLE };
    scene.check(Depth::Interruptions(3), Broken::default());
}

#[test]
fn a_bucket_gets_from_worker_to_worker() {
    handover(Depth::Interruptions(1), &[[1, 0], [1, 0]], &[MOVED], Broken::default());
}

#[test]
fn workers_give_each_other_buckets_at_once() {
    handover(Depth::Interruptions(1), &[[0, 0], [1, 1]], &[SWAPPED], Broken::default());
}

#[test]
fn four_threads_change_the_table() {
    change(Depth::Interruptions(1), &[[1, 0]], MOVED, Broken::default());
}

#[test]
fn a_sleeping_worker_is_told_to_give_its_bucket_away() {
    wake_up(Depth::Interruptions(3), 0, [[0, 0], [1, 0]], Broken::default());
}

#[test]
fn a_sleeping_worker_is_told_that_its_bucket_has_come() {
    wake_up(Depth::Interruptions(3), 1, [[0, 0], [1, 0]], Broken::default());
}

#[test]
fn a_bucket_does_not_leave_before_what_was_sent_on_is_read() {
    onward(Depth::Whole);
}

/// Each ordering that a change needs, taken away: without it one of the models above would have failed.
///
/// Not among them are orderings beside which there is another one. A worker learns of a change by `version` and by `asked`,
/// by `sent` and by the letter itself, and of buckets that it awaits by the head of whoever has begun the epoch.
#[cfg(loom)]
mod noticed {
    use super::*;

    fn broken_change(broken: Broken) {
        Crossing::SIMPLE.check(Depth::Interruptions(3), broken);
    }

    fn weak(word: &'static str, how: Weak) -> Broken {
        Broken { weak: Some((word, how)), ..Broken::default() }
    }

    fn broken_death(how: Weak) {
        let scene = Crossing { bursts: &[], dies: Some([MANY, 0]), ..Crossing::SIMPLE };
        scene.check(Depth::Interruptions(3), weak("fate", how));
    }

    #[test]
    #[should_panic(expected = "a frame was dropped")]
    fn a_sender_without_its_fence() {
        broken_change(Broken { sender_without_fences: true, ..Broken::default() });
    }

    #[test]
    #[should_panic(expected = "a frame was dropped")]
    fn a_decider_without_its_fence() {
        broken_change(Broken { decider_without_fences: true, ..Broken::default() });
    }

    #[test]
    #[should_panic(expected = "maximum number of branches")]
    fn a_decider_who_asks_a_sleeper_without_a_fence() {
        let broken = Broken { decider_without_fences: true, ..Broken::default() };
        wake_up(Depth::Interruptions(2), 0, [[0, 0], [1, 0]], broken);
    }

    #[test]
    #[should_panic(expected = "a frame was lost")]
    fn a_burst_ended_without_release() {
        broken_change(weak("burst", Weak::Store));
    }

    #[test]
    #[should_panic(expected = "a frame was lost")]
    fn a_burst_counter_read_without_acquire() {
        broken_change(weak("burst", Weak::Load));
    }

    #[test]
    #[should_panic(expected = "a frame was lost")]
    fn an_epoch_begun_without_release() {
        broken_change(weak("epoch", Weak::Store));
    }

    #[test]
    #[should_panic(expected = "a frame was lost")]
    fn a_begun_epoch_read_without_acquire() {
        broken_change(weak("epoch", Weak::Load));
    }

    #[test]
    #[should_panic(expected = "a frame was dropped")]
    fn a_table_published_without_release() {
        broken_change(weak("table.epoch", Weak::Store));
    }

    #[test]
    #[should_panic(expected = "a frame was dropped")]
    fn a_table_read_without_acquire() {
        broken_change(weak("table.epoch", Weak::Load));
    }

    #[test]
    #[should_panic(expected = "a frame was dropped")]
    fn a_death_announced_without_release() {
        broken_death(Weak::Store);
    }

    #[test]
    #[should_panic(expected = "a frame was dropped")]
    fn a_death_heard_of_without_acquire() {
        broken_death(Weak::Load);
    }
}
