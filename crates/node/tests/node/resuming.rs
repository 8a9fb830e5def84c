//! What a daemon that was killed had given away, and what belongs to somebody else, is what the next one finds.

use std::process::Command;
use std::time::Duration;

use node::control::{CallError, ProcessState, Request};

use super::support::{TestNode, Veth, eventually, kill, skipped, slice};
use super::{SLEEPER, linked, numbered};

/// Kills the daemon and waits for the next.
pub(super) fn kill_daemon(node: &TestNode) {
    let daemon = node.status().daemon_pid;
    kill(daemon);
    eventually("another daemon", || node.try_status().is_some_and(|status| status.daemon_pid != daemon));
}

/// Whether there is such a process, and not only its remains.
fn runs(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn what_the_host_has_under_a_link_s_name_is_refused_and_stays() {
    if skipped("what_the_host_has_under_a_link_s_name_is_refused_and_stays") {
        return;
    }
    let node = TestNode::start();
    node.up(&slice("other", SLEEPER, "")).unwrap();
    let pid = std::process::id() % 100_000;
    let taken = format!("ktx{pid}");
    let others = Veth::new(&taken, &format!("kty{pid}"), "10.211.1.1/24");
    let index = || std::fs::read_to_string(format!("/sys/class/net/{taken}/ifindex")).expect("it is there");
    let before = index();
    let one = |slice_name: &str, port: &str, host: &str| {
        let function =
            format!(r#"{{name: f, image: {{rootfs: rootfs}}, command: [sleep, "1000"], ports: [{{name: p{port}}}]}}"#);
        slice(slice_name, &function, &format!("{{between: [f/p, {{host: {{veth: {host}}}}}]}}"))
    };
    let refused = |text: &str| match node.up(text) {
        Err(CallError::Failed(failure)) => failure.to_string(),
        other => panic!("{other:?}"),
    };
    for port in ["", ", interface: k0"] {
        let said = refused(&one("s", port, &taken));
        assert!(said.contains(&taken) && said.contains("not this link's"), "{said}");
        assert_eq!(index(), before, "it is the same yet");
    }
    drop(others);

    let free = numbered("kszNODE", 1);
    for port in ["", ", interface: k0"] {
        node.up(&one("a", port, &free)).unwrap();
        refused(&one("b", port, &free));
        assert!(std::path::Path::new(&format!("/sys/class/net/{free}")).exists(), "the first slice's stays");
        node.call(&Request::Down { slices: vec!["b".into()] }).unwrap();
        kill_daemon(&node);
        assert_eq!(node.up(&one("a", port, &free)).unwrap(), 0);
        node.up(&one("a", "", "kaista-free")).unwrap();
        assert!(!std::path::Path::new(&format!("/sys/class/net/{free}")).exists(), "it goes with its link");
    }
    node.down_and_check();
    assert!(!std::path::Path::new("/sys/class/net/kaista-free").exists());
}

#[test]
fn a_function_that_was_replaced_and_edited_is_not_taken_for_the_former_one() {
    if skipped("a_function_that_was_replaced_and_edited_is_not_taken_for_the_former_one") {
        return;
    }
    let node = TestNode::start();
    node.up(&slice("s", SLEEPER, "")).unwrap();
    node.call(&Request::Replace { function: "one".parse().unwrap() }).unwrap();
    node.up(&slice("s", &SLEEPER.replace("hello", "edited"), "")).unwrap();
    let before = node.process("one");
    kill_daemon(&node);
    let after = node.process("one");
    assert_eq!((after.pid, after.restarts, after.state), (before.pid, 0, ProcessState::Running), "{after:?}");
    node.down_and_check();
}

#[test]
fn functions_are_on_the_cores_that_they_had_before_the_daemon_died() {
    if skipped("functions_are_on_the_cores_that_they_had_before_the_daemon_died") {
        return;
    }
    let node = TestNode::start();
    let exclusive = SLEEPER.replace("one,", "two, cores: exclusive,");
    node.up(&slice("s", &format!("{SLEEPER}, {exclusive}"), "")).unwrap();
    let told = || ["one", "two"].map(|name| node.process(name).cpus);
    let real = || {
        ["one", "two"].map(|name| {
            let status = std::fs::read_to_string(format!("/proc/{}/status", node.process(name).pid.unwrap())).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            line.unwrap().trim().to_owned()
        })
    };
    let before = told();
    assert_eq!(real(), before);
    for _ in 0..2 {
        kill_daemon(&node);
        eventually("the cores are known", || told() == before);
        assert_eq!(real(), before);
    }
    node.down_and_check();
}

#[test]
fn what_does_not_run_takes_no_cores_from_what_does() {
    if skipped("what_does_not_run_takes_no_cores_from_what_does") {
        return;
    }
    let node = TestNode::start();
    let ended = r#"{name: a, image: {rootfs: rootfs}, restart: never, command: ["true"]}"#;
    let exclusive = SLEEPER.replace("one,", "one, cores: exclusive,");
    node.up(&slice("s", &format!("{ended}, {exclusive}"), "")).unwrap();
    eventually("it has ended", || node.process("a").state == ProcessState::Ended);
    let before = node.process("one");
    // What is known of it says that it was to have cores for itself, too.
    let [_, record] = node.files_of("s");
    let mut known: serde_json::Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    let functions = known["actual"]["spec"]["functions"].as_array_mut().unwrap();
    let [a, one] = &mut functions[..] else { panic!("two functions") };
    a["cores"] = one["cores"].clone();
    std::fs::write(&record, known.to_string()).unwrap();

    kill_daemon(&node);
    let after = node.process("one");
    assert_eq!((after.pid, after.cpus), (before.pid, before.cpus));
    node.down_and_check();
}

#[test]
fn what_runs_goes_on_where_the_host_has_fewer_cores_than_it_was_given() {
    if skipped("what_runs_goes_on_where_the_host_has_fewer_cores_than_it_was_given") {
        return;
    }
    let node = TestNode::start();
    node.up(&slice("s", SLEEPER, "")).unwrap();
    let before = node.process("one");
    // What is known of it says that it had as many cores for itself as no host has.
    for file in node.files_of("s") {
        let mut known: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let place = if known["actual"].is_null() { "/spec/functions/0" } else { "/actual/spec/functions/0" };
        known.pointer_mut(place).unwrap()["cores"] = serde_json::json!({"exclusive": 4_096});
        std::fs::write(&file, known.to_string()).unwrap();
    }
    kill_daemon(&node);
    let after = node.process("one");
    assert_eq!((after.pid, after.cpus, after.restarts), (before.pid, before.cpus, before.restarts));
    node.down_and_check();
}

#[test]
fn what_cannot_be_read_of_a_slice_is_not_taken_for_what_shall_not_be() {
    if skipped("what_cannot_be_read_of_a_slice_is_not_taken_for_what_shall_not_be") {
        return;
    }
    let node = TestNode::start();
    node.up(&linked(8)).unwrap();
    let running = || node.processes().into_iter().map(|process| (process.name, process.pid)).collect::<Vec<_>>();
    let before = running();
    let [descriptor, record] = node.files_of("s");
    for file in [&descriptor, &record] {
        let text = std::fs::read(file).unwrap();
        std::fs::write(file, "another version's words").unwrap();
        kill_daemon(&node);
        assert_eq!(running(), before, "without {}", file.display());
        std::fs::write(file, text).unwrap();
    }
    kill_daemon(&node);
    assert_eq!(node.up(&linked(8)).unwrap(), 0);
    assert_eq!(running(), before);

    for file in [descriptor, record] {
        std::fs::write(file, "another version's words").unwrap();
    }
    kill_daemon(&node);
    assert!(before.iter().all(|(_, pid)| runs(pid.unwrap())), "they run on");
    node.down_and_check();
    eventually("all have ended", || before.iter().all(|(_, pid)| !runs(pid.unwrap())));
}

#[test]
fn a_function_whose_descriptor_cannot_be_read_is_not_said_to_be_none() {
    if skipped("a_function_whose_descriptor_cannot_be_read_is_not_said_to_be_none") {
        return;
    }
    let node = TestNode::start();
    node.up(&slice("s", SLEEPER, "")).unwrap();
    let refusal = |function: &str| match node.call(&Request::Scale { function: function.parse().unwrap(), replicas: 2 })
    {
        Err(CallError::Failed(failure)) => failure.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(refusal("one").contains("is no pool"));
    let [descriptor, _] = node.files_of("s");
    let text = std::fs::read(&descriptor).unwrap();
    std::fs::write(&descriptor, "another version's words").unwrap();
    for name in ["one", "s/one"] {
        let said = refusal(name);
        assert!(said.contains("cannot be told") && said.contains(&descriptor.display().to_string()), "{said}");
    }
    assert!(refusal("other/one").contains("there is no function other/one"));
    std::fs::write(&descriptor, text).unwrap();
    assert!(refusal("two").contains("there is no function two"));
    node.down_and_check();
}

#[test]
fn what_cannot_be_taken_away_is_not_forgotten() {
    if skipped("what_cannot_be_taken_away_is_not_forgotten") {
        return;
    }
    let node = TestNode::start();
    node.up(&slice("s", SLEEPER, "")).unwrap();
    let ids = node.spoil_ids();
    for attempt in ["first", "second"] {
        let answer = node.call(&Request::Down { slices: Vec::new() });
        assert!(matches!(answer, Err(CallError::Failed(_))), "{attempt}: {answer:?}");
    }
    node.mend_ids(&ids);
    node.down_and_check();
}

fn failure(answer: Result<usize, CallError>) -> String {
    match answer {
        Err(CallError::Failed(failure)) => failure.to_string(),
        other => panic!("{other:?}"),
    }
}

fn runs_as(node: &TestNode, names: &[&str]) -> bool {
    let processes = node.processes();
    let running = processes.iter().filter(|process| process.state == ProcessState::Running);
    running.map(|process| process.name.as_str()).eq(names.iter().copied())
}

#[test]
fn what_a_boot_could_not_bring_up_is_tried_again_whichever_edit_fails_meanwhile() {
    if skipped("what_a_boot_could_not_bring_up_is_tried_again_whichever_edit_fails_meanwhile") {
        return;
    }
    let node = TestNode::start();
    let text = slice("s", SLEEPER, "");
    node.up(&text).unwrap();
    let [descriptor, _] = node.files_of("s");
    let described = std::fs::read(&descriptor).unwrap();
    node.down_and_check();
    std::fs::write(&descriptor, &described).unwrap();
    node.mount_rootfs(false);
    node.begin();

    let said = failure(node.up(&text));
    assert!(said.contains("is tried again"), "{said}");
    assert_eq!(std::fs::read(&descriptor).unwrap(), described);
    node.mount_rootfs(true);
    eventually("it runs", || runs_as(&node, &["one"]));
    node.down_and_check();
}

#[test]
fn an_edit_that_fails_where_half_a_slice_is_there_takes_nothing_from_what_shall_be() {
    if skipped("an_edit_that_fails_where_half_a_slice_is_there_takes_nothing_from_what_shall_be") {
        return;
    }
    let node = TestNode::start();
    node.up(&slice("s", SLEEPER, "")).unwrap();
    let [descriptor, _] = node.files_of("s");
    let mut described: serde_json::Value = serde_json::from_slice(&std::fs::read(&descriptor).unwrap()).unwrap();
    let functions = described["spec"]["functions"].as_array_mut().unwrap();
    let mut two = functions[0].clone();
    let rootfs = two["image"]["rootfs"].as_str().unwrap().to_owned();
    two["name"] = "two".into();
    two["image"]["rootfs"] = format!("{rootfs}-of-two").into();
    functions.push(two);
    std::fs::write(&descriptor, described.to_string()).unwrap();
    kill_daemon(&node);

    failure(node.up(&slice("s", &SLEEPER.replace("[sh,", "[/no/such/program,"), "")));
    let kept: serde_json::Value = serde_json::from_slice(&std::fs::read(&descriptor).unwrap()).unwrap();
    assert_eq!(kept, described);
    std::os::unix::fs::symlink(&rootfs, format!("{rootfs}-of-two")).unwrap();
    eventually("both run", || runs_as(&node, &["one", "two"]));
    node.down_and_check();
}

#[test]
fn what_was_to_go_does_not_come_back_by_an_edit_that_fails() {
    if skipped("what_was_to_go_does_not_come_back_by_an_edit_that_fails") {
        return;
    }
    let node = TestNode::start();
    let two = SLEEPER.replace("one,", "two,");
    node.up(&slice("s", &format!("{SLEEPER}, {two}"), "")).unwrap();
    let ids = node.spoil_ids();
    assert!(matches!(node.call(&Request::Down { slices: Vec::new() }), Err(CallError::Failed(_))));
    node.mend_ids(&ids);
    let said = failure(node.up(&slice("s", &SLEEPER.replace("[sh,", "[/no/such/program,"), "")));
    assert!(said.contains("nothing of the slice is left"), "{said}");
    node.check_gone();
}

#[test]
fn where_one_container_cannot_go_the_others_go_and_none_starts_again() {
    if skipped("where_one_container_cannot_go_the_others_go_and_none_starts_again") {
        return;
    }
    let node = TestNode::start();
    let two = SLEEPER.replace("one,", "two,");
    node.up(&slice("s", &format!("{SLEEPER}, {two}"), "")).unwrap();
    let pin = node.pin("s", "one");
    assert!(matches!(node.call(&Request::Down { slices: Vec::new() }), Err(CallError::Failed(_))));
    std::thread::sleep(Duration::from_millis(300));
    assert!(runs_as(&node, &[]), "{:?}", node.processes());
    drop(pin);
    node.down_and_check();
}

#[test]
fn what_was_half_taken_away_is_made_anew_where_it_shall_be_again() {
    if skipped("what_was_half_taken_away_is_made_anew_where_it_shall_be_again") {
        return;
    }
    let node = TestNode::start();
    let function = |name: &str| {
        format!(
            "{{name: {name}, image: {{rootfs: rootfs}}, command: [reflect, p, q], ports: [{{name: p}}, {{name: q}}]}}"
        )
    };
    let linked = format!("{}, {}", function("a"), function("b"));
    let alone = format!("{SLEEPER}, {}", SLEEPER.replace("one,", "two,"));
    // Where there are links, no more than the first one is begun with; else no more than the first function.
    for (functions, links, ports) in [(linked, "{between: [a/p, b/p]}, {between: [a/q, b/q]}", 4), (alone, "", 0)] {
        let text = slice("s", &functions, links);
        node.up(&text).unwrap();
        let ids = node.spoil_ids();
        assert!(matches!(node.call(&Request::Down { slices: Vec::new() }), Err(CallError::Failed(_))), "{links}");
        node.mend_ids(&ids);
        node.up(&text).unwrap();
        eventually("they run, and have their ports", || {
            let (processes, there) = (node.processes(), node.stats().ports);
            let all_run = processes.iter().all(|process| process.state == ProcessState::Running);
            (processes.len(), there.len()) == (2, ports) && all_run && there.iter().all(|port| port.attached)
        });
        assert_eq!(node.up(&text).unwrap(), 0);
    }
    node.down_and_check();
}

#[test]
fn what_belongs_to_no_slice_and_cannot_go_keeps_no_node_from_starting() {
    if skipped("what_belongs_to_no_slice_and_cannot_go_keeps_no_node_from_starting") {
        return;
    }
    let node = TestNode::start();
    std::fs::create_dir_all(node.directory_of("ghost", "f")).unwrap();
    let ids = node.spoil_ids();
    kill_daemon(&node);
    assert_eq!(node.status().daemon_restarts, 1, "the next one stays");
    node.mend_ids(&ids);
    std::fs::create_dir_all(node.directory_of("ghost", "f")).unwrap();
    let exec = node.directory_of("", ".exec-1-1.log");
    std::fs::write(&exec, "").unwrap();
    kill_daemon(&node);
    assert!(!exec.exists(), "it is of an execution that its daemon did not outlive");
    assert!(!node.directory_of("ghost", "f").exists());
    node.down_and_check();
}

#[test]
fn a_function_goes_on_with_the_image_that_it_was_started_of() {
    let name = "a_function_goes_on_with_the_image_that_it_was_started_of";
    let has_umoci = Command::new("umoci").arg("--version").output().is_ok();
    if skipped(name) || !has_umoci {
        println!("SKIPPED {name}: needs umoci");
        return;
    }
    let node = TestNode::start();
    let directory = node.make_layout("77");
    let function = r#"{name: one, image: {ociLayout: app}, command: [busybox, sleep, "1000"]}"#;
    node.up(&slice("s", function, "")).unwrap();
    let before = node.process("one");
    assert_eq!(before.uid & 0xffff, 77);
    // It is gone, or another one lies there.
    std::fs::remove_dir_all(directory).unwrap();
    kill_daemon(&node);
    let after = node.process("one");
    assert_eq!((after.pid, after.uid), (before.pid, before.uid));
    kill(before.pid.unwrap());
    eventually("it runs again", || node.process("one").pid.is_some_and(|pid| Some(pid) != before.pid));
    assert_eq!(node.process("one").uid, before.uid);

    let other = r#"{name: one, image: {rootfs: rootfs}, command: [/no/such/program]}"#;
    let said = failure(node.up(&slice("s", other, "")));
    assert!(said.contains("the slice is as it was before"), "{said}");
    assert_eq!((node.process("one").uid, node.process("one").state), (before.uid, ProcessState::Running));
    node.up(&slice("s", &function.replace("1000", "2000"), "")).unwrap();
    assert_eq!(node.process("one").uid, before.uid);
    node.down_and_check();
}
