//! `kaista-traffic reflect`: the far end of a path whose sender measures there and back.

use std::time::{Duration, Instant};

use clap::Args;
use port::{Sleep, Waiter};
use traffic::interrupt::Interrupt;
use traffic::reflector::Reflector;
use traffic::station::Station;

use super::common::{Common, print, seconds};

/// Its options.
#[derive(Args)]
pub struct Reflect {
    /// Port to receive and send on
    #[arg(long)]
    port: String,
    /// How long, in seconds; for ever where absent
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Poll without pause instead of sleeping when there is nothing to do
    #[arg(long)]
    poll: bool,
    #[command(flatten)]
    common: Common,
}

/// Sends back until its time is over.
pub fn run(args: &Reflect) -> anyhow::Result<()> {
    let interrupt = Interrupt::take()?;
    args.common.stay()?;
    let mut station = Station::on(args.common.open(&args.port)?)?;
    let mut reflector = Reflector::default();
    let mut waiter = Waiter::new(Sleep::After(Duration::from_micros(50)));
    let begin = Instant::now();
    let window = args.seconds.map(Duration::from_secs_f64);
    while !interrupt.has_come() {
        let left = window.map(|window| window.saturating_sub(begin.elapsed()));
        if left == Some(Duration::ZERO) {
            break;
        }
        if station.reflect(&mut reflector) > 0 {
            waiter.worked();
        } else if !args.poll {
            waiter.wait(&mut [station.queue.rx.as_mut()], &[interrupt.fd()], left)?;
        }
    }
    print(&reflector, args.common.json)
}
