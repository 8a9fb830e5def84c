//! Replacements and other commands, what comes in between, and the daemon's death.

use std::time::{Duration, Instant};

use node::control::{CallError, ProcessState, Reply, Request, SliceState};

use super::SLEEPER;
use super::support::{TestNode, eventually, kill, skipped, slice};

/// Takes its time when it is asked to end.
const SLOW: &str = r#"{name: one, image: {rootfs: rootfs}, command: [sh, -c, "trap 'echo asked; sleep 3; exit 0' TERM; while true; do sleep 0.1; done"]}"#;

/// Its heir never takes the port over.
const LATE: &str = r#"{name: near, image: {rootfs: rootfs}, command: [sh, -c, "test -z $KAISTA_SUCCEEDS || { echo heir; exec sleep 1000; }; exec reflect p q"], ports: [{name: p}, {name: q}]}"#;
const FAR: &str = "{name: far, image: {rootfs: rootfs}, command: [reflect, p, q], ports: [{name: p}, {name: q}]}";
const LINK: &str = "{between: [near/p, far/p]}, {between: [near/q, far/q]}";

fn replace(node: &TestNode, function: &str) -> Result<Option<i32>, String> {
    match node.call(&Request::Replace { function: function.parse().unwrap() }) {
        Ok(Reply::Replaced { pid, .. }) => Ok(pid),
        Err(CallError::Failed(failure)) => Err(failure.to_string()),
        other => panic!("{other:?}"),
    }
}

fn refusal(answer: Result<usize, CallError>) -> String {
    match answer {
        Err(CallError::Failed(failure)) => failure.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Whether the new process has what the old one had, though that may be there yet.
fn is_handed_over(node: &TestNode) -> bool {
    node.logs("one").contains(&"asked".to_owned())
}

#[test]
fn what_was_handed_over_stays_so_when_the_daemon_dies_before_the_old_process_has_ended() {
    if skipped("what_was_handed_over_stays_so_when_the_daemon_dies_before_the_old_process_has_ended") {
        return;
    }
    let node = TestNode::start();
    node.up(&slice("s", SLOW, "")).unwrap();
    let former = node.process("one").pid;
    std::thread::scope(|scope| {
        scope.spawn(|| node.call(&Request::Replace { function: "one".parse().unwrap() }));
        eventually("it is handed over", || is_handed_over(&node));
        assert_eq!(node.process("one").pid, former);
        let daemon = node.status().daemon_pid;
        kill(daemon);
        eventually("another daemon", || node.try_status().is_some_and(|status| status.daemon_pid != daemon));
    });
    let heir = node.process("one");
    assert_ne!(heir.pid, former, "the new process is in charge");
    std::thread::sleep(Duration::from_secs(4));
    let one = node.process("one");
    assert_eq!((one.pid, one.restarts, one.state), (heir.pid, 0, ProcessState::Running), "{one:?}");
    // The other container is free again.
    assert_ne!(replace(&node, "one").unwrap(), heir.pid);
    node.down_and_check();
}

#[test]
fn a_slice_is_served_while_one_of_its_functions_is_being_replaced() {
    if skipped("a_slice_is_served_while_one_of_its_functions_is_being_replaced") {
        return;
    }
    let node = TestNode::start();
    let with = |more: &str| slice("s", &format!("{LATE}, {FAR}{more}"), LINK);
    node.up(&with("")).unwrap();
    eventually("ports are open", || node.stats().ports.iter().all(|port| port.attached));
    let near = node.process("near").pid;
    std::thread::scope(|scope| {
        let replacing = scope.spawn(|| replace(&node, "near"));
        eventually("it is being replaced", || node.logs("near").contains(&"heir".to_owned()));
        assert!(replace(&node, "near").unwrap_err().contains("is being replaced already"));

        let begin = Instant::now();
        assert_eq!(node.up(&with("")).unwrap(), 0, "what changes nothing is done");
        assert_eq!(node.up(&with(&format!(", {SLEEPER}"))).unwrap(), 1, "and what concerns others");
        let other = node.process("one").pid.unwrap();
        kill(other);
        eventually("another function is started again", || node.process("one").pid.is_some_and(|pid| pid != other));
        assert!(replace(&node, "one").is_ok(), "and replaced");
        let edited = with("").replace("test -z", "test  -z");
        let refused = refusal(node.up(&edited));
        assert!(refused.contains("function near is being replaced"), "{refused}");
        assert_eq!(node.process("near").pid, near);
        assert!(begin.elapsed() < Duration::from_secs(20), "nobody waits for it");

        node.down_and_check();
        let ended = replacing.join().unwrap().unwrap_err();
        assert!(ended.contains("its slice is taken away"), "{ended}");
    });
}

/// Two pools, and a function whose edit keeps the slice busy for two seconds.
fn busy(words: &str) -> String {
    let pool = |name: &str| {
        format!(r#"{{name: {name}, image: {{rootfs: rootfs}}, pool: {{max: 2}}, command: [sleep, "1000"]}}"#)
    };
    slice("s", &format!("{}, {}, {}", SLOW.replace("asked", words), pool("p"), pool("q")), "")
}

fn is_busy(node: &TestNode) -> bool {
    let Ok(Reply::Slices { slices }) = node.call(&Request::List) else { panic!() };
    slices.iter().any(|slice| slice.state == SliceState::Changing)
}

fn scale(node: &TestNode, pool: &str, replicas: u16) -> Result<usize, CallError> {
    match node.call(&Request::Scale { function: pool.parse().unwrap(), replicas })? {
        Reply::Up { changes, .. } => Ok(changes),
        other => panic!("{other:?}"),
    }
}

#[test]
fn commands_that_wait_for_each_other_find_what_those_before_have_left() {
    if skipped("commands_that_wait_for_each_other_find_what_those_before_have_left") {
        return;
    }
    let node = TestNode::start();
    node.up(&slice("keep", &SLEEPER.replace("one,", "other,"), "")).unwrap();
    node.up(&busy("first")).unwrap();
    let names = || node.processes().into_iter().map(|process| process.name).collect::<Vec<_>>();
    let soon = || std::thread::sleep(Duration::from_millis(200));
    std::thread::scope(|scope| {
        let edit = scope.spawn(|| node.up(&busy("second")));
        eventually("it is busy", || is_busy(&node));
        let scales = ["p", "q"].map(|pool| scope.spawn(|| scale(&node, pool, 2)));
        assert_eq!(edit.join().unwrap().unwrap(), 1);
        assert_eq!(scales.map(|scale| scale.join().unwrap().unwrap()), [1, 1]);
    });
    assert_eq!(names(), ["other", "one", "p-1", "p-2", "q-1", "q-2"]);

    std::thread::scope(|scope| {
        let edit = scope.spawn(|| node.up(&busy("third")));
        eventually("it is busy", || is_busy(&node));
        let down = scope.spawn(|| node.call(&Request::Down { slices: vec!["s".into()] }));
        soon();
        let late = scope.spawn(|| refusal(scale(&node, "p", 1)));
        let later = scope.spawn(|| replace(&node, "one").unwrap_err());
        edit.join().unwrap().unwrap();
        down.join().unwrap().unwrap();
        for said in [late.join().unwrap(), later.join().unwrap()] {
            assert!(said.contains("there is no slice s any more"), "{said}");
        }
    });
    assert_eq!(names(), ["other"]);
    let Ok(Reply::Slices { slices }) = node.call(&Request::List) else { panic!() };
    assert_eq!(slices.len(), 1, "{slices:?}");
    node.down_and_check();
}
