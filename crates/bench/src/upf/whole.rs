//! A whole UPF over synthetic ports, in either execution model: put together as a program does it, its threads' rounds called by
//! whoever measures. Where it has several workers, all packets are of the first one's buckets.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::ensure;
use port::synthetic::Synthetic;
use port::{Port, PortInfo, QueuePair, RxQueue};
use upf::function::{Place, Plan, Upf};
use upf::model::Model;
use upf::rules::UeIp;
use upf::side::PortKind;

use super::throttle::{Passage, Throttled};
use crate::rig::{self, Load, Way};

/// How long it may take until a packet of each session has passed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Rounds of a worker after which what it has been given is not to be expected any more.
const ROUNDS_MAX: u32 = 1 << 20;

/// The UPF, with its sessions in force and packets that go one way waiting.
pub(crate) struct Whole {
    pub upf: Upf,
    pub(super) passage: Arc<Passage>,
}

impl Whole {
    /// Of this model, with so many workers. Of the active sessions those of the first worker have traffic.
    pub fn new(model: Model, workers: usize, way: Way, load: Load) -> anyhow::Result<Self> {
        Self::with_input(model, workers, way, load, PortInfo::named("input"))
    }

    /// One that runs to completion, each worker with a queue of a steered port, which looks whose frames are.
    pub fn steered(workers: usize, way: Way, load: Load) -> anyhow::Result<Self> {
        let kind = if way == Way::Uplink { PortKind::N3 } else { PortKind::N6 };
        let input = PortInfo { queues: workers as u16, steering: kind.steering(), ..PortInfo::named("input") };
        Self::with_input(Model::RunToCompletion, workers, way, load, input)
    }

    fn with_input(model: Model, workers: usize, way: Way, load: Load, input: PortInfo) -> anyhow::Result<Self> {
        let (frames, passage) = (Arc::new(OnceLock::new()), Arc::new(Passage::default()));
        let source = || Box::new(Throttled::new(frames.clone(), input.clone(), passage.clone())) as Box<dyn RxQueue>;
        let port = |info: PortInfo, is_input: bool| -> anyhow::Result<Port> {
            let mut port = Synthetic::new(vec![]).info(PortInfo { queues: workers as u16, ..info }).open();
            let QueuePair { rx, tx } = port.queues.remove(0);
            port.queues.insert(0, rig::counted(if is_input { source() } else { rx }, tx, &passage.sent));
            Ok(port)
        };
        let places = [
            (PortKind::N3, port(rig::n3(), way == Way::Uplink)?),
            (PortKind::N6, port(rig::n6(), way == Way::Downlink)?),
        ];
        let place = |(kind, port)| Place { kind, network_instances: vec![], port };
        let plan = Plan { max_sessions: load.sessions as usize, model, ..Plan::default() };
        let mut upf = Upf::over(&plan, places.map(place).into())?;
        let (tables, all) = (upf.tables.clone(), &mut upf.workers);
        let refresh = || {
            all.iter_mut().for_each(|worker| _ = worker.run_once());
            Ok(())
        };
        let teids = rig::install(&tables, refresh, load)?;
        let is_first_s = |&number: &u32| {
            let ue = UeIp { v4: Some(rig::ue(number)), v6: None };
            usize::from(tables.home_bucket(&ue)).is_multiple_of(workers)
        };
        let active = rig::order(load).into_iter().filter(is_first_s);
        let all = active.map(|number| rig::frame(way, load, number, teids[number as usize])).collect();
        ensure!(frames.set(all).is_ok(), "frames are named once");
        Ok(Self { upf, passage })
    }

    /// Has a burst pass through a pipeline, in this thread. Packets that have left so far.
    pub fn pass(&mut self) -> u64 {
        self.passage.look();
        self.upf.dispatcher.iter_mut().for_each(|dispatcher| _ = dispatcher.run_once(&AtomicBool::new(false)));
        self.work_off();
        self.passage.sent()
    }

    /// Lets the worker deal with all that it has been given. What was dropped never leaves.
    pub fn work_off(&mut self) {
        let mut rounds = 0;
        while self.passage.under_way() > 0 && rounds < ROUNDS_MAX {
            self.upf.workers[0].run_once();
            rounds += 1;
        }
    }

