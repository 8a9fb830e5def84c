//! `kaista-traffic generate`: a load at a given rate.

use clap::Args;
use serde::Serialize;
use traffic::generator::{Pace, Sent};
use traffic::interrupt::Interrupt;
use traffic::sink::Found;
use traffic::stamp::now_ns;

use super::common::{print, seconds};
use super::load::{Load, pace};

/// Its options.
#[derive(Args)]
pub struct Generate {
    #[command(flatten)]
    load: Load,
    /// Packets a second over all flows, with suffix k or M; `max` for as many as the port takes
    #[arg(long, default_value = "1k", value_parser = pace)]
    rate: Pace,
    /// How long to send, in seconds
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
}

/// What it prints.
#[derive(Serialize)]
struct Generated {
    sent: Sent,
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<Found>,
}

/// Sends until its time is over, and then takes what is still on its way.
pub fn run(args: &Generate) -> anyhow::Result<()> {
    let interrupt = Interrupt::take()?;
    args.load.common.stay()?;
    let (mut path, macs) = args.load.open()?;
    let mut generator = args.load.generator(&path, macs, &args.load.size)?;
    let mut sink = args.load.sink();

    let begin = now_ns();
    // What is on its way since earlier is none of this run's.
    sink.begin_again(begin);
    generator.set_pace(args.rate, begin);
    let end = begin + (args.seconds * 1e9) as u64;
    let now = path.run(&mut generator, &mut sink, end, &mut now_ns, &|| interrupt.has_come());
    let sent = Sent::of(&generator, (now - begin) as f64 / 1e9);
    // What is on its way when it is told to end is waited for all the same.
    path.drain(&mut sink, sent.accepted, &mut now_ns, &|| false);
    let found = args.load.is_judged().then(|| sink.found().of_accepted(sent.accepted));
    print(&Generated { sent, found }, args.load.common.json)
}
