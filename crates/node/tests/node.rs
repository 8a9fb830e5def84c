//! A node from outside: slices of busybox containers are brought up, edited, killed piece by piece, and taken down, and
//! nothing is left of them.
//!
//! Each test has a node of its own, in directories of its own.

#[path = "node/pooled.rs"]
mod pooled;
#[path = "node/replacing.rs"]
mod replacing;
#[path = "node/resuming.rs"]
mod resuming;
#[path = "node/stopped.rs"]
mod stopped;
mod support;

use std::time::Duration;

use node::control::{CallError, Event, ProcessKind, ProcessState, Reply, Request};
use support::{TestNode, eventually, kill, skipped, slice};

const SLEEPER: &str = r#"{name: one, image: {rootfs: rootfs}, command: [sh, -c, "echo hello; exec sleep 1000"]}"#;

#[test]
fn up_runs_containers_up_again_changes_nothing_and_down_leaves_nothing() {
    if skipped("up_runs_containers_up_again_changes_nothing_and_down_leaves_nothing") {
        return;
    }
    let node = TestNode::start();
    let text = slice("s", SLEEPER, "");
    assert_eq!(node.up(&text).unwrap(), 1);
    let first = node.process("one");
    assert_eq!(first.state, ProcessState::Running);
    assert!(first.uid >= 0x7000_0000, "{first:?}");
    assert_eq!(node.up(&text).unwrap(), 0);
    assert_eq!(node.process("one").pid, first.pid);
    eventually("its output", || node.logs("one").contains(&"hello".to_owned()));
    node.down_and_check();
}

