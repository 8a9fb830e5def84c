//! `kaista-traffic forward`: the plain forwarder.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use port::pool::{self, JoinError, Member};
use port::{Port, PortSteering, QueuePair};
use traffic::forwarder::{Addresses, Forwarder};
use traffic::forwarding::{self, Plan};
use traffic::interrupt::{self, Interrupt};
use traffic::station::PEER_WAIT;

use super::common::{Common, Usage, print, seconds};

/// Its options.
#[derive(Args)]
pub struct Forward {
    /// Port to forward on; given twice, frames go from each to the other
    #[arg(long = "port", required = true)]
    ports: Vec<String>,
    /// What to do with Ethernet addresses
    #[arg(long, value_enum, default_value = "swap")]
    addresses: Addresses,
    /// How often to offer a frame again that a port refused, before it is discarded
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    retry: u32,
    /// Frames to send out of each port at the start
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    send_first: usize,
    /// Their length in bytes
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(60..=9_600))]
    size: u16,
    /// How long to forward before counting begins, in seconds
    #[arg(long, default_value_t = 0.0, value_parser = seconds)]
    warm_up: f64,
    /// How long to count, in seconds; for ever where absent
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Poll without pause instead of sleeping when there is nothing to do
    #[arg(long)]
    poll: bool,
    /// End when the process ends that started this one, however it ends
    #[arg(long, hide = true)]
    die_with_parent: bool,
    #[command(flatten)]
    common: Common,
}

/// The queue of each port, and the place in the pool that they are of, if they are.
fn open_to_forward(args: &Forward) -> anyhow::Result<(Vec<QueuePair>, Option<Member>)> {
    loop {
        let ports = args.ports.iter().map(|name| args.common.open(name)).collect::<anyhow::Result<Vec<_>>>()?;
        let pooled: Vec<_> = ports.iter().filter_map(Port::steering).filter(PortSteering::is_pooled).collect();
        let options = args.common.options();
        let member = match pooled.is_empty() {
            true => None,
            false => match pool::join(&options.socket, &pooled, &[], options.timeout) {
                // What was opened is of a former table.
                Err(JoinError::Changed) => continue,
                joined => joined.context("cannot take the place in the pool")?.into_iter().next(),
            },
        };
        let controls: Vec<_> = ports.iter().map(Port::control).collect();
        if !port::await_ports(&controls, PEER_WAIT) {
            bail!("whoever has the ports does not leave them");
        }
        let queues = ports.into_iter().map(first_queue).collect::<anyhow::Result<_>>()?;
        return Ok((queues, member));
    }
}

/// Forwards until its time is over.
pub fn run(args: &Forward) -> anyhow::Result<()> {
    if args.ports.len() > 2 {
        return Err(Usage("expected one or two ports".into()).into());
    }
    if args.die_with_parent {
        interrupt::die_with_parent();
    }
    let interrupt = Interrupt::take()?;
    args.common.stay()?;
    let (queues, member) = open_to_forward(args)?;
    let mut queues = queues.into_iter();
    let first = queues.next().context("there is a port")?;
    let mut forwarder = match queues.next() {
        None => Forwarder::within(first, args.addresses),
        Some(second) => Forwarder::between(first, second, args.addresses),
    };
    forwarder = forwarder.retrying(args.retry);
    if let Some(member) = member {
        forwarder = forwarder.as_member(member);
    }
    let plan = Plan {
        send_first: args.send_first,
        size: args.size.into(),
        warm_up: Duration::from_secs_f64(args.warm_up),
        window: args.seconds.map(Duration::from_secs_f64),
        poll: args.poll,
    };
    let forwarded = forwarding::run_until(Some(&interrupt), &mut forwarder, &args.ports, plan)?;
    print(&forwarded, args.common.json)
}

/// The one queue pair of a port that this program uses.
pub fn first_queue(port: Port) -> anyhow::Result<QueuePair> {
    let name = port.info.name;
    port.queues.into_iter().next().with_context(|| format!("port {name} has no queue"))
}
