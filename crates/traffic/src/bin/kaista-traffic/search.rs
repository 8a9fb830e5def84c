//! `kaista-traffic search`: the highest rate that a path passes.

use clap::Args;
use serde::Serialize;
use traffic::interrupt::Interrupt;
use traffic::search::{Limit, Plan, Searched, search};
use traffic::stamp::now_ns;
use traffic::trial::Trials;

use super::common::{Usage, print};
use super::load::{Load, rate_pps};

/// Its options.
#[derive(Args)]
pub struct Search {
    #[command(flatten)]
    load: Load,
    /// The largest loss that a rate passes with: a part of all packets, such as 0.001, or 0.1%
    #[arg(long, value_name = "PART", default_value = "0", value_parser = part)]
    loss: f64,
    /// Trials at most for each search; each halves the range in which the limit is
    #[arg(long, value_name = "COUNT", default_value_t = 12, value_parser = clap::value_parser!(u32).range(2..=64))]
    trials: u32,
    /// How long a rate is tried; RFC 2544 asks for 60
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    trial_seconds: f64,
    /// The highest rate to try, in packets a second, with suffix k or M; where absent, a first trial finds what the port takes
    #[arg(long, value_name = "RATE", value_parser = rate_pps)]
    most: Option<f64>,
    /// Search for each size of `--size` by itself
    #[arg(long)]
    each_size: bool,
}

/// What it prints.
#[derive(Serialize)]
struct Report {
    /// Length of a trial.
    trial_seconds: f64,
    /// One, or one for each size.
    searches: Vec<OfSizes>,
}

/// A search with packets of some sizes.
#[derive(Serialize)]
struct OfSizes {
    /// Their payloads in bytes: the mean and the largest.
    payload_bytes_mean: f64,
    payload_bytes_max: usize,
    #[serde(flatten)]
    found: Searched,
}

/// Searches, size by size or with all of them.
pub fn run(args: &Search) -> anyhow::Result<()> {
    if !args.load.is_judged() {
        let remedy = "give --sink PORT, or --mirrored with kaista-traffic reflect at the far end";
        return Err(Usage(format!("nobody judges what comes through: {remedy}")).into());
    }
    let interrupt = Interrupt::take()?;
    args.load.common.stay()?;
    let (mut path, macs) = args.load.open()?;
    let plan = Plan { most_pps: args.most, trials: args.trials };
    let all = if args.each_size { args.load.size.each() } else { vec![args.load.size.clone()] };
    let mut searches = vec![];
    for sizes in all {
        let mut trials = Trials {
            generator: args.load.generator(&path, macs, &sizes)?,
            path,
            sink: args.load.sink(),
            trial_ns: (args.trial_seconds * 1e9) as u64,
            loss: args.loss,
            clock: &mut now_ns,
            stop: &|| interrupt.has_come(),
        };
        let found = search(&plan, args.loss, |pace| trials.run(pace));
        path = trials.path;
        let is_over = found.limit == Limit::Interrupted;
        let (payload_bytes_mean, payload_bytes_max) = (sizes.mean(), sizes.largest());
        searches.push(OfSizes { payload_bytes_mean, payload_bytes_max, found });
        if is_over {
            break;
        }
    }
    print(&Report { trial_seconds: args.trial_seconds, searches }, args.load.common.json)
}

fn part(text: &str) -> Result<f64, String> {
    let (number, factor) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 0.01));
    match number.parse::<f64>() {
        Ok(part) if (0.0..1.0).contains(&(part * factor)) => Ok(part * factor),
        _ => Err("expected a part of all packets from 0 to less than 1, such as 0.001 or 0.1%".to_owned()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds from 0.001 to 86400".to_owned()),
    }
}
