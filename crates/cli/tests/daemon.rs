//! The commands that talk to the daemon, held against one that answers what a test says.

mod common;

use common::{daemon, kaista, run, text};
use node::control::{
    Event, Failure, LatencyStats, PortKind, PortStats, Process, ProcessKind, ProcessState, Reply, Request, SliceState,
    SliceSummary, Stats,
};
use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    os::fd::OwnedFd,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

fn process(name: &str, state: ProcessState) -> Process {
    Process {
        slice: "pair".into(),
        name: name.into(),
        kind: ProcessKind::Function,
        state,
        pid: Some(42),
        uid: 100_000,
        cpus: "0-1".into(),
        started_ms: None,
        restarts: 3,
        last_exit: Some("exit 1".into()),
        memory_bytes: Some(5 << 20),
        cpu_ns: Some(1_500_000_000),
        replica_of: None,
        share: None,
    }
}

const PAIR: &str = "\
apiVersion: kaista.dev/v1alpha1
kind: Slice
metadata: {name: pair}
spec:
  functions:
    - {name: a, image: {rootfs: .}}
";

#[test]
fn lists_are_tables_for_people_and_arrays_for_programs() {
    let here = tempfile::tempdir().unwrap();
    let _asked = daemon(here.path(), |call| match call.request {
        Request::List => {
            let slice = SliceSummary {
                name: "pair".into(),
                state: SliceState::Up,
                functions: 2,
                running: 2,
                links: 1,
                connected: 0,
                since_ms: u64::MAX,
            };
            call.done(Reply::Slices { slices: vec![slice] });
        }
        _ => call.done(Reply::Processes { processes: vec![process("a", ProcessState::Running)] }),
    });
    let shown = run(here.path(), &["ls"]);
    assert_eq!(text(&shown.stdout), "SLICE  STATE  FUNCTIONS  LINKS  AGE\npair   up     2/2        0/1    0s\n");
    let shown = run(here.path(), &["ps"]);
    let expected = "\
SLICE  NAME  KIND      STATE    PID  CORES  CPU    MEMORY    AGE  RESTARTS  LAST EXIT
pair   a     function  running  42   0-1    1.5 s  5.00 MiB  -    3         exit 1
";
    assert_eq!(text(&shown.stdout), expected);
    let slices: Vec<SliceSummary> = serde_json::from_slice(&run(here.path(), &["ls", "--json"]).stdout).unwrap();
    assert_eq!(slices[0].name, "pair");
    let processes: Vec<Process> = serde_json::from_slice(&run(here.path(), &["ps", "pair", "--json"]).stdout).unwrap();
    assert_eq!(processes, [process("a", ProcessState::Running)]);
}

