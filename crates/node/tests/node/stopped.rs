//! A keeper that is stopped.

use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::support::{TestNode, eventually, kill, skipped, slice};

#[test]
fn a_keeper_that_is_stopped_holds_up_no_link() {
    if skipped("a_keeper_that_is_stopped_holds_up_no_link") {
        return;
    }
    let node = TestNode::start();
    let names = ["a", "b", "c-1", "d"];
    let function = |name: &str| {
        let (name, more) = name.strip_suffix("-1").map_or((name, ""), |pool| (pool, "pool: {max: 2}, "));
        format!(
            "{{name: {name}, image: {{rootfs: rootfs}}, command: [/bin/reflect, p], {more}ports: [{{name: p, steering: five-tuple}}]}}"
        )
    };
    let links = "{between: [a/p, b/p]}, {between: [c/p, d/p]}";
    node.up(&slice("s", &names.map(function).join(", "), links)).unwrap();
    // The pool's second replica is not there.
    let up = || node.stats().ports.iter().filter(|port| port.attached && port.generation > 0).count() == names.len();
    eventually("the links are up", up);
    let keeper = Pid::from_raw(node.status().keeper_pid).unwrap();
    let processes = names.map(|name| node.process(name).pid.unwrap());

    kill_process(keeper, Signal::STOP).unwrap();
    // With both of its ends, a link's segments are to go.
    for ends in processes.chunks(2) {
        ends.iter().copied().for_each(kill);
        std::thread::sleep(Duration::from_millis(300));
    }
    let (answers, answered) = channel();
    let node = &node;
    std::thread::scope(|scope| {
        scope.spawn(move || answers.send(node.stats().ports.iter().all(|port| !port.attached)));
        let answer = answered.recv_timeout(Duration::from_secs(5));
        kill_process(keeper, Signal::CONT).unwrap();
        assert_eq!(answer, Ok(true), "the broker serves, and has seen them go");
    });
    eventually("the links are up again", || {
        node.processes().iter().all(|process| process.pid.is_some_and(|pid| !processes.contains(&pid))) && up()
    });
    node.down_and_check();
}
