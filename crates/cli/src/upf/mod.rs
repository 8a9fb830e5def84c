//! `kaista upf`: a UPF without a slice, and what a running UPF can be asked.

mod call;
mod packet;
mod rules;

use crate::{
    args::{Upf, UpfCommand, UpfOf, UpfTrace},
    follow::Signals,
    out::{self, Paint},
    outcome::{Failure, Outcome},
};
use call::{Call, Heard};
use nix::sys::signal::Signal;
use rustix::process::set_parent_process_death_signal;
use std::process::ExitCode;
use std::time::Instant;
use upf::control::{Detail, Dropped, Event, Request, Seid, Summary};

pub fn run(args: &Upf) -> Outcome {
    match (&args.command, &args.config) {
        (Some(UpfCommand::Sessions(of)), _) => sessions(of),
        (Some(UpfCommand::Session(args)), _) => session(args.seid, &args.of),
        (Some(UpfCommand::Drops(of)), _) => drops(of),
        (Some(UpfCommand::Trace(args)), _) => trace(args),
        (None, Some(config)) => {
            if args.die_with_parent {
                let _ = set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
            }
            upf::program::run(config)?;
            Ok(ExitCode::SUCCESS)
        }
        (None, None) => Err(Failure::Usage("--config FILE says which UPF to run".into())),
    }
}

fn sessions(of: &UpfOf) -> Outcome {
    let mut sessions: Vec<Summary> = Vec::new();
    Call::start(of, &Request::Sessions)?.each(|event| match event {
        Event::Session(summary) => {
            sessions.push(summary);
            None
        }
        other => Some(other),
    })?;
    if of.json {
        out::json(&sessions)?;
    } else {
        let head = ["SEID", "SMF", "SMF'S SEID", "UE", "TEID", "PDRS", "WORKER", "UP", "DOWN"];
        out::print_table(&out::table(&head, sessions.iter().map(rules::session_row).collect()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn session(up_seid: Seid, of: &UpfOf) -> Outcome {
    let mut found: Option<Box<Detail>> = None;
    Call::start(of, &Request::Session { up_seid })?.each(|event| match event {
        Event::Detail(detail) => {
            found = Some(detail);
            None
        }
        other => Some(other),
    })?;
    let detail = found.ok_or_else(|| Failure::failed("the UPF did not say what the session is"))?;
    if of.json {
        let value = serde_json::to_value(&detail).map_err(|error| Failure::failed(error.to_string()))?;
        out::json(&rules::camel(value))?;
    } else {
        rules::print(&detail)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn drops(of: &UpfOf) -> Outcome {
    let mut drops: Vec<Dropped> = Vec::new();
    Call::start(of, &Request::Drops)?.each(|event| match event {
        Event::Drop(dropped) => {
            drops.push(dropped);
            None
        }
        other => Some(other),
    })?;
    if of.json {
        out::json(&drops)?;
        return Ok(ExitCode::SUCCESS);
    }
    let there = drops.iter().filter(|dropped| dropped.packets > 0);
    let row = |dropped: &Dropped| {
        let name = out::plain(dropped.reason.trim_start_matches("drop."));
        vec![dropped.packets.to_string(), name, out::plain(&dropped.meaning)]
    };
    out::print_table(&out::table(&["PACKETS", "REASON", "MEANING"], there.map(row).collect()))?;
    Ok(ExitCode::SUCCESS)
}

/// Shows packets until there are enough, until Ctrl-C, or until the UPF ends.
fn trace(args: &UpfTrace) -> Outcome {
    let signals = Signals::take(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?;
    let mut call = Call::start(&args.of, &Request::Trace { ue: args.ue })?;
    let deadline = args.duration.map(|duration| Instant::now() + duration);
    let paint = Paint::stdout();
    let (mut seen, mut missed) = (0, 0);
    while args.count.is_none_or(|count| seen < count) {
        match call.next(&signals, deadline)? {
            Heard::Event(Event::Packet(packet)) => {
                seen += 1;
                if args.of.json {
                    out::line(&serde_json::to_string(&packet).map_err(|error| Failure::failed(error.to_string()))?)?;
                } else {
                    out::line(&packet::line(&packet, paint))?;
                }
                out::flush()?;
            }
            Heard::Event(Event::Watching { up_seid: Some(up_seid) }) => {
                out::say(&format!("watching session {up_seid}"))
            }
            Heard::Event(Event::Watching { up_seid: None }) => out::say("the UE has no session at present"),
            Heard::Event(Event::Missed { packets }) => {
                missed += packets;
                out::say(&format!("{packets} packets came too fast to be shown"));
            }
            Heard::Event(other) => return Err(call::strange(&other)),
            Heard::Enough => break,
        }
    }
    let missed = if missed == 0 { String::new() } else { format!(", {missed} not shown") };
    out::say(&format!("{}{missed}", out::counted(seen as usize, "packet")));
    Ok(ExitCode::SUCCESS)
}
