//! A UPF of several workers over shared-memory ports, with the threads that run it, and the source of its traffic.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use gtpu::Direction;
use port::{OpenOptions, Port, PortInfo, QueuePair, Steering};
use traffic::generator::{Flow, Generator, Macs, Pace, Tunnel};
use traffic::spread::spread;
use upf::elastic::{Elastic, Elasticity};
use upf::function::{Place, Plan, Upf};
use upf::model::Model;
use upf::side::PortKind;
use vport::broker::{EndSpec, LinkKind, RING_BYTES_MAX};
use vport::ring::record_bytes;

use super::ridden::{Reins, Ridden, Rider};
use super::slowed::Slowed;
use crate::at_end::AtEnd;
use crate::links::Links;
use crate::rig::{self, GNB, GNB_MAC, Load, QFI, SERVER, Way};

/// How long links may take to come up, and packets to come out.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two turns of a source that has a thread of its own; the system makes some fifty microseconds of it.
const PAUSE: Duration = Duration::from_micros(1);

/// Bytes of the links' rings: room for what comes while the system or the hypervisor has a core for some milliseconds; in a pipeline,
/// whose threads share cores, until the system divides these better.
fn ring_bytes(model: Model) -> u32 {
    match model {
        Model::RunToCompletion => 16 << 20,
        Model::Pipeline => RING_BYTES_MAX,
    }
}

/// Where the source and the sink are.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// They ride in the polls of whoever receives, so that all have the same part of what they cost.
    OnAny,
    /// They ride in those of the first one alone: the state of flows stays with its core, and costs the same wherever the others are.
    OnFirst,
    /// They have a thread of their own: workers take so long for each packet beside their work, and sleep meanwhile.
    Apart { packet: Duration },
}

/// The UPF.
pub(super) struct Crew {
    upf: Upf,
    source: Source,
    rider: Arc<Mutex<Option<Rider>>>,
    pub reins: Arc<Reins>,
    links: Links,
    ring_bytes: u32,
}

impl Crew {
    /// Of this model, with so many workers. `elasticity` is what decides over them when it is run.
    pub fn new(model: Model, workers: u16, elasticity: Elasticity, load: Load, source: Source) -> anyhow::Result<Self> {
        let rider = Arc::new(Mutex::new(None));
        let of_upf = |info: PortInfo, steering| PortInfo { queues: workers, steering, ..info };
        let ports = [of_upf(rig::n3(), Steering::Teid), of_upf(rig::n6(), Steering::UeAddress)];
        let ends = ports.map(|port| {
            let far = PortInfo { mtu: port.mtu, ..PortInfo::named(&port.name) };
            [EndSpec::of("load".to_owned(), far), EndSpec::of("upf".to_owned(), port)]
        });
        let ring_bytes = ring_bytes(model);
        let links = Links::of_kind(&LinkKind::Direct, ring_bytes, ends)?;
        let open = |name: &str| -> anyhow::Result<Port> {
            Ok(port::open(name, &OpenOptions { socket: links.socket("upf"), ..OpenOptions::default() })?)
        };
        let [mut n3, mut n6] = [open("n3")?, open("n6")?];
        let ridden = |number, inner| Ridden { inner, rider: rider.clone(), is_awake: number == 0 };
        match source {
            Source::Apart { packet } => {
                each_queue(&mut n6, |_, QueuePair { rx, tx }| QueuePair { rx, tx: Box::new(Slowed::new(tx, packet)) })
            }
            Source::OnFirst => each_queue(&mut n3, |number, QueuePair { rx, tx }| match number {
                0 => QueuePair { rx: Box::new(ridden(number, rx)), tx },
                _ => QueuePair { rx, tx },
            }),
            Source::OnAny => {
                each_queue(&mut n3, |number, QueuePair { rx, tx }| QueuePair { rx: Box::new(ridden(number, rx)), tx })
            }
        }
        let place = |(kind, port)| Place { kind, network_instances: vec![], port };
        let places = [(PortKind::N3, n3), (PortKind::N6, n6)].map(place).into();
        let max_sessions = load.sessions as usize;
        let plan = Plan { max_sessions, model, elasticity: Some(elasticity), ..Plan::default() };
        let (upf, reins) = (Upf::over(&plan, places)?, Arc::default());
        Ok(Self { upf, source, rider, reins, links, ring_bytes })
    }

