//! `kaista exec`: a program in a function's container, with our standard streams or a terminal of its own.

use crate::{
    args::Exec,
    follow::{Signals, strange},
    out,
    outcome::{Failure, Outcome},
    up::tell,
};
use crossterm::terminal::{disable_raw_mode, enable_raw_mode};
use nix::sys::signal::Signal;
use node::{
    control::{Client, Event, Reply, Request, Stream},
    paths::Paths,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::{AsFd, OwnedFd},
    io::{Errno, read, write},
    termios::{tcgetwinsize, tcsetwinsize},
};
use std::{
    collections::BTreeMap,
    io::{self, IsTerminal, Write},
    process::ExitCode,
    thread,
};

pub fn run(args: &Exec) -> Outcome {
    let mut env: BTreeMap<String, String> = args.env.iter().cloned().collect();
    if args.tty
        && let Ok(term) = std::env::var("TERM")
    {
        env.entry("TERM".into()).or_insert(term);
    }
    let request = Request::Exec {
        function: args.function.clone(),
        command: args.command.clone(),
        env,
        directory: args.workdir.clone(),
        terminal: args.tty,
    };
    let client = Client::new(Paths::from_env());
    let status = if args.tty { with_terminal(&client, &request)? } else { with_streams(&client, &request)? };
    // As a shell: only the low byte can be passed on.
    Ok(ExitCode::from(u8::try_from(status & 0xff).unwrap_or(1)))
}

/// The program has our standard streams; the connection does nothing but wait for its end.
fn with_streams(client: &Client, request: &Request) -> Result<i32, Failure> {
    let (input, output, error) = (io::stdin(), io::stdout(), io::stderr());
    let mut stream = client.start(request, &[input.as_fd(), output.as_fd(), error.as_fd()])?;
    loop {
        match stream.next()?.0 {
            Event::Done(Reply::Exited { status }) => return Ok(status),
            event @ Event::Notice { .. } => tell(&event)?,
            other => return Err(strange(&other)),
        }
    }
}

/// The program has a terminal of its own, and we carry what is typed and shown between it and ours.
fn with_terminal(client: &Client, request: &Request) -> Result<i32, Failure> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(Failure::Usage("-t needs a terminal on both sides; leave it out to pass streams".into()));
    }
    let signals = Signals::take(&[Signal::SIGWINCH, Signal::SIGTERM, Signal::SIGHUP])?;
    let mut stream = client.start(request, &[])?;
    let console = loop {
        let (event, fds) = stream.next()?;
        match (event, fds.into_iter().next()) {
            (Event::Console, Some(console)) => break console,
            (Event::Done(Reply::Exited { status }), _) => return Ok(status),
            (event @ Event::Notice { .. }, _) => tell(&event)?,
            (other, _) => return Err(strange(&other)),
        }
    };
    fit(&console);
    let typed = console.try_clone().map_err(|e| Failure::failed(format!("cannot use the terminal: {e}")))?;
    let raw = Raw::enter()?;
    // Ends with the process: what is typed later is for nobody.
    thread::spawn(move || type_into(&typed));
    let status = show(&mut stream, &console, &signals);
    drop(raw);
    status
}

/// Shows what the program prints until it ends and nothing is left to show.
fn show(stream: &mut Stream, console: &OwnedFd, signals: &Signals) -> Result<i32, Failure> {
    let mut shows = true;
    loop {
        let (told, printed, signalled) = wait(stream, shows.then_some(console), signals)?;
        if printed {
            shows = print(console)?;
        }
        if signalled {
            match signals.came() {
                Some(Signal::SIGWINCH) => fit(console),
                // Hangs up, which ends the program.
                Some(signal) => return Ok(128 + signal as i32),
                None => {}
            }
        }
        if told {
            match stream.next()?.0 {
                Event::Done(Reply::Exited { status }) => {
                    while shows && is_readable(console) {
                        shows = print(console)?;
                    }
                    return Ok(status);
                }
                Event::Notice { .. } => {}
                other => return Err(strange(&other)),
            }
        }
    }
}

/// Waits until the daemon says something, the program prints something, or a signal comes.
fn wait(stream: &Stream, console: Option<&OwnedFd>, signals: &Signals) -> Result<(bool, bool, bool), Failure> {
    if stream.is_ready() {
        return Ok((true, false, false));
    }
    let mut waiting = vec![
        PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
    ];
    waiting.extend(console.map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)));
    match poll(&mut waiting, None) {
        Err(Errno::INTR) => return Ok((false, false, false)),
        result => result.map_err(|e| Failure::failed(format!("cannot wait for the program: {e}")))?,
    };
    let is_ready = |index: usize| waiting.get(index).is_some_and(|fd| !fd.revents().is_empty());
    Ok((is_ready(0), is_ready(2), is_ready(1)))
}

fn is_readable(console: &OwnedFd) -> bool {
    let mut waiting = [PollFd::from_borrowed_fd(console.as_fd(), PollFlags::IN)];
    poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// Shows some of what the program printed; false once its side of the terminal is closed.
fn print(console: &OwnedFd) -> Result<bool, Failure> {
    let mut buffer = [0; 16 << 10];
    match read(console, &mut buffer) {
        Ok(0) | Err(Errno::IO) => Ok(false),
        Err(Errno::INTR | Errno::AGAIN) => Ok(true),
        Err(error) => Err(Failure::failed(format!("cannot read the program's terminal: {error}"))),
        Ok(count) => {
            io::stdout().lock().write_all(&buffer[..count])?;
            out::flush()?;
            Ok(true)
        }
    }
}

fn type_into(console: &OwnedFd) {
    let mut buffer = [0; 4 << 10];
    loop {
        let count = match read(io::stdin(), &mut buffer) {
            Ok(0) => return,
            Err(Errno::INTR) => continue,
            Err(_) => return,
            Ok(count) => count,
        };
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            match write(console, rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// Gives the program's terminal the size of ours.
fn fit(console: &OwnedFd) {
    if let Ok(size) = tcgetwinsize(io::stdout()) {
        let _ = tcsetwinsize(console, size);
    }
}

/// Our terminal passes every key on, until this is dropped.
struct Raw;

impl Raw {
    fn enter() -> Result<Self, Failure> {
        enable_raw_mode().map(|()| Self).map_err(|e| Failure::failed(format!("cannot set up the terminal: {e}")))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = disable_raw_mode();
    }
}
