//! `kaista-traffic sink`: what became of generated packets.

use std::time::Duration;

use clap::Args;
use port::{Sleep, Waiter};
use traffic::interrupt::Interrupt;
use traffic::sink::Sink;
use traffic::stamp::now_ns;
use traffic::station::Station;

use super::common::{Common, print, seconds};

/// Its options.
#[derive(Args)]
pub struct Take {
    /// Port to receive on
    #[arg(long)]
    port: String,
    /// How long to listen, in seconds
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
}

/// Listens until its time is over.
pub fn run(args: &Take) -> anyhow::Result<()> {
    let interrupt = Interrupt::take()?;
    args.common.stay()?;
    let mut station = Station::on(args.common.open(&args.port)?)?;
    let mut sink = Sink::new();
    let mut waiter = Waiter::new(Sleep::After(Duration::from_micros(50)));
    let end = now_ns() + (args.seconds * 1e9) as u64;
    loop {
        let now = now_ns();
        if now >= end || interrupt.came() {
            break;
        }
        if station.take(&mut sink, now) > 0 {
            waiter.worked();
        } else {
            waiter.wait(&mut [station.queue.rx.as_mut()], &[], Some(Duration::from_nanos(end - now)))?;
        }
    }
    print(&sink.found(), args.common.json)
}
