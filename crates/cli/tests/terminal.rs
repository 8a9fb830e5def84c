//! What needs a terminal: `exec -t` and the live `top`.

mod common;

use common::{daemon, kaista, read_until, spawn_on_terminal, terminal};
use node::control::{Event, PortKind, PortStats, Reply, Request, Stats};
use rustix::{
    io::write,
    process::{Pid, Signal, kill_process},
    termios::tcgetwinsize,
};
use std::{io::IsTerminal, path::Path, sync::mpsc::Receiver};

#[test]
fn exec_joins_our_terminal_and_the_programs() {
    let here = tempfile::tempdir().unwrap();
    let _asked = daemon(here.path(), |call| {
        assert!(call.fds.is_empty());
        let (controller, program) = terminal();
        call.answer_with(&Event::Console, &controller);
        drop(controller);
        write(&program, b"prompt> ").unwrap();
        let typed = read_until(&program, Some("\n"));
        let size = tcgetwinsize(&program).unwrap();
        write(&program, format!("got {typed} at {}x{}\n", size.ws_col, size.ws_row).as_bytes()).unwrap();
        drop(program);
        call.done(Reply::Exited { status: 7 });
    });
    let mut command = kaista(here.path(), &["exec", "-t", "a", "--", "sh"]);
    let (mut child, controller) = spawn_on_terminal(&mut command);
    read_until(&controller, Some("prompt> "));
    write(&controller, b"ls\r").unwrap();
    let shown = read_until(&controller, None);
    assert!(shown.contains("got ls") && shown.contains(" at 100x24"), "{shown:?}");
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

#[test]
fn exec_gives_no_program_our_terminal() {
    let here = tempfile::tempdir().unwrap();
    let (kept, keep) = std::sync::mpsc::channel();
    let _asked = daemon(here.path(), move |call| {
        let fds = std::mem::take(&mut call.fds);
        assert_eq!(fds.iter().map(|fd| fd.is_terminal()).collect::<Vec<_>>(), [false; 3]);
        write(&fds[1], b"prompt> ").unwrap();
        let typed = read_until(&fds[0], Some("\n"));
        write(&fds[2], b"complaint, ").unwrap();
        write(&fds[1], format!("got {typed}").as_bytes()).unwrap();
        call.done(Reply::Exited { status: 7 });
        // As a program that goes on behind what it was started as.
        kept.send(fds).unwrap();
    });
    let (mut child, controller) = spawn_on_terminal(&mut kaista(here.path(), &["exec", "a", "--", "sh"]));
    read_until(&controller, Some("prompt> "));
    write(&controller, b"ls\r").unwrap();
    let shown = read_until(&controller, None);
    assert!(shown.contains("complaint, got ls"), "{shown:?}");
    assert_eq!(child.wait().unwrap().code(), Some(7));
    drop(keep);
}

#[test]
fn exec_without_a_terminal_cannot_give_one() {
    let here = tempfile::tempdir().unwrap();
    let output = common::run(here.path(), &["exec", "-t", "a", "--", "sh"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(common::text(&output.stderr).contains("-t needs a terminal"));
}

/// A daemon that counts packets, and streams until the other side hangs up.
fn counting(here: &Path) -> Receiver<Request> {
    daemon(here, |call| {
        for second in 1..=2 {
            let port = PortStats {
                slice: "pair".into(),
                function: "upf".into(),
                port: "n3".into(),
                kind: PortKind::Shm,
                peer: None,
                generation: 1,
                attached: true,
                quarantined: None,
                rx_packets: second * 1000,
                rx_bytes: 0,
                tx_packets: 0,
                tx_bytes: 0,
                drops: [].into(),
                latency: None,
            };
            let stats = Stats { at_ns: second * 1_000_000_000, ports: vec![port], functions: Vec::new() };
            call.answer(&Event::Stats(stats));
        }
        let _ = std::io::read_to_string(&call.stream);
    })
}

#[test]
fn top_is_live_until_q() {
    let here = tempfile::tempdir().unwrap();
    let _asked = counting(here.path());
    let mut command = kaista(here.path(), &["top"]);
    command.env("TERM", "xterm");
    let (mut child, controller) = spawn_on_terminal(&mut command);
    // Only what changed is drawn again, so the unit may be elsewhere.
    let shown = read_until(&controller, Some("1.00"));
    assert!(shown.contains("upf/n3"), "{shown:?}");
    write(&controller, b"q").unwrap();
    let rest = read_until(&controller, None);
    assert!(rest.contains("\x1b[?1049l"), "the screen is given back: {rest:?}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_signal_ends_top_and_the_screen_is_given_back() {
    for signal in [Signal::TERM, Signal::HUP] {
        let here = tempfile::tempdir().unwrap();
        let _asked = counting(here.path());
        let (mut child, controller) = spawn_on_terminal(kaista(here.path(), &["top"]).env("TERM", "xterm"));
        read_until(&controller, Some("1.00"));
        kill_process(Pid::from_child(&child), signal).unwrap();
        let rest = read_until(&controller, None);
        assert!(rest.contains("\x1b[?1049l"), "{signal:?}: {rest:?}");
        assert_eq!(child.wait().unwrap().code(), Some(0), "{signal:?}");
    }
}