    /// Runs all threads and the source, with sessions in force, while `meanwhile` does; thread n on core n of `cores`, over and
    /// over, or anywhere where there are none. Afterwards nothing may have been dropped. Where one of them ends early or `meanwhile`
    /// fails or panics, all end.
    pub fn play<T>(
        mut self,
        load: Load,
        cores: &[usize],
        meanwhile: impl FnOnce(&Elastic, &Reins) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let (tables, counts) = (self.upf.tables.clone(), self.upf.counts.clone());
        let elastic = self.upf.elastic.clone().context("buckets do not move")?;
        let (bells, stop) = (&self.upf.bells.clone(), &AtomicBool::new(false));
        let end = move || {
            stop.store(true, Ordering::Relaxed);
            bells.iter().for_each(|bell| bell.ring());
        };
        let found = std::thread::scope(|scope| {
            let ending = AtEnd(end);
            if let Source::Apart { .. } = self.source {
                scope.spawn(|| drive(&self.rider, stop));
            }
            let threads = self.upf.threads().enumerate().map(|(number, mut work)| {
                let core = (!cores.is_empty()).then(|| cores[number % cores.len()]);
                scope.spawn(move || {
                    let _ending = AtEnd(end);
                    if let Some(core) = core {
                        // Where the core cannot be had the figures are worse.
                        let _ = traffic::cores::pin(core);
                    }
                    work(stop)
                })
            });
            let threads: Vec<_> = threads.collect();
            let found = rig::install(&tables, || go_on(stop), load)
                .and_then(|teids| mount(&self.links, &self.rider, &self.reins, self.ring_bytes, (load, &teids)))
                .and_then(|()| meanwhile(&elastic, &self.reins));
            drop(ending);
            for thread in threads {
                thread.join().map_err(|_| anyhow!("a thread of the UPF panicked"))??;
            }
            found
        })
        .with_context(|| format!("the UPF dropped packets: {:?}", counts.all()))?;
        let drops = counts.all();
        ensure!(drops.is_empty(), "the UPF dropped packets: {drops:?}");
        Ok(found)
    }
}

/// Fails where a thread of the UPF has ended.
fn go_on(stop: &AtomicBool) -> anyhow::Result<()> {
    ensure!(!stop.load(Ordering::Relaxed), "a thread of the UPF has ended");
    Ok(())
}

/// Has the elastic component decide while `meanwhile` runs.
pub(super) fn deciding<T>(elastic: &Elastic, meanwhile: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ending = AtEnd(|| stop.store(true, Ordering::Relaxed));
        let deciding = scope.spawn(move || elastic.run(stop));
        let found = meanwhile();
        drop(ending);
        deciding.join().map_err(|_| anyhow!("the elastic component panicked"))??;
        found
    })
}

fn each_queue(port: &mut Port, change: impl Fn(usize, QueuePair) -> QueuePair) {
    let queues = std::mem::take(&mut port.queues).into_iter().enumerate();
    port.queues = queues.map(|(number, pair)| change(number, pair)).collect();
}

/// What source and sink do where they have a thread of their own.
fn drive(rider: &Mutex<Option<Rider>>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        if let Ok(mut rider) = rider.lock()
            && let Some(rider) = &mut *rider
        {
            rider.ride();
        }
        std::thread::sleep(PAUSE);
    }
}

/// One bucket in so many is hot where the load is skewed: those that the first of two workers owns at first.
const ONE_IN: u8 = 2;
/// How many times the others' load each session in them has.
pub(super) const HOT_TIMES: u32 = 4;

