//! `kaista exec`: a program in a function's container, with our standard streams or a terminal of its own, and never with ours.

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
    fd::{AsFd, BorrowedFd, OwnedFd},
    io::{Errno, read, write},
    termios::{tcgetwinsize, tcsetwinsize},
};
use std::{
    collections::BTreeMap,
    io::{self, IsTerminal, PipeReader, PipeWriter, Write},
    process::ExitCode,
    thread,
    time::Duration,
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

/// The program has our standard streams, but no terminal of ours: what it is given it may keep when it ends, to read what is typed
/// and to write what is shown later. In the place of a terminal it gets a pipe, and we carry.
fn with_streams(client: &Client, request: &Request) -> Result<i32, Failure> {
    // Reading from the terminal in the background is to fail, not to stop us.
    let _blocked = Signals::take(&[Signal::SIGTTIN])?;
    let (input, output, error) = (io::stdin(), io::stdout(), io::stderr());
    let mut given = Given { input: input.as_fd().into(), output: output.as_fd().into(), error: error.as_fd().into() };
    let typed = input.is_terminal().then(|| given.replace_input()).transpose()?;
    let shown = given.replace_outputs(output.is_terminal(), error.is_terminal())?;
    let mut stream = client.start(request, &given.all())?;
    drop(given);
    // Ends with the process: what is typed later is for nobody.
    typed.map(|typed| thread::spawn(move || type_into(&typed)));
    carry(&mut stream, shown)
}

/// The standard streams of the program.
struct Given<'a> {
    input: Fd<'a>,
    output: Fd<'a>,
    error: Fd<'a>,
}

/// A descriptor of ours, or one made for the program.
enum Fd<'a> {
    Ours(BorrowedFd<'a>),
    Made(OwnedFd),
}

/// What the program prints, and where we show it.
struct Shown {
    printed: PipeReader,
    on: OwnedFd,
}

impl Given<'_> {
    fn all(&self) -> [BorrowedFd<'_>; 3] {
        [&self.input, &self.output, &self.error].map(|fd| match fd {
            Fd::Ours(fd) => *fd,
            Fd::Made(fd) => fd.as_fd(),
        })
    }

    /// The end of a pipe to write to what is typed.
    fn replace_input(&mut self) -> Result<PipeWriter, Failure> {
        let (theirs, typed) = io::pipe().map_err(no_pipe)?;
        self.input = Fd::Made(theirs.into());
        Ok(typed)
    }

    /// Where both are terminals they share a pipe, so that what is printed stays in order.
    fn replace_outputs(&mut self, output: bool, error: bool) -> Result<Vec<Shown>, Failure> {
        let mut shown = Vec::new();
        let mut make = |on: BorrowedFd<'_>| {
            let (printed, theirs) = io::pipe()?;
            shown.push(Shown { printed, on: on.try_clone_to_owned()? });
            Ok(OwnedFd::from(theirs))
        };
        if output {
            let theirs = make(io::stdout().as_fd()).map_err(no_pipe)?;
            if error {
                self.error = Fd::Made(theirs.try_clone().map_err(no_pipe)?);
            }
            self.output = Fd::Made(theirs);
        } else if error {
            self.error = Fd::Made(make(io::stderr().as_fd()).map_err(no_pipe)?);
        }
        Ok(shown)
    }
}

impl<'a> From<BorrowedFd<'a>> for Fd<'a> {
    fn from(fd: BorrowedFd<'a>) -> Self {
        Self::Ours(fd)
    }
}

fn no_pipe(error: io::Error) -> Failure {
    Failure::failed(format!("cannot make a pipe: {error}"))
}

/// Shows what the program prints until it ends. What others that it has left behind print later is not waited for.
fn carry(stream: &mut Stream, mut shown: Vec<Shown>) -> Result<i32, Failure> {
    loop {
        let told = wait(stream, shown.iter().map(|one| one.printed.as_fd()))?;
        shown.retain(|one| !is_readable(&one.printed) || one.pass_on());
        if told {
            match stream.next()?.0 {
                Event::Done(Reply::Exited { status }) => {
                    shown.iter().for_each(Shown::show_rest);
                    return Ok(status);
                }
                event @ Event::Notice { .. } => tell(&event)?,
                other => return Err(strange(&other)),
            }
        }
    }
}

impl Shown {
    /// Shows what is in the pipe, which has at most a mebibyte; others may be filling it yet.
    fn show_rest(&self) {
        for _ in 0..64 {
            if !is_readable(&self.printed) || !self.pass_on() {
                return;
            }
        }
    }

    /// Shows some of what was printed; false if there will be no more, or nobody sees it.
    fn pass_on(&self) -> bool {
        let mut buffer = [0; 16 << 10];
        match read(&self.printed, &mut buffer) {
            Ok(0) => false,
            Err(Errno::INTR | Errno::AGAIN) => true,
            Err(_) => false,
            Ok(count) => write_all(&self.on, &buffer[..count]),
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
        let told = wait(stream, shows.then_some(console.as_fd()).into_iter().chain([signals.as_fd()]))?;
        if shows && is_readable(console) {
            shows = print(console)?;
        }
        match signals.came() {
            Some(Signal::SIGWINCH) => fit(console),
            // Hangs up, which ends the program.
            Some(signal) => return Ok(128 + signal as i32),
            None => {}
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

/// Waits until the daemon says something or one of the others can be read. Whether the daemon does.
fn wait<'f>(stream: &Stream, others: impl Iterator<Item = BorrowedFd<'f>>) -> Result<bool, Failure> {
    if stream.is_ready() {
        return Ok(true);
    }
    let mut waiting = vec![PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)];
    waiting.extend(others.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    match poll(&mut waiting, None) {
        Err(Errno::INTR) => return Ok(false),
        result => result.map_err(|e| Failure::failed(format!("cannot wait for the program: {e}")))?,
    };
    Ok(waiting.first().is_some_and(|fd| !fd.revents().is_empty()))
}

fn is_readable(fd: &impl AsFd) -> bool {
    let mut waiting = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
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

fn type_into(program: &impl AsFd) {
    let mut buffer = [0; 4 << 10];
    loop {
        let count = match read(io::stdin(), &mut buffer) {
            Ok(0) => return,
            Err(Errno::INTR) => continue,
            // In the background; we may be in the foreground later.
            Err(Errno::IO) => {
                thread::sleep(Duration::from_millis(200));
                continue;
            }
            Err(_) => return,
            Ok(count) => count,
        };
        if !write_all(program, &buffer[..count]) {
            return;
        }
    }
}

/// Whether all could be written.
fn write_all(to: &impl AsFd, mut rest: &[u8]) -> bool {
    while !rest.is_empty() {
        match write(to, rest) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
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
