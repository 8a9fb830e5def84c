//! A command under test, on a node of its own; a daemon that answers what a test says; and a terminal.

// Every test file compiles this for itself and uses a part of it.
#![allow(dead_code)]

use node::control::{Event, Reply, Request};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        recvmsg, sendmsg,
    },
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use std::{
    fs,
    io::{IoSlice, IoSliceMut, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    process::{Command, Output, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
};

/// One connection to the daemon: what was asked, with the descriptors that came beside it.
pub struct Call {
    pub request: Request,
    pub fds: Vec<OwnedFd>,
    pub stream: UnixStream,
}

impl Call {
    fn receive(stream: UnixStream) -> Option<Self> {
        let mut line = Vec::new();
        let mut fds = Vec::new();
        while line.last() != Some(&b'\n') {
            let mut chunk = [0; 4096];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC;
            let received = recvmsg(&stream, &mut [IoSliceMut::new(&mut chunk)], &mut ancillary, flags).ok()?;
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(more) = message {
                    fds.extend(more);
                }
            }
            if received.bytes == 0 {
                return None;
            }
            line.extend_from_slice(&chunk[..received.bytes]);
        }
        Some(Self { request: serde_json::from_slice(&line).unwrap(), fds, stream })
    }

    pub fn answer(&mut self, event: &Event) {
        let answered = writeln!(self.stream, "{}", serde_json::to_string(event).unwrap());
        // A command that has what it wants does not wait for more.
        assert!(
            answered.as_ref().map_or_else(|e| e.kind() == std::io::ErrorKind::BrokenPipe, |()| true),
            "{answered:?}"
        );
    }

    /// Answers with a descriptor beside the line.
    pub fn answer_with(&mut self, event: &Event, fd: &OwnedFd) {
        let line = serde_json::to_string(event).unwrap() + "\n";
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [fd.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&self.stream, &[IoSlice::new(line.as_bytes())], &mut ancillary, SendFlags::empty()).unwrap();
    }

    pub fn done(&mut self, reply: Reply) {
        self.answer(&Event::Done(reply));
    }
}

/// A daemon in this process, on a node of its own; tells what it was asked.
pub fn daemon(directory: &Path, answer: impl Fn(&mut Call) + Send + 'static) -> Receiver<Request> {
    fs::create_dir_all(directory.join("run")).unwrap();
    let listener = UnixListener::bind(directory.join("run/kaistad.sock")).unwrap();
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            // Whoever only looks whether somebody listens asks nothing.
            let Some(mut call) = Call::receive(stream.unwrap()) else { continue };
            let _ = sender.send(call.request.clone());
            answer(&mut call);
        }
    });
    receiver
}

/// The command, on a node of its own.
pub fn kaista(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kaista"));
    command
        .args(arguments)
        .env("KAISTA_RUN_DIR", directory.join("run"))
        .env("KAISTA_STATE_DIR", directory.join("state"));
    command.current_dir(directory).stdin(Stdio::null());
    command
}

pub fn run(directory: &Path, arguments: &[&str]) -> Output {
    kaista(directory, arguments).output().unwrap()
}

pub fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

/// A terminal: the side that types and sees, and the side that a program is given.
pub fn terminal() -> (OwnedFd, OwnedFd) {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let name = ptsname(&controller, Vec::new()).unwrap();
    let program = fs::OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    (controller, program.into())
}

/// Gives a command a terminal as its standard streams and starts it: 100 columns, 24 rows.
pub fn spawn_on_terminal(command: &mut Command) -> (std::process::Child, OwnedFd) {
    let (controller, program) = terminal();
    tcsetwinsize(&controller, Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    command.stdin(program.try_clone().unwrap()).stdout(program.try_clone().unwrap()).stderr(program);
    let child = command.spawn().unwrap();
    // The command keeps its descriptors until it is given others.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    (child, controller)
}

/// Reads what a terminal shows until it shows a text, or to the end.
pub fn read_until(controller: &OwnedFd, wanted: Option<&str>) -> String {
    let mut shown = Vec::new();
    let mut buffer = [0; 4096];
    let patience = Timespec { tv_sec: 30, tv_nsec: 0 };
    loop {
        let ready = poll(&mut [PollFd::new(controller, PollFlags::IN)], Some(&patience)).unwrap();
        assert!(ready > 0, "nothing more comes after {:?}", String::from_utf8_lossy(&shown));
        // Ends with EIO when the last descriptor of the other side is closed.
        let Ok(count @ 1..) = rustix::io::read(controller, &mut buffer) else { break };
        shown.extend_from_slice(&buffer[..count]);
        if wanted.is_some_and(|wanted| String::from_utf8_lossy(&shown).contains(wanted)) {
            break;
        }
    }
    String::from_utf8_lossy(&shown).into_owned()
}

/// Runs a command on a terminal; gives its status and what it showed.
pub fn on_terminal(command: &mut Command) -> (Option<i32>, String) {
    let (mut child, controller) = spawn_on_terminal(command);
    let shown = read_until(&controller, None);
    (child.wait().unwrap().code(), shown)
}