    /// Has every session's packet pass once, so that no memory is touched for the first time while it is measured.
    pub fn pass_all(&mut self, load: Load) -> anyhow::Result<()> {
        let (never, begin, upf) = (AtomicBool::new(false), Instant::now(), &mut self.upf);
        while self.passage.sent() < u64::from(load.active) {
            ensure!(begin.elapsed() < PATIENCE, "packets do not pass: {:?} are dropped", upf.counts.all());
            upf.dispatcher.iter_mut().for_each(|dispatcher| _ = dispatcher.run_once(&never));
            upf.workers[0].run_once();
        }
        Ok(())
    }

    /// Fails where the UPF has dropped packets.
    pub fn check(&self) -> anyhow::Result<()> {
        let drops = self.upf.counts.all();
        ensure!(drops.is_empty(), "the UPF dropped packets: {drops:?}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::Payload;

    #[test]
    fn every_packet_given_leaves_either_model_both_ways() {
        for (payload, model) in [
            (Payload::Bytes(64), Model::RunToCompletion),
            (Payload::Bytes(64), Model::Pipeline),
            (Payload::Mix, Model::RunToCompletion),
            (Payload::Mix, Model::Pipeline),
        ] {
            let load = Load { payload, ..Load::of(50, 50, 64) };
            for way in Way::BOTH {
                let mut whole = Whole::new(model, 1, way, load).expect("a UPF");
                let never = AtomicBool::new(false);
                for _ in 0..1_000 {
                    whole.passage.look();
                    whole.upf.dispatcher.iter_mut().for_each(|dispatcher| _ = dispatcher.run_once(&never));
                    whole.upf.workers[0].run_once();
                }
                // What the last round gave is still in the ring where a burst did not fit one.
                (0..100).for_each(|_| _ = whole.upf.workers[0].run_once());
                assert!(whole.passage.given() >= 10_000, "{model:?} {payload:?} {way:?}: {}", whole.passage.given());
                if model == Model::Pipeline {
                    assert_eq!(whole.passage.under_way(), 0, "{way:?}");
                }
                whole.check().expect("nothing is dropped");
            }
        }
    }

    #[test]
    fn all_sessions_have_had_a_packet() {
        let load = Load::of(2_000, 1_500, 1_400);
        for model in [Model::RunToCompletion, Model::Pipeline] {
            let mut whole = Whole::new(model, 1, Way::Downlink, load).expect("a UPF");
            whole.pass_all(load).expect("packets pass");
            assert!(whole.passage.sent() >= 1_500, "{model:?}");
            whole.check().expect("nothing is dropped");
        }
    }

    #[test]
    fn a_dispatcher_that_has_several_workers_gives_all_packets_to_the_first() {
        let load = Load::of(200, 200, 64);
        for way in Way::BOTH {
            let mut whole = Whole::new(Model::Pipeline, 2, way, load).expect("a UPF");
            (0..100).for_each(|_| _ = whole.pass());
            assert!(whole.passage.sent() >= 1_000, "{way:?}: {}", whole.passage.sent());
            assert!(!whole.upf.workers[1].run_once(), "{way:?}: the second worker has packets");
            whole.check().expect("nothing is dropped");
        }
    }

    #[test]
    fn a_worker_with_a_queue_of_several_is_given_all_that_is_its_own() {
        let load = Load::of(200, 200, 64);
        for way in Way::BOTH {
            let mut whole = Whole::steered(2, way, load).expect("a UPF");
            whole.pass_all(load).expect("packets pass");
            whole.check().expect("nothing is dropped");
        }
    }

    #[test]
    fn the_source_waits_where_nothing_leaves() {
        let load = Load::of(50, 50, 64);
        let mut whole = Whole::new(Model::Pipeline, 1, Way::Uplink, load).expect("a UPF");
        let dispatcher = whole.upf.dispatcher.as_mut().expect("a pipeline has a dispatcher");
        let never = AtomicBool::new(false);
        while dispatcher.run_once(&never) {}
        assert!(whole.passage.under_way() > 100, "{}", whole.passage.under_way());
        assert!(!whole.upf.dispatcher.as_mut().expect("the same").run_once(&never));
    }
}