#[test]
fn what_functions_and_images_say_in_an_error_moves_no_cursor() {
    let here = tempfile::tempdir().unwrap();
    let _asked = daemon(here.path(), |call| {
        let message = format!("image app: \x1b[2J{}: a device node", "x".repeat(1 << 20));
        call.answer(&Event::Failed(Failure { message, details: vec!["\x1b]0;last words\x07".into()] }));
    });
    let output = run(here.path(), &["replace", "app"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.starts_with("error: image app: \u{fffd}[2Jx") && said.len() < 10_000, "{} bytes", said.len());
    assert!(said.ends_with("\n  \u{fffd}]0;last words\u{fffd}\n"), "{:?}", &said[said.len() - 50..]);
}

#[test]
fn up_tells_what_is_done_and_waits_until_everything_runs() {
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("slice.yaml"), PAIR).unwrap();
    let polls = std::sync::atomic::AtomicUsize::new(0);
    let asked = daemon(here.path(), move |call| match call.request {
        Request::Up { .. } => {
            call.answer(&Event::Progress { subject: "a".into(), action: "started".into() });
            call.answer(&Event::Notice { message: "mind the gap".into() });
            call.done(Reply::Up { slice: "pair".into(), changes: 1 });
        }
        _ => {
            let first = polls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
            let state = if first { ProcessState::Waiting } else { ProcessState::Running };
            call.done(Reply::Processes { processes: vec![process("a", state)] });
        }
    });
    let output = run(here.path(), &["up", "slice.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(shown.starts_with("  started a\npair is up: 1 function, 0 links, "), "{shown}");
    assert_eq!(text(&output.stderr), "note: mind the gap\n");
    let base = here.path().to_owned();
    assert_eq!(asked.recv().unwrap(), Request::Up { descriptor: PAIR.into(), base });
}

#[test]
fn up_says_which_function_does_not_run_and_what_it_said_last() {
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("slice.yaml"), PAIR).unwrap();
    let _asked = daemon(here.path(), |call| match call.request {
        Request::Up { .. } => call.done(Reply::Up { slice: "pair".into(), changes: 1 }),
        Request::Logs { .. } => {
            call.answer(&Event::Line { at_ns: 0, error: true, text: "no such\x1b[31m port".into() });
            call.done(Reply::Done);
        }
        _ => call.done(Reply::Processes { processes: vec![process("a", ProcessState::Waiting)] }),
    });
    let output = run(here.path(), &["up", "slice.yaml", "--timeout", "100ms"]);
    assert_eq!(output.status.code(), Some(1));
    let expected = "\
error: 1 of 1 functions and pumps do not run
  pair/a: exit 1, 3 restarts
    no such\u{fffd}[31m port
  see `kaista logs pair/a`
";
    assert_eq!(text(&output.stderr), expected);
}

#[test]
fn up_fails_where_a_function_does_not_run_whoever_reads_its_progress() {
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("slice.yaml"), PAIR).unwrap();
    let _asked = daemon(here.path(), |call| match call.request {
        Request::Up { .. } => {
            call.answer(&Event::Progress { subject: "a".into(), action: "started".into() });
            call.done(Reply::Up { slice: "pair".into(), changes: 1 });
        }
        Request::Logs { .. } => call.done(Reply::Done),
        _ => call.done(Reply::Processes { processes: vec![process("a", ProcessState::Waiting)] }),
    });
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let up = kaista(here.path(), &["up", "slice.yaml", "--timeout", "100ms"]).stdout(writer).output().unwrap();
    assert_eq!(up.status.code(), Some(1));
    assert!(text(&up.stderr).starts_with("error: 1 of 1 functions and pumps do not run"), "{}", text(&up.stderr));
}

#[test]
fn a_refusal_is_passed_on_with_its_details() {
    let here = tempfile::tempdir().unwrap();
    let _asked = daemon(here.path(), |call| {
        let failure =
            Failure { message: "two slices have a function upf".into(), details: vec!["a/upf".into(), "b/upf".into()] };
        call.answer(&Event::Failed(failure));
    });
    let output = run(here.path(), &["logs", "upf"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), "error: two slices have a function upf\n  a/upf\n  b/upf\n");
}

#[test]
fn logs_go_to_the_stream_that_they_came_from() {
    let here = tempfile::tempdir().unwrap();
    let asked = daemon(here.path(), |call| {
        call.answer(&Event::Line { at_ns: 1_000_001_000, error: false, text: "hello".into() });
        call.answer(&Event::Line { at_ns: 2_000_000_000, error: true, text: "ouch".into() });
        call.done(Reply::Done);
    });
    let output = run(here.path(), &["logs", "pair/a", "-t", "--tail", "2"]);
    assert_eq!(text(&output.stdout), "1970-01-01T00:00:01.000001Z hello\n");
    assert_eq!(text(&output.stderr), "1970-01-01T00:00:02.000000Z ouch\n");
    let function = "pair/a".parse().unwrap();
    assert_eq!(asked.recv().unwrap(), Request::Logs { function, lines: Some(2), follow: false });
}

#[test]
fn exec_passes_its_streams_and_its_programs_status() {
    let here = tempfile::tempdir().unwrap();
    let asked = daemon(here.path(), |call| {
        let [input, output, error] =
            <[OwnedFd; 3]>::try_from(std::mem::take(&mut call.fds)).unwrap().map(fs::File::from);
        let typed = io::read_to_string(input).unwrap();
        write!({ output }, "{}", typed.to_uppercase()).unwrap();
        write!({ error }, "oh").unwrap();
        call.done(Reply::Exited { status: 130 });
    });
    let arguments = ["exec", "a", "-e", "A=b=c", "-w", "/", "--", "tr", "-d", "x"];
    let mut child = kaista(here.path(), &arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"hello").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("HELLO", "oh"));
    assert_eq!(output.status.code(), Some(130));
    let Request::Exec { command, env, directory, terminal, .. } = asked.recv().unwrap() else { panic!() };
    assert_eq!(command, ["tr", "-d", "x"]);
    assert_eq!(env, [("A".to_owned(), "b=c".to_owned())].into());
    assert_eq!((directory.as_deref(), terminal), (Some("/"), false));

    run(here.path(), &["exec", "a", "ping", "-c", "3"]);
    let Request::Exec { command, .. } = asked.recv().unwrap() else { panic!() };
    assert_eq!(command, ["ping", "-c", "3"], "the two dashes may be left out");
}

