//! `kaista top`: packets, drops and latency of every port, live or as one table.

mod rates;
mod view;

use crate::{
    args::Top,
    follow::{Signals, strange},
    out::{self, bytes, nanoseconds, number, plain},
    outcome::{Failure, Outcome},
};
use crossterm::event::{self, Event as Input, KeyCode, KeyEventKind, KeyModifiers};
use nix::sys::signal::Signal;
use node::{
    control::{Client, Event, PortStats, Request, Stats},
    paths::Paths,
};
use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    sync::mpsc::{Receiver, TryRecvError, channel},
    thread,
    time::Duration,
};
use view::View;

/// How often the keyboard is looked at.
const TICK: Duration = Duration::from_millis(50);

pub fn run(args: &Top) -> Outcome {
    if args.once || args.json || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return once(args);
    }
    let interval = u64::try_from(args.interval.as_millis()).unwrap_or(u64::MAX);
    // Whatever ends it, the terminal is given back.
    let signals = Signals::take(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?;
    let snapshots = snapshots(args.slice.clone(), interval)?;
    let mut terminal = ratatui::try_init().map_err(Failure::from)?;
    let outcome = live(&mut terminal, &snapshots, &signals);
    ratatui::restore();
    outcome
}

fn once(args: &Top) -> Outcome {
    let stats =
        snapshots(args.slice.clone(), None)?.recv().map_err(|_| Failure::failed("kaistad gave no counters"))??;
    if args.json {
        out::json(&stats)?;
    } else {
        let head =
            ["PORT", "PEER", "STATE", "RX PACKETS", "RX BYTES", "TX PACKETS", "TX BYTES", "DROPS", "LATENCY p50/p99"];
        let rows = stats.ports.iter().map(|port| row(port, &stats)).collect();
        out::print_table(&out::table(&head, rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn row(port: &PortStats, stats: &Stats) -> Vec<String> {
    let drops: u64 = port.drops.values().sum();
    vec![
        port_name(port, stats),
        port.peer.clone().unwrap_or_else(|| "-".into()),
        state(port),
        number(port.rx_packets),
        bytes(port.rx_bytes),
        number(port.tx_packets),
        bytes(port.tx_bytes),
        number(drops),
        port.latency
            .map_or("-".into(), |latency| format!("{}/{}", nanoseconds(latency.p50_ns), nanoseconds(latency.p99_ns))),
    ]
}

/// `upf/n3`, with its slice where there are several.
fn port_name(port: &PortStats, stats: &Stats) -> String {
    let several = stats.ports.iter().any(|other| other.slice != port.slice);
    let name = format!("{}/{}", port.function, port.port);
    if several { format!("{}/{name}", port.slice) } else { name }
}

fn state(port: &PortStats) -> String {
    match &port.quarantined {
        Some(reason) => format!("cut off: {}", plain(reason)),
        None if port.attached => "open".into(),
        None => "closed".into(),
    }
}

/// Snapshots as they come, one if there is no interval. An error is the last.
fn snapshots(
    slice: Option<String>,
    interval: impl Into<Option<u64>>,
) -> Result<Receiver<Result<Stats, Failure>>, Failure> {
    let request = Request::Stats { slice, interval_ms: interval.into() };
    let mut stream = Client::new(Paths::from_env()).start(&request, &[])?;
    let (sender, receiver) = channel();
    thread::spawn(move || {
        loop {
            let snapshot = match stream.next() {
                Ok((Event::Stats(stats), _)) => Ok(stats),
                Ok((Event::Done(_), _)) => return,
                Ok((other, _)) => Err(strange(&other)),
                Err(error) => Err(error.into()),
            };
            let is_last = snapshot.is_err();
            if sender.send(snapshot).is_err() || is_last {
                return;
            }
        }
    });
    Ok(receiver)
}

fn live(
    terminal: &mut ratatui::DefaultTerminal,
    snapshots: &Receiver<Result<Stats, Failure>>,
    signals: &Signals,
) -> Outcome {
    let mut view = View::default();
    let mut changed = true;
    while signals.came().is_none() {
        match snapshots.try_recv() {
            Ok(stats) => {
                view.take(stats?);
                changed = true;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err(Failure::failed("kaistad ended")),
        }
        if changed {
            terminal.draw(|frame| view.draw(frame)).map_err(Failure::from)?;
        }
        changed = event::poll(TICK)?;
        if changed && let Some(end) = handle(&event::read()?, &mut view) {
            return Ok(end);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Does what a key asks for; gives the exit status if it ends the program.
fn handle(input: &Input, view: &mut View) -> Option<ExitCode> {
    let Input::Key(key) = input else { return None };
    if key.kind == KeyEventKind::Release {
        return None;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return Some(ExitCode::SUCCESS),
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Some(ExitCode::SUCCESS),
        KeyCode::Up | KeyCode::Char('k') => view.move_by(-1),
        KeyCode::Down | KeyCode::Char('j') => view.move_by(1),
        KeyCode::PageUp => view.move_by(-10),
        KeyCode::PageDown => view.move_by(10),
        KeyCode::Char('s') => view.next_order(),
        KeyCode::Char(' ') => view.hold(),
        _ => {}
    }
    None
}
