//! `kaista replace`: a new process of a function takes over from the one that runs.

use crate::{
    args::Replace,
    follow::strange,
    out::{self, Paint},
    outcome::Outcome,
    up,
};
use node::{
    control::{Client, Reply, Request},
    paths::Paths,
};
use std::{process::ExitCode, time::Instant};

pub fn run(args: &Replace) -> Outcome {
    let begin = Instant::now();
    let client = Client::new(Paths::from_env());
    let mut closed = None;
    let reply = client.call(&Request::Replace { function: args.function.clone() }, |event| {
        if !args.json
            && let Err(error) = up::tell(&event)
        {
            closed.get_or_insert(error);
        }
    })?;
    let Reply::Replaced { slice, function, pid } = reply else { return Err(strange(&reply)) };
    closed.map_or(Ok(()), Err)?;
    if args.json {
        out::json(&serde_json::json!({ "slice": slice, "function": function, "pid": pid }))?;
    } else {
        let name = Paint::stdout().bold(&format!("{slice}/{function}"));
        out::line(&format!("{name} is replaced, {:.1} s", begin.elapsed().as_secs_f64()))?;
    }
    Ok(ExitCode::SUCCESS)
}
