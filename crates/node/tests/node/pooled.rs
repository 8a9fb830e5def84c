//! A pool under traffic whose node ends and begins again. What its replicas have counted of each flow is with one of them.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use node::control::{Reply, Request, Status};
use rustix::process::{Pid, Signal, kill_process};

use super::numbered;
use super::support::{TestNode, eventually, skipped, slice};

/// Flows, of as many sources.
const FLOWS: usize = 64;

/// `pool`, which answers what comes from the host.
fn pool(n: u8) -> String {
    let pool = r#"{name: pool, image: {rootfs: rootfs}, command: [/bin/replica, p], pool: {max: 4},
        ports: [{name: p, steering: five-tuple, addresses: [10.9.8.2/24]}]}"#;
    numbered(&slice("s", pool, "{between: [pool/p, {host: {veth: ktdNODE, addresses: [10.9.8.1/24]}}]}"), n)
}

/// The flows from this process, and how many answers each had.
struct Load {
    flows: Vec<(UdpSocket, u32)>,
}

impl Load {
    fn new(n: u8) -> Self {
        let flow = |_| {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
            socket.connect(numbered("10.9.8.2:7", n)).expect("a way there");
            socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
            (socket, 0)
        };
        Self { flows: (0..FLOWS).map(flow).collect() }
    }

    /// Sends one datagram of a flow; what the pool has counted of its bucket by then.
    fn ask(&self, flow: usize) -> Option<u32> {
        let mut answer = [0; 4];
        let socket = &self.flows[flow].0;
        socket.send(b"ping").ok()?;
        (socket.recv(&mut answer).ok()? == 4).then(|| u32::from_be_bytes(answer))
    }

    /// Waits for an answer to each flow. No bucket may have been counted anew.
    fn all_are_answered(&mut self, when: &str) {
        let start = Instant::now();
        for flow in 0..FLOWS {
            let count = loop {
                if let Some(count) = self.ask(flow) {
                    break count;
                }
                assert!(start.elapsed() < Duration::from_secs(30), "{when}: flow {flow} is not answered");
            };
            assert!(count > self.flows[flow].1, "{when}: flow {flow}: {count} after {}", self.flows[flow].1);
            self.flows[flow].1 = count;
        }
    }

    /// The same, but what was counted may be lost.
    fn all_are_answered_again(&mut self, when: &str) {
        self.flows.iter_mut().for_each(|(_, count)| *count = 0);
        self.all_are_answered(when);
    }
}

/// Process and share of each replica.
fn replicas(node: &TestNode) -> Vec<(Option<i32>, Option<f64>)> {
    let replicas = node.processes().into_iter().filter(|process| process.replica_of.is_some());
    replicas.map(|process| (process.pid, process.share)).collect()
}

/// A pool of so many replicas, each with its share.
fn up(node: &TestNode, n: u8, count: u16) -> Vec<Option<i32>> {
    node.up(&pool(n)).unwrap();
    scale(node, count);
    replicas(node).into_iter().map(|(pid, _)| pid).collect()
}

fn scale(node: &TestNode, count: u16) {
    node.call(&Request::Scale { function: "pool".parse().unwrap(), replicas: count }).unwrap();
    shares(node, count);
}

/// Waits until each replica has its share, and the link is up.
fn shares(node: &TestNode, count: u16) {
    let connected = || match node.call(&Request::List) {
        Ok(Reply::Slices { slices }) => slices[0].connected == 1,
        other => panic!("{other:?}"),
    };
    eventually("the link is up", connected);
    let even = 1.0 / f64::from(count);
    eventually("even shares", || {
        let there = replicas(node);
        there.len() == usize::from(count)
            && there.iter().all(|(_, share)| share.is_some_and(|share| (share - even).abs() < 0.02))
    });
}

#[test]
fn a_service_that_is_stopped_and_started_leaves_pools_as_they_were() {
    if skipped("a_service_that_is_stopped_and_started_leaves_pools_as_they_were") {
        return;
    }
    let node = TestNode::start();
    let pids = up(&node, 9, 4);
    let mut load = Load::new(9);
    load.all_are_answered("before");
    for _ in 0..2 {
        node.call(&Request::Shutdown { leave_running: true }).unwrap();
        assert!(node.client().wait_stopped(Duration::from_secs(5)).unwrap());
        load.all_are_answered("without a node");
        node.begin();
        load.all_are_answered("after");
        shares(&node, 4);
    }
    assert_eq!(replicas(&node).into_iter().map(|(pid, _)| pid).collect::<Vec<_>>(), pids);
    scale(&node, 2);
    load.all_are_answered("fewer");
    scale(&node, 3);
    load.all_are_answered("more");
    node.down_and_check();
}

#[test]
fn keeper_and_daemon_killed_at_once_leave_pools_as_they_were() {
    if skipped("keeper_and_daemon_killed_at_once_leave_pools_as_they_were") {
        return;
    }
    let node = TestNode::start();
    let pids = up(&node, 10, 2);
    let mut load = Load::new(10);
    load.all_are_answered("before");
    for _ in 0..2 {
        node.kill_node();
        load.all_are_answered("without a node");
        node.begin();
        load.all_are_answered("after");
        shares(&node, 2);
    }
    assert_eq!(replicas(&node).into_iter().map(|(pid, _)| pid).collect::<Vec<_>>(), pids);
    scale(&node, 3);
    load.all_are_answered("more");
    node.down_and_check();
}

