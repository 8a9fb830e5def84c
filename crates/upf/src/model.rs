//! Execution models: how packets get from the ports to the workers.
//!
//! *Run to completion*: each worker receives by a queue pair of its own of every port, which senders choose by the packet's bucket.
//! *Pipeline*: a dispatcher receives for all. Either way the same workers do the rest, and send by queue pairs of their own, or, in a
//! pipeline that has one, by a sender.

use std::io;
use std::sync::Arc;

use port::owner::{self, Decider, GroupError, Owner};
use port::relay::{Ford, Outflow};
use port::{OpenOptions, PortSteering, QueuePair, TxQueue};
use serde::Deserialize;

use crate::bell::Bell;
use crate::clock::Clock;
use crate::function::{AssemblyError, Place};
use crate::pipeline::{Chart, Dispatcher, Intake, Outbound, Sender, relays};
use crate::side::PortKind;
use crate::tables::BUCKETS;
use crate::worker::{Luggage, Worker};

/// The execution model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// Each worker receives, decides and sends.
    #[default]
    RunToCompletion,
    /// A dispatcher receives, workers decide and send.
    Pipeline,
}

impl Model {
    /// How many bytes of a frame whoever receives it from a port of this kind has to look at: a worker at all headers, a
    /// dispatcher at what says the bucket, over either version of IP.
    pub fn peek_bytes(self, kind: PortKind) -> usize {
        match self {
            Self::RunToCompletion => OpenOptions::default().peek_bytes,
            Self::Pipeline if kind.has_tunnels() => 128,
            Self::Pipeline => 64,
        }
    }
}

/// What connects ports and workers.
pub(crate) struct Lanes {
    /// Of each worker, a pair for each port.
    pub queues: Vec<Vec<QueuePair>>,
    pub shifting: Option<Shifting>,
    pub dispatcher: Option<Dispatcher>,
    pub sender: Option<Sender>,
}

/// What moves buckets.
pub(crate) struct Shifting {
    pub decider: Decider,
    /// Of the workers.
    owners: Vec<Owner<Luggage>>,
    fords: Vec<Vec<Ford>>,
    outflows: Vec<Vec<Outflow>>,
    pub chart: Option<Chart>,
    /// Whether the ports count packets by their buckets.
    pub is_steered: bool,
}

impl Lanes {
    /// Between ports with as many queue pairs as there are workers, or with a sender any number, and these, whose bells are given. Buckets stay
    /// where they are unless they `may_move`, and where there is one worker, or the node decides for several processes.
    pub(crate) fn lay(
        (model, has_sender): (Model, bool),
        places: Vec<Place>,
        bells: &[Arc<Bell>],
        clock: Clock,
        may_move: bool,
    ) -> Result<Self, AssemblyError> {
        let steered: Vec<_> = places.iter().filter_map(|place| place.port.steering()).collect();
        let are_all_steered = places
            .iter()
            .all(|place| place.port.steering().is_some() && place.port.info.steering == place.kind.steering());
        let is_pooled = steered.iter().any(PortSteering::is_pooled);
        let may_move = may_move && bells.len() > 1 && !is_pooled;
        match model {
            Model::RunToCompletion => {
                let group = |()| owner::group_of(bells.len(), &steered, &[]);
                let shifting = may_move.then_some(()).map(group).transpose()?.map(|(decider, owners)| Shifting {
                    decider,
                    owners,
                    fords: vec![],
                    outflows: vec![],
                    chart: None,
                    is_steered: are_all_steered,
                });
                Ok(Self { queues: dealt(places, bells.len()), shifting, dispatcher: None, sender: None })
            }
            Model::Pipeline => {
                // By a sender's one queue nothing overtakes.
                let outputs = if has_sender { &[][..] } else { &steered };
                let group = |()| owner::group_of(bells.len(), &[], outputs);
                let group = may_move.then_some(()).map(group).transpose()?;
                let gathered = if is_pooled { vec![] } else { gathered(&steered)? };
                Ok(Self::with_dispatcher(places, (bells, has_sender), clock, gathered, group)?)
            }
        }
    }