/// Whether a bucket is hot where the load is skewed.
pub(super) fn is_hot(bucket: u8) -> bool {
    bucket.is_multiple_of(ONE_IN)
}

/// A flow of each session, and the order in which they come where the load is skewed.
fn flows(load: Load, teids: &[u32]) -> anyhow::Result<(Vec<Flow>, Vec<u32>)> {
    let to = rig::n3().addresses.first().map(|(address, _)| *address);
    let Some(IpAddr::V4(to)) = to else { return Err(anyhow!("N3 has an IPv4 address")) };
    let flow = |number: u32| {
        let tunnel = Tunnel { from: GNB, to, teid: teids[number as usize], qfi: QFI, direction: Direction::Uplink };
        Flow { from: rig::ue(number), to: SERVER, tunnel: Some(tunnel) }
    };
    let flows: Vec<Flow> = rig::order(load).into_iter().map(flow).collect();
    let times: Vec<u32> = flows.iter().map(|flow| if is_hot(flow.bucket()) { HOT_TIMES } else { 1 }).collect();
    Ok((flows, spread(&times)))
}

/// Puts the source into place, once its link is up.
fn mount(
    links: &Links,
    rider: &Mutex<Option<Rider>>,
    reins: &Arc<Reins>,
    ring_bytes: u32,
    (load, teids): (Load, &[u32]),
) -> anyhow::Result<()> {
    let (flows, skewed) = flows(load, teids)?;
    let macs = Macs { from: GNB_MAC, to: rig::n3().mac };
    // Nothing is due before somebody asks for it.
    let generator = || Generator::new(&flows, load.payload.largest(), macs, Pace::PerSecond(0.0), u64::MAX);
    let generators = [generator(), generator().in_order(skewed).numbered_from(flows.len() as u32)];
    let ring_packets = u64::from(ring_bytes) / record_bytes(rig::frame_len(Way::Uplink, load));
    let (into, out) = (links.open("load", "n3")?, links.open("load", "n6")?);
    let made = Rider::new(into, ring_packets, out, generators, reins.clone());
    links.come_up(PATIENCE)?;
    *rider.lock().map_err(|_| anyhow!("a worker panicked"))? = Some(made);
    let begin = Instant::now();
    reins.wait();
    while reins.tally().received == 0 {
        ensure!(begin.elapsed() < PATIENCE, "nothing comes out of the UPF: {:?}", reins.tally());
        std::thread::sleep(Duration::from_millis(1));
    }
    drain(reins);
    Ok(())
}

/// Has nothing more sent, and waits for what is on its way.
pub(super) fn drain(reins: &Reins) {
    reins.set_rate(0.0);
    let begin = Instant::now();
    std::thread::sleep(Duration::from_millis(20));
    while reins.tally().missing() > 0 && begin.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use upf::elastic::{Signal, Terms};

    use super::*;
    use crate::hugepages;

    const LOAD: Load = Load::of(20, 20, 64);

    fn crew() -> Crew {
        let elasticity = Elasticity { signal: Signal::Busy, terms: Terms::fixed(2) };
        Crew::new(Model::RunToCompletion, 2, elasticity, LOAD, Source::OnAny).expect("a UPF")
    }

    #[test]
    #[should_panic(expected = "measured in vain")]
    fn a_panic_while_the_threads_run_comes_out() {
        let _pages = hugepages::turns::with_others();
        let _ = crew().play(LOAD, &[], |_, _| -> anyhow::Result<()> { panic!("measured in vain") });
    }

    #[test]
    #[should_panic(expected = "measured in vain")]
    fn a_panic_while_the_elastic_component_decides_comes_out() {
        let _pages = hugepages::turns::with_others();
        let measure =
            |elastic: &Elastic, _: &Reins| deciding(elastic, || -> anyhow::Result<()> { panic!("measured in vain") });
        let _ = crew().play(LOAD, &[], measure);
    }
}
