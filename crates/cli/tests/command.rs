//! The command as a stranger meets it: help, checks, exit statuses, and what it says when nothing runs.

mod common;

use bench::companion::Companion;
use common::{kaista, on_terminal, run, text};
use nix::sys::signal::Signal;
use std::{
    fs,
    io::{ErrorKind, Write},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

const RIGHT: &str = "\
apiVersion: kaista.dev/v1alpha1
kind: Slice
metadata: {name: pair}
spec:
  functions:
    - {name: a, image: {rootfs: a}, ports: [{name: p}]}
    - {name: b, image: {rootfs: b}, ports: [{name: p, interface: p}]}
  links:
    - {between: [a/p, b/p]}
";

#[test]
fn every_command_has_help_with_its_purpose() {
    let here = tempfile::tempdir().unwrap();
    let short = run(here.path(), &["-h"]);
    assert!(short.status.success());
    for command in [
        "check",
        "up",
        "down",
        "ls",
        "ps",
        "top",
        "pcap",
        "logs",
        "exec",
        "status",
        "upf",
        "bench",
        "schema",
        "completions",
        "version",
    ] {
        assert!(text(&short.stdout).contains(&format!("\n  {command} ")), "{command} is not listed");
        let help = run(here.path(), &[command, "--help"]);
        assert!(help.status.success(), "{command}");
        assert!(text(&help.stdout).contains("Usage: kaista"), "{command}");
    }
    assert!(!text(&short.stdout).contains("\n  man "), "packagers' business");
    assert!(text(&run(here.path(), &["--help"]).stdout).contains("kaista pcap upf/n3 | tshark -r -"));
}

#[test]
fn wrong_usage_has_status_2() {
    let here = tempfile::tempdir().unwrap();
    let wrong: [&[&str]; 12] = [
        &[],
        &["fly"],
        &["check"],
        &["up", "a.yaml", "--timeout", "10"],
        &["down"],
        &["down", "a", "--all"],
        &["exec", "upf"],
        &["upf"],
        &["exec", "a/b/c", "--", "true"],
        &["top", "--interval", "1ms"],
        &["pcap", "upf", "-w", "x"],
        &["pcap", "s/upf/n3", "--slice", "t", "-w", "x"],
    ];
    for arguments in wrong {
        let output = run(here.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?} says nothing");
    }
}

#[test]
fn a_right_descriptor_passes_and_a_missing_image_is_a_warning() {
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("slice.yaml"), RIGHT).unwrap();
    fs::create_dir(here.path().join("a")).unwrap();
    let output = run(here.path(), &["check", "--any-host", "slice.yaml"]);
    let shown = text(&output.stdout).replace(here.path().to_str().unwrap(), "HERE");
    let expected = "\
slice.yaml:7:33: warning: there is no directory at HERE/b
  7 |     - {name: b, image: {rootfs: b}, ports: [{name: p, interface: p}]}
    |                                 ^
  help: build or fetch the image before the slice is started
pair: 2 functions, 1 link; 1 warning
";
    assert_eq!(shown, expected);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn mistakes_are_shown_all_at_once_with_status_2() {
    let here = tempfile::tempdir().unwrap();
    let wrong = RIGHT.replace("metadata", "metdata").replace("[a/p, b/p]", "[a/p, c/p], maxLatency: 1h");
    fs::write(here.path().join("slice.yaml"), wrong).unwrap();
    let output = run(here.path(), &["check", "--any-host", "slice.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    for part in [
        "slice.yaml:3:1: error: the slice has no field \"metdata\"",
        "help: did you mean metadata?",
        "slice.yaml:9:23: error: there is no function \"c\"",
        "slice.yaml:9:41: error: maxLatency: \"h\" is not a unit of latency",
    ] {
        assert!(text(&output.stdout).contains(part), "{part} is not in\n{}", text(&output.stdout));
    }
}

#[test]
fn findings_are_json_for_programs() {
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("slice.yaml"), "spec: 1\n").unwrap();
    let output = run(here.path(), &["check", "--json", "--any-host", "slice.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let finding = findings.as_array().unwrap().iter().find(|f| f["column"] == 7).unwrap();
    assert_eq!(finding["line"], 1);
    assert_eq!(finding["severity"], "error");
    assert_eq!(finding["reason"], "spec cannot be the number 1");
}

#[test]
fn a_descriptor_can_come_from_standard_input() {
    let here = tempfile::tempdir().unwrap();
    let mut child = kaista(here.path(), &["check", "--any-host", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"nothing\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stdout).starts_with("standard input:1:1: error:"));
}

#[test]
fn a_file_that_cannot_be_read_has_status_1() {
    let here = tempfile::tempdir().unwrap();
    let output = run(here.path(), &["check", "none.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("error: cannot read none.yaml: No such file"));
}

#[test]
fn up_does_not_start_a_daemon_for_a_wrong_descriptor() {
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("slice.yaml"), "kind: Slice\n").unwrap();
    let output = run(here.path(), &["up", "slice.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("the slice has no spec"));
    assert!(!here.path().join("run").exists());
}

#[test]
fn where_no_daemon_runs_lists_are_empty_and_down_has_nothing_to_do() {
    let here = tempfile::tempdir().unwrap();
    for (arguments, shown) in
        [(&["ls", "--json"][..], "[]\n"), (&["ps", "--json"], "[]\n"), (&["down", "--all"], ""), (&["down", "x"], "")]
    {
        let output = run(here.path(), arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout), shown, "{arguments:?}");
    }
    for arguments in
        [&["status"][..], &["top", "--once"], &["logs", "upf"], &["exec", "upf", "--", "true"], &["pcap", "upf/n3"]]
    {
        let output = run(here.path(), arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(
            text(&output.stderr).starts_with("error: no kaistad runs here; `kaista up FILE` starts it"),
            "{arguments:?}"
        );
    }
    assert!(text(&run(here.path(), &["version"]).stdout).contains("kaistad does not run here"));
}

#[test]
fn the_schema_completions_and_manual_pages_are_printed() {
    let here = tempfile::tempdir().unwrap();
    let schema: serde_json::Value = serde_json::from_slice(&run(here.path(), &["schema"]).stdout).unwrap();
    assert_eq!(schema["$defs"]["Port"]["properties"]["queues"]["maximum"], 16);
    for shell in ["bash", "zsh", "fish"] {
        assert!(text(&run(here.path(), &["completions", shell]).stdout).contains("pcap"), "{shell}");
    }
    assert!(run(here.path(), &["man", "man1"]).status.success());
    let page = fs::read_to_string(here.path().join("man1/kaista-pcap.1")).unwrap();
    assert!(page.contains(".TH"));
    assert!(here.path().join("man1/kaista.1").exists());
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let here = tempfile::tempdir().unwrap();
    for arguments in [&["schema"][..], &["completions", "bash"], &["ls"], &["--help"]] {
        let mut child = kaista(here.path(), arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        assert!(!text(&output.stderr).contains("panicked"), "{arguments:?}");
    }
}

#[test]
fn a_reader_that_leaves_early_makes_no_descriptor_right() {
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("slice.yaml"), "kind: Slice\n").unwrap();
    for arguments in [&["check", "slice.yaml"][..], &["check", "--json", "slice.yaml"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(kaista(here.path(), arguments).stdout(writer).status().unwrap().code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("slice.yaml"), "a: b\n").unwrap();
    let arguments = ["check", "--any-host", "slice.yaml"];
    assert!(!text(&run(here.path(), &arguments).stdout).contains('\x1b'));
    assert!(
        on_terminal(kaista(here.path(), &arguments).env_remove("NO_COLOR").env("TERM", "xterm"))
            .1
            .contains("\x1b[1;31merror:")
    );
    assert!(!on_terminal(kaista(here.path(), &arguments).env("NO_COLOR", "1")).1.contains('\x1b'));
}

#[test]
fn a_capture_is_refused_on_a_terminal() {
    let here = tempfile::tempdir().unwrap();
    let (status, shown) = on_terminal(&mut kaista(here.path(), &["pcap", "upf/n3"]));
    assert_eq!(status, Some(2));
    assert!(shown.contains("a capture is no text for a terminal"), "{shown}");
    assert!(shown.contains("kaista pcap upf/n3 | tshark -r -"), "{shown}");
}

#[test]
fn a_benchmark_says_which_file_it_cannot_read() {
    let here = tempfile::tempdir().unwrap();
    let output = run(here.path(), &["bench", "upf", "--from", "none.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), "error: cannot read none.json: No such file or directory (os error 2)\n");
}

#[test]
fn a_benchmark_has_written_its_file_whoever_closes_the_pipe() {
    let here = tempfile::tempdir().unwrap();
    fs::write(here.path().join("before.json"), r#"{"conditions": {}, "metrics": {}}"#).unwrap();
    let arguments = ["bench", "upf", "--from", "before.json", "--json", "after.json"];
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = kaista(here.path(), &arguments).stdout(writer).status().unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(here.path().join("after.json").is_file());
}

/// The forwarder is not beside this copy of the command, nor in the directory above.
#[test]
fn a_benchmark_tells_what_it_measured_also_where_a_part_fails() {
    let here = tempfile::tempdir().unwrap();
    let bin = here.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let alone = bin.join("kaista");
    fs::copy(env!("CARGO_BIN_EXE_kaista"), &alone).unwrap();
    let report = here.path().join("report.json");
    let arguments =
        ["bench", "link", "--only", "throughput,raw", "--alone", "--rounds", "1", "--seconds", "0.1", "--json"];
    let ended = loop {
        // A process that another test has just begun may have the copy open for writing still, until it is another program.
        match Command::new(&alone).args(arguments).arg(&report).output() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            ended => break ended.unwrap(),
        }
    };
    assert_eq!(ended.status.code(), Some(1));
    let error = text(&ended.stderr);
    assert!(error.contains("throughput") && error.contains("kaista-traffic is not beside"), "{error}");
    assert!(text(&ended.stdout).contains("link.rtt_ns"));
    let report: serde_json::Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    assert!(report["conditions"]["failures"][0].as_str().unwrap().starts_with("throughput: "), "{report}");
    assert!(report["conditions"]["raw"]["runs"].is_array());
}

/// More packets than it could ever send one at a time: it is in the midst of them.
#[test]
fn an_interrupted_benchmark_ends_at_once_with_its_processes() {
    let here = tempfile::tempdir().unwrap();
    let endless = ["bench", "link", "--only", "latency", "--rounds", "1", "--samples", "1000000000000"];
    let said = here.path().join("said");
    let mut command = kaista(here.path(), &endless);
    let command = command.stdout(Stdio::null()).stderr(fs::File::create(&said).unwrap());
    // It does not outlive its test: an endless one would take the cores from all others.
    let mut bench = Companion(command.spawn().unwrap());
    let children = format!("/proc/{0}/task/{0}/children", bench.0.id());
    let partner =
        eventually("its partner runs", || fs::read_to_string(&children).ok().filter(|child| !child.is_empty()));
    std::thread::sleep(Duration::from_millis(300));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(bench.0.id() as i32), nix::sys::signal::SIGINT).unwrap();
    eventually("it ends", || bench.0.try_wait().unwrap());
    let said = fs::read_to_string(said).unwrap();
    assert!(said.contains("interrupted"), "{said}");
    assert!(!Path::new("/proc").join(partner.trim()).exists(), "{partner}");
}

/// Of functions that have nothing to do for a day.
#[test]
fn an_interrupted_benchmark_does_not_wait_for_time_to_pass() {
    if !Path::new(env!("CARGO_BIN_EXE_kaista")).with_file_name("kaista-traffic").is_file() {
        println!("SKIPPED an_interrupted_benchmark_does_not_wait_for_time_to_pass: kaista-traffic is not built");
        return;
    }
    let here = tempfile::tempdir().unwrap();
    let idle = ["bench", "link", "--only", "idle", "--alone", "--idle-seconds", "86400"];
    let mut bench = Companion(kaista(here.path(), &idle).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let children = format!("/proc/{0}/task/{0}/children", bench.0.id());
    let functions = eventually("its functions run", || {
        fs::read_to_string(&children).ok().filter(|children| children.split_whitespace().count() == 8)
    });
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(bench.0.id() as i32), Signal::SIGTERM).unwrap();
    eventually("it ends", || bench.0.try_wait().unwrap());
    assert!(functions.split_whitespace().all(|function| !Path::new("/proc").join(function).exists()), "{functions}");
}

/// Many rounds would follow: what it had made for itself is gone all the same, and what it had measured is told.
#[test]
fn an_interrupted_benchmark_reports_what_it_has_and_leaves_nothing_behind() {
    let upf: &[&str] = &["upf", "--only", "payload", "--sessions", "20", "--seconds", "0.01"];
    let n4: &[&str] = &["n4", "--held", "0", "--kills", "0", "--rate", "1000", "--seconds", "0.05"];
    for (what, signal) in [(upf, Signal::SIGTERM), (n4, Signal::SIGINT)] {
        let here = tempfile::tempdir().unwrap();
        let temporary = here.path().join("tmp");
        fs::create_dir(&temporary).unwrap();
        let said = here.path().join("said");
        let mut command = kaista(here.path(), &["bench"]);
        command.args(what).args(["--rounds", "1000", "--json", "report.json"]).env("TMPDIR", &temporary);
        command.stdout(Stdio::null()).stderr(fs::File::create(&said).unwrap());
        let mut bench = Companion(command.spawn().unwrap());
        eventually("it takes signals", || threads(bench.0.id()).contains("signals").then_some(()));
        if what[0] == "n4" {
            eventually("it has a folder", || fs::read_dir(&temporary).unwrap().flatten().next());
        }
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(bench.0.id() as i32), signal).unwrap();
        let status = eventually("it ends", || bench.0.try_wait().unwrap());
        let said = fs::read_to_string(said).unwrap();
        assert_eq!(status.code(), Some(0), "{what:?}: {said}");
        assert!(said.contains("interrupted"), "{what:?}: {said}");
        assert!(here.path().join("report.json").is_file(), "{what:?}");
        assert!(fs::read_dir(&temporary).unwrap().next().is_none(), "{what:?}");
    }
}

/// Names of a process's threads.
fn threads(process: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    tasks.map(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default()).collect()
}

/// What is awaited, for half a minute at most.
fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < give_up, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