#[test]
fn a_capture_goes_straight_to_the_output_and_ends_in_good_order() {
    let here = tempfile::tempdir().unwrap();
    let _asked = daemon(here.path(), |call| {
        let mut output = fs::File::from(call.fds.remove(0));
        output.write_all(b"pcapng").unwrap();
        let mut line = String::new();
        BufReader::new(&call.stream).read_line(&mut line).unwrap();
        assert_eq!(line, "{\"stop\":true}\n");
        output.write_all(b" end").unwrap();
        drop(output);
        call.done(Reply::Captured { packets: 1234, missed: 5 });
    });
    // By its time.
    let output = run(here.path(), &["pcap", "pair/upf/n3", "--duration", "10ms"]);
    assert_eq!((text(&output.stdout), output.status.code()), ("pcapng end", Some(0)));
    assert_eq!(text(&output.stderr), "1.23 k packets captured, 5 missed\n");
    // By Ctrl-C, once something was captured.
    let mut child =
        kaista(here.path(), &["pcap", "upf/n3"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut begin = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut begin).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((text(&output.stdout), output.status.code()), (" end", Some(0)));
    // Into a file.
    let output = run(here.path(), &["pcap", "upf/n3", "-d", "10ms", "-w", "file"]);
    assert_eq!((text(&output.stdout), output.status.code()), ("", Some(0)));
    assert_eq!(fs::read_to_string(here.path().join("file")).unwrap(), "pcapng end");
}

#[test]
fn a_capture_that_is_refused_leaves_its_file_as_it_was() {
    let here = tempfile::tempdir().unwrap();
    let (before, file) = ("an earlier capture", here.path().join("file"));
    fs::write(&file, before).unwrap();
    let capture = || {
        let output = run(here.path(), &["pcap", "upf/n9", "-w", "file"]);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(fs::read_to_string(&file).unwrap(), before);
        text(&output.stderr).to_owned()
    };
    assert!(capture().starts_with("error: no kaistad runs here"));
    let _asked = daemon(here.path(), |call| {
        call.fds.clear();
        call.answer(&Event::Failed(Failure { message: "upf has no port n9".into(), details: vec![] }));
    });
    assert_eq!(capture(), "error: upf has no port n9\n");
}

#[test]
fn a_capture_into_a_file_does_not_wait_for_a_daemon_that_neither_begins_nor_ends_it() {
    fn given_up(answer: impl Fn(&mut fs::File) -> io::Result<()> + Send + Sync + Copy + 'static) {
        let here = tempfile::tempdir().unwrap();
        fs::write(here.path().join("file"), "an earlier capture").unwrap();
        let _asked = daemon(here.path(), move |call| {
            let mut output = fs::File::from(call.fds.remove(0));
            while answer(&mut output).is_ok() {}
        });
        let begin = Instant::now();
        let output = run(here.path(), &["pcap", "upf/n3", "-w", "file"]);
        assert_eq!((text(&output.stderr), output.status.code()), ("error: kaistad does not answer\n", Some(1)));
        assert!(begin.elapsed() < Duration::from_secs(20));
        assert_eq!(fs::read_to_string(here.path().join("file")).unwrap(), "an earlier capture");
    }
    let silent = thread::spawn(|| {
        given_up(|_| {
            thread::sleep(Duration::from_secs(1000));
            Ok(())
        });
    });
    given_up(|output| output.write_all(&[0; 4096]));
    silent.join().unwrap();
}

#[test]
fn top_elsewhere_than_on_a_terminal_is_one_table() {
    let here = tempfile::tempdir().unwrap();
    let asked = daemon(here.path(), |call| {
        let port = PortStats {
            slice: "pair".into(),
            function: "upf".into(),
            port: "n3".into(),
            kind: PortKind::Shm,
            peer: Some("ran/n3".into()),
            generation: 1,
            attached: true,
            quarantined: None,
            rx_packets: 1_500_000,
            rx_bytes: 3 << 30,
            tx_packets: 7,
            tx_bytes: 700,
            drops: [("full".into(), 2), ("length".into(), 1)].into(),
            latency: Some(LatencyStats {
                count: 9,
                p50_ns: 850,
                p99_ns: 12_300,
                p999_ns: 20_000,
                max_ns: 20_000,
                invalid: 0,
            }),
        };
        call.answer(&Event::Stats(Stats { at_ns: 1, ports: vec![port], functions: Vec::new() }));
        call.done(Reply::Done);
    });
    let expected = "\
PORT    PEER    STATE  RX PACKETS  RX BYTES  TX PACKETS  TX BYTES  DROPS  LATENCY p50/p99
upf/n3  ran/n3  open   1.50 M      3.00 GiB  7           700 B     3      850 ns/12.3 us
";
    assert_eq!(text(&run(here.path(), &["top"]).stdout), expected);
    assert_eq!(asked.recv().unwrap(), Request::Stats { slice: None, interval_ms: None });
    let stats: Stats = serde_json::from_slice(&run(here.path(), &["top", "--once", "--json"]).stdout).unwrap();
    assert_eq!(stats.ports[0].drops["full"], 2);
    assert_eq!(stats.ports[0].latency.unwrap().p999_ns, 20_000);
}

#[test]
fn down_says_what_is_gone() {
    let here = tempfile::tempdir().unwrap();
    let asked = daemon(here.path(), |call| call.done(Reply::Down { slices: vec!["pair".into()], stopping: false }));
    let output = run(here.path(), &["down", "pair", "other"]);
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("pair is down\n", "other was not up\n"));
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(asked.recv().unwrap(), Request::Down { slices: vec!["pair".into(), "other".into()] });
}

