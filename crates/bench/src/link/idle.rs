//! Eight functions in a circle with nothing to do, and the process that is their broker: this one.

use std::time::Duration;

use serde_json::json;

use super::chain::forwarder;
use super::{Args, Bench, Found, part};
use crate::companion::Companion;
use crate::cpu_time::CpuTime;
use crate::links::{Links, end};

const FUNCTIONS: usize = 8;
/// Time for all links to come up and all functions to fall asleep.
const SETTLE: Duration = Duration::from_secs(2);

pub(super) fn measure(bench: &Bench, args: &Args, found: &mut Found) -> anyhow::Result<()> {
    bench.progress.step(&format!("{FUNCTIONS} functions that have nothing to do"))?;
    let name = |number: usize| format!("function{}", number % FUNCTIONS);
    let links = Links::new((0..FUNCTIONS).map(|number| [end(&name(number), "b"), end(&name(number + 1), "a")]))?;
    let start = |number| forwarder(&links, &name(number), bench.cores[1]);
    let mut functions = (0..FUNCTIONS).map(start).collect::<anyhow::Result<Vec<_>>>()?;
    bench.progress.sleep(SETTLE)?;

    let of_functions = CpuTime::of(functions.iter().map(|function| function.0.id()));
    let of_broker = CpuTime::of([std::process::id()]);
    let before = [of_functions.now()?, of_broker.now()?];
    let window = Duration::from_secs_f64(args.idle_seconds);
    bench.progress.sleep(window)?;
    let after = [of_functions.now()?, of_broker.now()?];
    functions.iter_mut().try_for_each(Companion::check)?;

    let percent = |n: usize| (after[n] - before[n]).as_secs_f64() / window.as_secs_f64() * 100.0;
    found.samples.add("link.idle8.cpu_percent", percent(0) + percent(1), "%");
    let how = json!({"functions": "kaista-traffic forward, asleep", "broker": "this process",
        "seconds": args.idle_seconds});
    let runs = json!({"functions_percent": percent(0), "broker_percent": percent(1)});
    found.parts.insert("idle8".into(), part(how, &runs));
    Ok(())
}