    fn with_dispatcher(
        places: Vec<Place>,
        (bells, has_sender): (&[Arc<Bell>], bool),
        clock: Clock,
        gathered: Vec<Owner<()>>,
        group: Option<(Decider, Vec<Owner<Luggage>>)>,
    ) -> io::Result<Self> {
        let (mut queues, mut intakes): (Vec<Vec<QueuePair>>, _) = (bells.iter().map(|_| vec![]).collect(), vec![]);
        let mut outs = vec![];
        for place in places {
            let is_steered = !gathered.is_empty() && place.port.steering().is_some();
            let (rx, tx): (Vec<_>, Vec<_>) = place.port.queues.into_iter().map(|pair| (pair.rx, pair.tx)).unzip();
            intakes.push(Intake::new(place.kind, rx, is_steered));
            outs.push((place.kind, tx));
        }
        let (sender, outbound) = match has_sender {
            true => Sender::new(outs, bells.len(), clock).map(|(sender, ways)| (Some(sender), ways))?,
            false => (None, each_of_its_own(outs, bells.len())),
        };
        let (exits, outflows): (Vec<_>, Vec<_>) = outbound.into_iter().unzip();
        let (mut ways, mut fords) = (vec![], vec![]);
        for ((queues, exits), bell) in queues.iter_mut().zip(exits).zip(bells) {
            let (to_worker, from_dispatcher, passed) = relays(intakes.len(), OpenOptions::default().peek_bytes)?;
            let pairs = from_dispatcher.into_iter().zip(exits);
            queues.extend(pairs.map(|(rx, tx)| QueuePair { rx: Box::new(rx), tx }));
            ways.push((to_worker, bell.clone()));
            fords.push(passed);
        }
        let chart = Chart::new(&std::array::from_fn::<_, BUCKETS, _>(|bucket| (bucket % bells.len()) as u8));
        let dispatcher = Dispatcher::new(intakes, gathered, ways, chart.clone(), clock)?;
        let shifting = group.map(|(decider, owners)| Shifting {
            decider,
            owners,
            fords,
            outflows,
            chart: Some(chart),
            is_steered: false,
        });
        Ok(Self { queues, shifting, dispatcher: Some(dispatcher), sender })
    }
}

impl Shifting {
    /// Workers that own buckets.
    pub(crate) fn owning(&mut self, workers: Vec<Worker>) -> Vec<Worker> {
        let owners = std::mem::take(&mut self.owners);
        let mut fords = std::mem::take(&mut self.fords).into_iter();
        let mut outflows = std::mem::take(&mut self.outflows).into_iter();
        let owning = |(worker, owner): (Worker, _)| {
            let worker = worker.with_owner(owner).with_fords(fords.next().unwrap_or_default());
            worker.with_outflows(outflows.next().unwrap_or_default())
        };
        workers.into_iter().zip(owners).map(owning).collect()
    }
}

/// Each worker gets a queue pair of every port.
fn dealt(places: Vec<Place>, workers: usize) -> Vec<Vec<QueuePair>> {
    let mut queues: Vec<Vec<QueuePair>> = (0..workers).map(|_| vec![]).collect();
    for place in places {
        queues.iter_mut().zip(place.port.queues).for_each(|(worker, pair)| worker.push(pair));
    }
    queues
}

/// Each worker gets a sending queue of every port.
fn each_of_its_own(outs: Vec<(PortKind, Vec<Box<dyn TxQueue>>)>, workers: usize) -> Vec<Outbound> {
    let mut outbound: Vec<Outbound> = (0..workers).map(|_| (vec![], vec![])).collect();
    for (_, queues) in outs {
        outbound.iter_mut().zip(queues).for_each(|((exits, _), queue)| exits.push(queue));
    }
    outbound
}

/// Has all packets of steered ports come by their first queues, once what this returns is settled. None where they do.
fn gathered(steered: &[PortSteering]) -> Result<Vec<Owner<()>>, GroupError> {
    if steered.is_empty() {
        return Ok(vec![]);
    }
    let (mut decider, owners) = owner::group(steered, &[])?;
    decider.set_owners(&[0; BUCKETS])?;
    Ok(owners)
}