#[test]
fn an_answer_to_another_question_is_named() {
    let here = tempfile::tempdir().unwrap();
    let _asked = daemon(here.path(), |call| call.done(Reply::Done));
    let output = run(here.path(), &["ls"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("is it of another version?"), "{}", text(&output.stderr));
}

/// A UPF of a slice is asked over a connection that the daemon passes on, and what it says cannot move the cursor.
#[test]
fn a_upf_of_a_slice_is_asked_by_way_of_the_daemon() {
    let here = tempfile::tempdir().unwrap();
    let asked = daemon(here.path(), |call| {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        call.answer_with(&Event::Connected, &OwnedFd::from(theirs));
        call.done(Reply::Done);
        let mut upf = BufReader::new(ours);
        let mut request = String::new();
        upf.read_line(&mut request).unwrap();
        assert_eq!(request, "{\"request\":\"drops\"}\n");
        let drop = "{\"event\":\"drop\",\"reason\":\"drop.vlan\",\"packets\":3,\"meaning\":\"a\\u001b[2Jb\"}";
        write!(upf.get_mut(), "{drop}\n{{\"event\":\"done\"}}\n").unwrap();
    });
    let output = run(here.path(), &["upf", "drops", "s/upf"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("3") && text(&output.stdout).contains("vlan"));
    assert!(!text(&output.stdout).contains('\x1b'));
    let function = Some("s/upf".parse().unwrap());
    assert_eq!(asked.recv().unwrap(), Request::Upf { function });
}