#[test]
fn an_edit_restarts_what_it_concerns_and_nothing_else() {
    if skipped("an_edit_restarts_what_it_concerns_and_nothing_else") {
        return;
    }
    let node = TestNode::start();
    let two = |words: &str| {
        let other =
            format!(r#"{{name: two, image: {{rootfs: rootfs}}, command: [sh, -c, "echo {words}; exec sleep 1000"]}}"#);
        slice("s", &format!("{SLEEPER}, {other}"), "")
    };
    assert_eq!(node.up(&two("before")).unwrap(), 2);
    let (one, other) = (node.process("one").pid, node.process("two").pid);
    assert_eq!(node.up(&two("after")).unwrap(), 1);
    assert_eq!(node.process("one").pid, one);
    assert_ne!(node.process("two").pid, other);
    eventually("the edited output", || node.logs("two").contains(&"after".to_owned()));
    assert_eq!(node.up(&slice("s", SLEEPER, "")).unwrap(), 1);
    assert_eq!(node.processes().len(), 1);
    node.down_and_check();
}

#[test]
fn slices_live_side_by_side_and_the_node_ends_with_the_last() {
    if skipped("slices_live_side_by_side_and_the_node_ends_with_the_last") {
        return;
    }
    let node = TestNode::start();
    node.up(&slice("a", SLEEPER, "")).unwrap();
    node.up(&slice("b", SLEEPER, "")).unwrap();
    assert_eq!(node.processes().len(), 2);
    let Reply::Down { slices, stopping } = node.call(&Request::Down { slices: vec!["a".into()] }).unwrap() else {
        panic!()
    };
    assert_eq!((slices, stopping), (vec!["a".to_owned()], false));
    assert_eq!(node.processes().len(), 1);
    let Reply::Down { slices, .. } = node.call(&Request::Down { slices: vec!["a".into()] }).unwrap() else { panic!() };
    assert!(slices.is_empty(), "what is not there is no error");
    node.down_and_check();
}

#[test]
fn a_failed_up_leaves_nothing_and_a_failed_edit_leaves_the_slice_as_it_was() {
    if skipped("a_failed_up_leaves_nothing_and_a_failed_edit_leaves_the_slice_as_it_was") {
        return;
    }
    let node = TestNode::start();
    let broken = r#"{name: two, image: {rootfs: rootfs}, command: [/no/such/program]}"#;
    node.up(&slice("keep", SLEEPER, "")).unwrap();
    let Err(CallError::Failed(failure)) = node.up(&slice("s", &format!("{SLEEPER}, {broken}"), "")) else { panic!() };
    assert!(failure.message.contains("two") && failure.message.contains("/no/such/program"), "{failure}");
    assert_eq!(node.processes().len(), 1, "only the other slice runs");

    let kept = node.process("one").pid;
    let edited = slice("keep", &format!("{SLEEPER}, {broken}"), "");
    assert!(matches!(node.up(&edited), Err(CallError::Failed(_))));
    assert_eq!(node.process("one").pid, kept);
    assert_eq!(node.processes().len(), 1);

    let changed = SLEEPER.replace("[sh,", "[/no/such/program,");
    assert!(matches!(node.up(&slice("keep", &changed, "")), Err(CallError::Failed(_))));
    let back = node.process("one");
    assert_eq!(back.state, ProcessState::Running, "the old program runs again");
    assert_eq!(node.up(&slice("keep", SLEEPER, "")).unwrap(), 0);
    node.down_and_check();
}

#[test]
fn restart_policies_are_kept() {
    if skipped("restart_policies_are_kept") {
        return;
    }
    let node = TestNode::start();
    let function = |name: &str, policy: &str, code: u8| {
        format!(
            r#"{{name: {name}, image: {{rootfs: rootfs}}, restart: {policy}, command: [sh, -c, "sleep 0.3; exit {code}"]}}"#
        )
    };
    let all = [
        function("always", "always", 0),
        function("failing", "on-failure", 3),
        function("fine", "on-failure", 0),
        function("never", "never", 3),
    ];
    node.up(&slice("s", &all.join(", "), "")).unwrap();
    eventually("ends", || {
        node.process("fine").state == ProcessState::Ended && node.process("never").state == ProcessState::Ended
    });
    eventually("restarts", || node.process("always").restarts >= 2 && node.process("failing").restarts >= 2);
    assert_eq!(node.process("failing").last_exit.as_deref(), Some("exit 3"));
    assert_eq!(node.process("never").last_exit.as_deref(), Some("exit 3"));
    assert_eq!((node.process("fine").restarts, node.process("never").restarts), (0, 0));
    node.down_and_check();
}

/// Two functions joined by every kind of link that needs no peer outside.
///
/// `n` keeps the host's ends of different tests apart.
fn linked(n: u8) -> String {
    let a = r#"{name: a, image: {rootfs: rootfs}, command: [sleep, "1000"], ports: [
        {name: k, interface: k0, addresses: [10.9.0.1/24]},
        {name: h, interface: h0, addresses: [10.9.1.1/24]}]}"#;
    let b = r#"{name: b, image: {rootfs: rootfs}, command: [httpd, -f, -p, "80", -h, /www], files: {/www/page: "found\n"}, ports: [
        {name: k, interface: k0, addresses: [10.9.0.2/24]},
        {name: shared}, {name: ue, interface: ue0, addresses: [10.9.2.1/24]},
        {name: h, interface: h0, addresses: [10.9.3.1/24]}]}"#;
    let links = r#"{between: [a/k, b/k]}, {between: [b/shared, b/ue]},
        {between: [a/h, {host: {veth: ktaNODE, addresses: [10.9.1.2/24]}}]},
        {between: [b/h, {host: {veth: ktbNODE, addresses: [10.9.3.2/24]}}]}"#;
    numbered(&slice("s", &format!("{a}, {b}"), links), n)
}

/// A description with names and addresses of its own, where it says NODE and 10.9.
fn numbered(text: &str, n: u8) -> String {
    text.replace("NODE", &format!("{n}-{}", std::process::id() % 100_000)).replace("10.9.", &format!("10.{}.", 200 + n))
}