#[test]
fn replicas_of_which_nothing_is_known_are_started_anew() {
    if skipped("replicas_of_which_nothing_is_known_are_started_anew") {
        return;
    }
    let node = TestNode::start();
    let pids = up(&node, 11, 3);
    let mut load = Load::new(11);
    load.all_are_answered("before");
    node.kill_node();
    std::fs::remove_file(node.directory_of("s", "pool-1").join("owners.json")).unwrap();
    node.begin();
    eventually("others are there", || replicas(&node).iter().all(|(pid, _)| pid.is_some() && !pids.contains(pid)));
    shares(&node, 3);
    load.all_are_answered_again("after");
    node.down_and_check();
}

#[test]
fn a_replica_that_hangs_is_started_anew_and_holds_nobody_up_for_longer() {
    if skipped("a_replica_that_hangs_is_started_anew_and_holds_nobody_up_for_longer") {
        return;
    }
    let node = TestNode::start();
    let pids = up(&node, 12, 2);
    let mut load = Load::new(12);
    load.all_are_answered("before");
    kill_process(Pid::from_raw(pids[0].unwrap()).unwrap(), Signal::STOP).unwrap();
    scale(&node, 3);
    let now = replicas(&node);
    assert!(!now.iter().any(|(pid, _)| *pid == pids[0]) && now.iter().any(|(pid, _)| *pid == pids[1]), "{now:?}");
    load.all_are_answered_again("after");
    node.down_and_check();
}

#[test]
fn a_pool_changes_beside_a_keeper_that_is_stopped_and_outlives_the_daemon_that_could_not_deposit() {
    if skipped("a_pool_changes_beside_a_keeper_that_is_stopped_and_outlives_the_daemon_that_could_not_deposit") {
        return;
    }
    let node = TestNode::start();
    node.write_to_rootfs("go", "now");
    let when_told = r#"[sh, -c, "until [ -s /go ]; do sleep 0.05; done; exec /bin/replica p"]"#;
    node.up(&pool(13).replace("[/bin/replica, p]", when_told)).unwrap();
    shares(&node, 1);
    let mut load = Load::new(13);
    load.all_are_answered("before");
    let status = node.status();
    let [keeper, daemon] = [status.keeper_pid, status.daemon_pid].map(|pid| Pid::from_raw(pid).unwrap());

    node.write_to_rootfs("go", "");
    node.call(&Request::Scale { function: "pool".parse().unwrap(), replicas: 2 }).unwrap();
    let pids: Vec<_> = replicas(&node).into_iter().map(|(pid, _)| pid).collect();
    kill_process(keeper, Signal::STOP).unwrap();
    node.write_to_rootfs("go", "now");
    let (answers, answered) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let node = &node;
        scope.spawn(move || {
            shares(node, 2);
            answers.send(())
        });
        let answer = answered.recv_timeout(Duration::from_secs(10));
        if answer.is_ok() {
            load.all_are_answered("beside a keeper that is stopped");
            kill_process(daemon, Signal::KILL).unwrap();
        }
        kill_process(keeper, Signal::CONT).unwrap();
        assert_eq!(answer, Ok(()), "the second replica has its share");
    });
    let next = |status: &Status| status.daemon_pid != daemon.as_raw_nonzero().get();
    eventually("the next daemon", || node.try_status().is_some_and(|status| next(&status)));
    load.all_are_answered("after");
    shares(&node, 2);
    scale(&node, 3);
    load.all_are_answered("more");
    let now: Vec<_> = replicas(&node).into_iter().map(|(pid, _)| pid).collect();
    assert_eq!(now[..2], pids[..], "nobody was started anew");
    node.down_and_check();
}

#[test]
fn a_pool_whose_links_are_all_edited_goes_on_with_the_replicas_and_the_state_that_it_has() {
    if skipped("a_pool_whose_links_are_all_edited_goes_on_with_the_replicas_and_the_state_that_it_has") {
        return;
    }
    let node = TestNode::start();
    let pids = up(&node, 14, 3);
    let mut load = Load::new(14);
    load.all_are_answered("before");
    let again = pool(14).replace("10.214.8.1/24]", "10.214.8.1/24, 10.214.7.1/24]");
    let fewer = pool(14).replace("max: 4", "max: 4, replicas: 2");
    let more = again.replace("max: 4", "max: 4, replicas: 4");
    // Its link alone; with it, one replica less; and two more.
    for (text, changes, count, kept) in [(again, 1, 3, 3), (fewer, 2, 2, 2), (more, 3, 4, 2)] {
        assert_eq!(node.up(&text).unwrap(), changes, "{text}");
        shares(&node, count);
        load.all_are_answered(&text);
        let now: Vec<_> = replicas(&node).into_iter().map(|(pid, _)| pid).collect();
        assert_eq!(now[..kept], pids[..kept], "{text}");
    }
    node.down_and_check();
}
