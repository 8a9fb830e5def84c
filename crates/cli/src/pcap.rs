//! `kaista pcap`: the packets of a port as pcapng, written by the daemon straight into our output.

use crate::{
    args::Pcap,
    follow::{self, Next, Signals, strange},
    out::{self, number},
    outcome::{Failure, Outcome},
    up::tell,
};
use nix::sys::signal::Signal;
use node::{
    control::{Client, Event, FunctionRef, Reply, Request},
    paths::Paths,
};
use std::{
    fs::File,
    io::{self, IsTerminal, PipeReader, Read},
    os::fd::{AsFd, OwnedFd},
    process::ExitCode,
    time::{Duration, Instant},
};

/// How long the daemon may take to begin a capture, and to end one that it was asked to end.
const PATIENCE: Duration = Duration::from_secs(5);

pub fn run(args: &Pcap) -> Outcome {
    let (function, port) = port_of(args)?;
    let client = Client::new(Paths::from_env());
    let request = Request::Pcap { function, port, snap_length: args.snap_length, count: args.count };
    if args.write.is_some() {
        rehearse(&client, &request)?;
    }
    let output = output(args)?;
    let signals = Signals::take(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?;
    let mut stream = client.start(&request, &[output.as_fd()])?;
    drop(output);

    let mut deadline = args.duration.map(|duration| Instant::now() + duration);
    let mut ending = false;
    loop {
        match follow::next(&mut stream, Some(signals.as_fd()), deadline)? {
            Next::Event(Event::Done(Reply::Captured { packets, missed })) => {
                let missed = if missed == 0 { String::new() } else { format!(", {} missed", number(missed)) };
                out::say(&format!("{} packets captured{missed}", number(packets)));
                return Ok(ExitCode::SUCCESS);
            }
            Next::Event(event @ Event::Notice { .. }) => tell(&event)?,
            Next::Event(other) => return Err(strange(&other)),
            Next::Other | Next::Late if ending => {
                return Err(Failure::failed(
                    "kaistad did not end the capture in time; the last packets may be missing",
                ));
            }
            Next::Other | Next::Late => {
                signals.came();
                ending = true;
                deadline = Some(Instant::now() + PATIENCE);
                stream.stop().map_err(|e| Failure::failed(format!("cannot end the capture: {e}")))?;
            }
        }
    }
}

/// Has the daemon begin such a capture and end it: what it refuses is known before a file is emptied for it.
fn rehearse(client: &Client, request: &Request) -> Result<(), Failure> {
    let failed = |error| Failure::failed(format!("cannot begin a capture: {error}"));
    let silent = || Failure::failed("kaistad does not answer");
    let (mut captured, writer) = io::pipe().map_err(failed)?;
    let mut stream = client.start(request, &[writer.as_fd()])?;
    drop(writer);
    // It begins with a byte, or ends without one.
    let deadline = Instant::now() + PATIENCE;
    let begun = follow::is_readable(captured.as_fd(), deadline).map_err(failed)?;
    let _ = stream.stop();
    if !begun || !ends_by(&mut captured, deadline).map_err(failed)? {
        return Err(silent());
    }
    loop {
        match follow::next(&mut stream, None, Some(deadline))? {
            Next::Event(Event::Done(Reply::Captured { .. })) => return Ok(()),
            Next::Event(Event::Notice { .. }) => {}
            Next::Event(other) => return Err(strange(&other)),
            Next::Other | Next::Late => return Err(silent()),
        }
    }
}

/// Whether what comes by the pipe has an end before the deadline.
fn ends_by(pipe: &mut PipeReader, deadline: Instant) -> io::Result<bool> {
    let mut unwanted = [0; 1 << 16];
    while follow::is_readable(pipe.as_fd(), deadline)? {
        if pipe.read(&mut unwanted)? == 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// `FUNCTION/PORT` with `--slice`, or `SLICE/FUNCTION/PORT`.
fn port_of(args: &Pcap) -> Result<(FunctionRef, String), Failure> {
    let wrong = || Failure::Usage(format!("{:?} names no port; write FUNCTION/PORT, for example upf/n3", args.port));
    let (function, port) = args.port.rsplit_once('/').ok_or_else(wrong)?;
    let mut function: FunctionRef = function.parse().map_err(|_| wrong())?;
    if port.is_empty() {
        return Err(wrong());
    }
    match (&args.slice, &function.slice) {
        (Some(slice), Some(other)) if slice != other => {
            return Err(Failure::Usage(format!("--slice says {slice}, and the port is of {other}; leave one out")));
        }
        (Some(slice), _) => function.slice = Some(slice.clone()),
        (None, _) => {}
    }
    Ok((function, port.into()))
}

fn output(args: &Pcap) -> Result<OwnedFd, Failure> {
    if let Some(path) = &args.write {
        let unwritable = |error| Failure::failed(format!("cannot write {}: {error}", path.display()));
        return File::create(path).map(OwnedFd::from).map_err(unwritable);
    }
    if io::stdout().is_terminal() {
        let remedy = format!("write `kaista pcap {0} | tshark -r -`, or -w FILE", args.port);
        return Err(Failure::Usage(format!("a capture is no text for a terminal; {remedy}")));
    }
    io::stdout().as_fd().try_clone_to_owned().map_err(Failure::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Arguments, Command};
    use clap::Parser;

    fn port(arguments: &[&str]) -> Result<String, String> {
        let all = ["kaista", "pcap"].iter().chain(arguments);
        let Command::Pcap(args) = Arguments::parse_from(all).command else { unreachable!() };
        match port_of(&args) {
            Ok((function, port)) => Ok(format!("{function} {port}")),
            Err(Failure::Usage(why)) => Err(why),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_port_is_named_with_or_without_its_slice() {
        assert_eq!(port(&["upf/n3"]).unwrap(), "upf n3");
        assert_eq!(port(&["s/upf/n3"]).unwrap(), "s/upf n3");
        assert_eq!(port(&["upf/n3", "--slice", "s"]).unwrap(), "s/upf n3");
        assert_eq!(port(&["s/upf/n3", "--slice", "s"]).unwrap(), "s/upf n3");
        assert_eq!(
            port(&["t/upf/n3", "--slice", "s"]).unwrap_err(),
            "--slice says s, and the port is of t; leave one out"
        );
        for wrong in ["upf", "upf/", "/n3", "a/b/c/d", ""] {
            assert!(port(&[wrong]).unwrap_err().contains("names no port"), "{wrong}");
        }
    }
}