/// What `a` gets from `b`'s web server by the veth pair between them.
fn fetched(node: &TestNode, n: u8) -> bool {
    let request = numbered(r#"printf "GET /page HTTP/1.0\r\n\r\n" | nc -w 3 10.9.0.2 80"#, n);
    let (status, answer) = node.exec("a", &["sh", "-c", &request]);
    status == 0 && answer.ends_with("found\n")
}

#[test]
fn links_carry_packets_and_survive_restarts_of_functions() {
    if skipped("links_carry_packets_and_survive_restarts_of_functions") {
        return;
    }
    let node = TestNode::start();
    node.up(&linked(1)).unwrap();
    eventually("a veth pair between functions", || fetched(&node, 1));
    assert_eq!(support::get(&numbered("10.9.3.1:80", 1), "/page"), "found", "a veth pair to the host");
    let (status, interfaces) = node.exec("b", &["ip", "address", "show", "ue0"]);
    assert_eq!(status, 0);
    assert!(interfaces.contains(&numbered("10.9.2.1/24", 1)), "{interfaces}");

    let before = node.process("b").pid.unwrap();
    kill(before);
    eventually("b is back", || node.process("b").pid.is_some_and(|pid| pid != before));
    eventually("the veth pair after the restart", || fetched(&node, 1));
    node.down_and_check();
}

#[test]
fn whatever_is_killed_comes_back_and_the_others_go_on() {
    if skipped("whatever_is_killed_comes_back_and_the_others_go_on") {
        return;
    }
    let node = TestNode::start();
    node.up(&linked(2)).unwrap();
    let pump = || node.processes().into_iter().find(|p| p.kind == ProcessKind::Pump).expect("a pump");
    for round in 0..3 {
        let (a, b, p) = (node.process("a").pid, node.process("b").pid, pump().pid);

        let status = node.status();
        kill(status.daemon_pid);
        eventually("the daemon is back", || node.try_status().is_some_and(|now| now.daemon_pid != status.daemon_pid));
        eventually("it has adopted", || node.processes().len() == 3);
        assert_eq!((node.process("a").pid, node.process("b").pid, pump().pid), (a, b, p), "round {round}, daemon");

        let status = node.status();
        kill(status.keeper_pid);
        eventually("the keeper is back", || {
            let now = node.status();
            now.keeper_pid != status.keeper_pid && now.daemon_pid == status.daemon_pid && now.kept_descriptors > 0
        });
        assert_eq!((node.process("a").pid, node.process("b").pid, pump().pid), (a, b, p), "round {round}, keeper");

        kill(p.unwrap());
        eventually("the pump is back", || pump().pid.is_some_and(|now| Some(now) != p));
        assert!(node.exec("b", &["ip", "address", "show", "ue0"]).1.contains(&numbered("10.9.2.1/24", 2)));

        kill(a.unwrap());
        eventually("the function is back", || node.process("a").pid.is_some_and(|now| Some(now) != a));
        assert_eq!(node.process("b").pid, b);
        eventually("traffic", || fetched(&node, 2));
    }
    node.down_and_check();
}

#[test]
fn daemon_and_keeper_killed_at_once_are_replaced_and_adopt_what_runs() {
    if skipped("daemon_and_keeper_killed_at_once_are_replaced_and_adopt_what_runs") {
        return;
    }
    let node = TestNode::start();
    node.up(&linked(3)).unwrap();
    let pids = || node.processes().into_iter().map(|process| process.pid).collect::<Vec<_>>();
    let before = pids();
    let one = node.process("a").pid.unwrap();
    node.kill_node();
    node.begin();
    eventually("adoption", || pids() == before);
    assert_eq!(node.up(&linked(3)).unwrap(), 0);

    // What dies while nobody looks is started again, too.
    node.kill_node();
    kill(one);
    node.begin();
    eventually("a restart", || node.process("a").pid.is_some_and(|pid| pid != one));
    eventually("traffic", || fetched(&node, 3));
    node.down_and_check();
}

#[test]
fn starting_a_node_many_times_at_once_gives_one() {
    if skipped("starting_a_node_many_times_at_once_gives_one") {
        return;
    }
    let node = TestNode::start();
    let starts: Vec<_> = (0..8).map(|_| node.spawn_kaistad()).collect();
    for mut start in starts {
        assert!(start.wait().unwrap().success());
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(node.kaistad_processes().len(), 2, "a keeper and a daemon");
    assert!(matches!(node.call(&Request::Shutdown { leave_running: false }), Ok(Reply::Done)));
    node.check_gone();
}

#[test]
fn exec_passes_streams_and_status_and_gives_terminals() {
    if skipped("exec_passes_streams_and_status_and_gives_terminals") {
        return;
    }
    let node = TestNode::start();
    node.up(&slice("s", SLEEPER, "")).unwrap();
    let (status, output) = node.exec("one", &["sh", "-c", "id -u; echo $K; exit 7"]);
    assert_eq!((status, output.as_str()), (7, "1000\nv\n"));
    let (status, output) = node.exec_in_terminal("one", &["sh", "-c", "tty >/dev/null && echo yes; exit 3"]);
    assert_eq!(status, 3);
    assert!(output.contains("yes"), "{output}");
    let (status, output) = node.exec("one", &["nonesuch"]);
    assert_eq!((status, output.lines().count()), (127, 1), "{output}");
    assert_eq!(node.exec("one", &["/bin"]).0, 126);
    assert!(matches!(node.try_exec("none", &["true"]), Err(CallError::Failed(_))));
    node.down_and_check();
}

#[test]
fn logs_follow_and_mistakes_are_told_line_by_line() {
    if skipped("logs_follow_and_mistakes_are_told_line_by_line") {
        return;
    }
    let node = TestNode::start();
    let talker = r#"{name: talk, image: {rootfs: rootfs}, command: [sh, -c, "i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done"]}"#;
    node.up(&slice("s", talker, "")).unwrap();
    let request = Request::Logs { function: "talk".parse().unwrap(), lines: Some(1), follow: true };
    let mut stream = node.client().start(&request, &[]).unwrap();
    let mut seen = Vec::new();
    while seen.len() < 5 {
        let Event::Line { text, error: false, .. } = stream.next().unwrap().0 else { panic!() };
        seen.push(text.parse::<u32>().unwrap());
    }
    let start = seen[0];
    assert_eq!(seen, (start..start + 5).collect::<Vec<_>>());

    let Err(CallError::Failed(failure)) = node.up("apiVersion: kaista.dev/v1alpha1\nkind: Slice\nnonsense: 1\n") else {
        panic!()
    };
    assert!(failure.details.iter().any(|line| line.contains("nonsense")), "{failure}");
    node.down_and_check();
}

/// Host, pump, `near`, shared memory, `far`, which sends everything back.
fn chain(n: u8) -> String {
    let near = r#"{name: near, image: {rootfs: rootfs}, command: [/bin/reflect, p, q], ports: [{name: p}, {name: q}]}"#;
    let far = r#"{name: far, image: {rootfs: rootfs}, command: [/bin/reflect, p], ports: [{name: p, addresses: [10.9.8.2/24]}]}"#;
    let links = r#"{between: [near/q, far/p]}, {between: [near/p, {host: {veth: ktcNODE, addresses: [10.9.8.1/24]}}]}"#;
    numbered(&slice("s", &format!("{near}, {far}"), links), n)
}

/// Where `far` of `chain(n)` echoes.
fn far(n: u8) -> String {
    numbered("10.9.8.2:7", n)
}

#[test]
fn frames_cross_pump_and_shared_memory_whoever_was_killed_before() {
    if skipped("frames_cross_pump_and_shared_memory_whoever_was_killed_before") {
        return;
    }
    let node = TestNode::start();
    let far = far(4);
    node.up(&chain(4)).unwrap();
    eventually("the first echo", || support::echo(&far));
    let pump = || node.processes().into_iter().find(|p| p.kind == ProcessKind::Pump).expect("a pump").pid;
    for _ in 0..3 {
        for victim in ["near", "far"] {
            kill(node.process(victim).pid.unwrap());
            eventually(victim, || support::echo(&far));
        }
        // What was under way may come back after its death, and before anybody has noticed that.
        let dead = pump().unwrap();
        kill(dead);
        eventually("a new pump", || pump().is_some_and(|pump| pump != dead) && support::echo(&far));
        let before = [node.process("near").pid, node.process("far").pid, pump()];
        kill(node.status().keeper_pid);
        assert!(support::echo(&far), "a keeper's death disturbs nobody");
        let status = node.status();
        kill(status.daemon_pid);
        assert!(support::echo(&far), "a daemon's death disturbs nobody");
        eventually("a new daemon", || node.try_status().is_some_and(|now| now.daemon_pid != status.daemon_pid));
        assert_eq!([node.process("near").pid, node.process("far").pid, pump()], before);
        eventually("still", || support::echo(&far));
        node.kill_node();
        assert!(support::echo(&far), "nor do both");
        node.begin();
        eventually("after adoption", || support::echo(&far));
        assert_eq!([node.process("near").pid, node.process("far").pid, pump()], before);
    }
    node.down_and_check();
}

#[test]
fn ports_are_counted_and_captured() {
    if skipped("ports_are_counted_and_captured") {
        return;
    }
    let node = TestNode::start();
    let far = far(5);
    node.up(&chain(5)).unwrap();
    eventually("the first echo", || support::echo(&far));
    let mut capture = node.capture("near", "q", 6);
    for _ in 0..3 {
        assert!(support::echo(&far));
    }
    let (packets, bytes) = capture.finish();
    assert_eq!(packets, 6);
    assert!(bytes.len() > 6 * 42, "{}", bytes.len());
    assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a pcapng section");

    eventually("counters", || {
        let stats = node.stats();
        let port = |function: &str, port: &str| {
            stats.ports.iter().find(|p| p.function == function && p.port == port).expect("a port").clone()
        };
        let (near, other) = (port("near", "q"), port("far", "p"));
        near.attached
            && other.attached
            && near.generation > 0
            && near.tx_packets >= 4
            && other.rx_packets == near.tx_packets
    });
    let Ok(Reply::Slices { slices }) = node.call(&Request::List) else { panic!() };
    assert_eq!((slices[0].links, slices[0].connected, slices[0].running), (2, 2, 2));
    node.down_and_check();
}

#[test]
fn ports_share_an_interface_of_the_host() {
    if skipped("ports_share_an_interface_of_the_host") {
        return;
    }
    let node = TestNode::start();
    // What is beyond the host's interface: its peer, with the other network's address.
    let outer = support::Veth::new(&numbered("ktoNODE", 6), &numbered("ktpNODE", 6), &numbered("10.9.6.1/24", 6));
    let shared = r#"{name: shared, image: {rootfs: rootfs}, command: [/bin/reflect, p], ports: [{name: p, addresses: [10.9.6.2/24]}]}"#;
    let kernel = r#"{name: kernel, image: {rootfs: rootfs}, command: [httpd, -f, -p, "80", -h, /www], files: {/www/page: "found\n"},
        ports: [{name: p, interface: eth0, addresses: [10.9.6.3/24]}]}"#;
    let links =
        r#"{between: [shared/p, {host: {interface: ktoNODE}}]}, {between: [kernel/p, {host: {interface: ktoNODE}}]}"#;
    node.up(&numbered(&slice("s", &format!("{shared}, {kernel}"), links), 6)).unwrap();
    let to = numbered("10.9.6.2:7", 6);
    eventually("an echo by macvtap and pump", || support::echo(&to));
    assert_eq!(support::get(&numbered("10.9.6.3:80", 6), "/page"), "found", "by macvlan");
    let pump = node.processes().into_iter().find(|p| p.kind == ProcessKind::Pump).expect("a pump").pid;
    kill(pump.unwrap());
    eventually("an echo by a new pump", || support::echo(&to));
    node.kill_node();
    node.begin();
    eventually("an echo after adoption", || support::echo(&to));
    node.down_and_check();
    drop(outer);
}

#[test]
fn an_interface_that_the_host_gets_later_can_be_an_end_of_a_link() {
    if skipped("an_interface_that_the_host_gets_later_can_be_an_end_of_a_link") {
        return;
    }
    let node = TestNode::start();
    node.up(&slice("before", SLEEPER, "")).unwrap();
    let _outer = support::Veth::new(&numbered("ktlNODE", 9), &numbered("ktmNODE", 9), &numbered("10.9.6.1/24", 9));
    let function =
        r#"{name: two, image: {rootfs: rootfs}, command: [sleep, "1000"], ports: [{name: p, interface: k0}]}"#;
    node.up(&numbered(&slice("after", function, "{between: [two/p, {host: {interface: ktlNODE}}]}"), 9)).unwrap();
    node.down_and_check();
}

#[test]
fn kernel_ports_are_captured_both_ways() {
    if skipped("kernel_ports_are_captured_both_ways") {
        return;
    }
    let node = TestNode::start();
    node.up(&linked(7)).unwrap();
    eventually("traffic", || fetched(&node, 7));
    let mut capture = node.capture("a", "k", 4);
    assert!(fetched(&node, 7));
    let (packets, bytes) = capture.finish();
    assert_eq!(packets, 4);
    // Option 2 of a packet block: 1 received, 2 sent.
    for direction in [1_u8, 2] {
        let option = [2, 0, 4, 0, direction, 0, 0, 0];
        assert!(bytes.windows(8).any(|window| window == option), "direction {direction}");
    }
    node.down_and_check();
}

#[test]
fn a_node_in_the_foreground_is_kept_running_and_leaves_its_slices_when_it_ends() {
    if skipped("a_node_in_the_foreground_is_kept_running_and_leaves_its_slices_when_it_ends") {
        return;
    }
    let node = TestNode::start();
    assert!(matches!(node.call(&Request::Shutdown { leave_running: false }), Ok(Reply::Done)));
    assert!(node.client().wait_stopped(Duration::from_secs(5)).unwrap());
    let mut foreground = node.spawn_foreground();
    eventually("the daemon answers", || node.try_status().is_some());
    node.up(&slice("s", SLEEPER, "")).unwrap();
    let pid = node.process("one").pid;

    let parts: Vec<i32> = node.kaistad_processes().into_iter().filter(|pid| *pid != foreground.id() as i32).collect();
    assert_eq!(parts.len(), 2);
    parts.into_iter().for_each(kill);
    eventually("another daemon", || node.try_status().is_some() && node.processes().len() == 1);
    assert_eq!(node.process("one").pid, pid);
    eventually("nothing remains of the former keeper", || support::remains_below(foreground.id()).is_empty());

    let status = node.status();
    let Reply::Down { stopping, .. } = node.call(&Request::Down { slices: vec!["none".into()] }).unwrap() else {
        panic!()
    };
    assert!(!stopping && status.foreground);
    let end = rustix::process::Pid::from_raw(foreground.id() as i32).unwrap();
    rustix::process::kill_process(end, rustix::process::Signal::TERM).unwrap();
    assert!(foreground.wait().unwrap().success());
    assert!(node.try_status().is_none());

    node.begin();
    assert_eq!(node.process("one").pid, pid, "it ran on");
    node.down_and_check();
}

#[test]
fn a_node_whose_log_takes_nothing_goes_on() {
    if skipped("a_node_whose_log_takes_nothing_goes_on") {
        return;
    }
    let node = TestNode::start();
    assert!(matches!(node.call(&Request::Shutdown { leave_running: false }), Ok(Reply::Done)));
    assert!(node.client().wait_stopped(Duration::from_secs(5)).unwrap());
    let mut foreground = node.spawn_foreground_on_full_disk();
    eventually("the daemon answers", || node.try_status().is_some());
    let status = node.status();
    let short = SLEEPER.replace("exec sleep 1000", "sleep 0.1");
    node.up(&slice("s", &short, "")).unwrap();
    eventually("it is started again", || node.process("one").restarts >= 3);
    assert_eq!(node.status().daemon_pid, status.daemon_pid, "the daemon lives");
    node.call(&Request::Down { slices: vec!["s".into()] }).unwrap();
    let end = rustix::process::Pid::from_raw(foreground.id() as i32).unwrap();
    rustix::process::kill_process(end, rustix::process::Signal::TERM).unwrap();
    assert!(foreground.wait().unwrap().success());
    node.check_gone();
}

#[test]
fn an_image_that_makes_the_oci_runtime_wait_is_refused_and_its_slice_goes() {
    if skipped("an_image_that_makes_the_oci_runtime_wait_is_refused_and_its_slice_goes") {
        return;
    }
    let node = TestNode::start();
    node.make_fifo("etc/passwd");
    let begin = std::time::Instant::now();
    let Err(CallError::Failed(failure)) = node.up(&slice("s", SLEEPER, "")) else { panic!() };
    assert!(failure.message.contains("/etc/passwd is not a file"), "{failure}");
    assert!(begin.elapsed() < Duration::from_secs(10));
    node.check_gone();
}
