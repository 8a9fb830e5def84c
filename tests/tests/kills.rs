//! kill -9 of anything, under traffic: the others go on, what died comes back, traffic flows again without a hand, and
//! after `down` nothing is left.

use std::time::Duration;

use e2e::{Census, Node, eventually, skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Times that each is killed.
const KILLS: usize = 10;

/// A process that a test kills, found anew each time.
struct Victim {
    name: &'static str,
    pid: fn(&Node) -> Option<i64>,
    /// Functions whose processes must not change when this one dies.
    bystanders: &'static [&'static str],
}

const UPF: Victim = Victim { name: "upf", pid: |node| running(node, "upf"), bystanders: &["ran", "dn"] };
const RAN: Victim = Victim { name: "ran", pid: |node| running(node, "ran"), bystanders: &["upf", "dn"] };
const PUMP: Victim = Victim { name: "pump", pid: pump, bystanders: &["ran", "upf", "dn"] };
const DAEMON: Victim =
    Victim { name: "daemon", pid: |node| status(node, "daemonPid"), bystanders: &["ran", "upf", "dn"] };
const KEEPER: Victim =
    Victim { name: "keeper", pid: |node| status(node, "keeperPid"), bystanders: &["ran", "upf", "dn"] };

/// On two nodes at a time, since functions that die again and again are restarted later and later.
const NODES: [&[Victim]; 2] = [&[UPF, PUMP], &[RAN, DAEMON, KEEPER]];

#[test]
fn whatever_is_killed_traffic_flows_again_and_nothing_is_left() {
    if skip("whatever_is_killed_traffic_flows_again_and_nothing_is_left", Node::missing()) {
        return;
    }
    let before = Census::take();
    std::thread::scope(|scope| {
        NODES.iter().for_each(|victims| {
            scope.spawn(|| kill_on_a_node(victims));
        });
    });
    before.assert_restored(Duration::from_secs(10));
}

fn kill_on_a_node(victims: &[Victim]) {
    let node = Node::new();
    node.first_slice();
    for victim in victims {
        for round in 1..=KILLS {
            kill_under_traffic(&node, victim, round);
        }
    }
}

fn kill_under_traffic(node: &Node, victim: &Victim, round: usize) {
    let what = format!("{} killed, time {round}", victim.name);
    let bystanders = || victim.bystanders.iter().map(|name| running(node, name)).collect::<Vec<_>>();
    let others = bystanders();
    let mut load = node.spawn(&["exec", "ran", "--", "ping", "-i", "0.01", "-I", "ue0", "10.6.0.2"]);
    let pid = eventually(&what, Duration::from_secs(10), || (victim.pid)(node));
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).unwrap_or_else(|error| panic!("{what}: {error}"));

    eventually(&format!("{what}: comes back"), Duration::from_secs(15), || {
        (victim.pid)(node).filter(|new| *new != pid)
    });
    node.wait_for_traffic(Duration::from_secs(15));
    assert_eq!(bystanders(), others, "{what}: the others go on");
    let _ = load.kill();
    let _ = load.wait();
}

fn ps(node: &Node) -> Option<Vec<serde_json::Value>> {
    let output = node.run(&["ps", "--json"]);
    serde_json::from_slice::<serde_json::Value>(&output.stdout).ok()?.as_array().cloned()
}

fn running(node: &Node, name: &str) -> Option<i64> {
    eventually("ps answers", Duration::from_secs(15), || ps(node))
        .iter()
        .find(|process| process["kind"] == "function" && process["name"] == name)?["pid"]
        .as_i64()
}

fn pump(node: &Node) -> Option<i64> {
    ps(node)?.iter().find(|process| process["kind"] == "pump")?["pid"].as_i64()
}

fn status(node: &Node, field: &str) -> Option<i64> {
    let output = node.run(&["status", "--json"]);
    serde_json::from_slice::<serde_json::Value>(&output.stdout).ok()?[field].as_i64()
}
