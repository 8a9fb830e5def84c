//! Containers are what they are promised to be: each test looks from inside, or at what the kernel says.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use runtime::{Container, ContainerSpec, IdRange, IdRanges, Sandbox, State, StateDirectory};
use support::{Node, containers};

fn shell(line: &str) -> Option<Vec<String>> {
    Some(["/bin/busybox", "sh", "-c", line].map(String::from).to_vec())
}

#[test]
fn a_container_is_unprivileged_in_every_respect() {
    needs!("a_container_is_unprivileged_in_every_respect", containers());
    let node = Node::new();
    let image = node.busybox(|_| {});
    let id = node.function("plain");
    let container = node.idle(&id, &image);

    let confinement = container.container.confinement().expect("confinement");
    assert_eq!(confinement.shortcomings(), Vec::<String>::new());
    let range = container.sandbox.ids();
    assert!(confinement.uids.iter().all(|uid| (range.first..range.first + IdRange::SIZE).contains(uid)));

    // And the same of a process that joins it.
    let status = container.sh("cat /proc/self/status");
    for line in [
        "CapInh:\t0000000000000000",
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "CapAmb:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "Uid:\t1000\t1000\t1000\t1000",
    ] {
        assert!(status.contains(line), "{line} is not in\n{status}");
    }
    assert!(!container.exec(&["/bin/busybox", "touch", "/etc/x"]).status.success(), "the root is read-only");
}

#[test]
fn a_container_sees_its_own_mounts_and_no_other() {
    needs!("a_container_sees_its_own_mounts_and_no_other", containers());
    let node = Node::new();
    let image = node.busybox(|_| {});
    let id = node.function("mounts");
    let state = StateDirectory { host: node.layout.function_state_dir(&id), container: "/var/lib/function".into() };
    let command = shell("cat /proc/self/mountinfo; echo kept > /var/lib/function/x");
    let spec = ContainerSpec { command, state_directory: Some(state.clone()), ..ContainerSpec::new(image, "mounts") };
    let table = node.run(&id, &spec);

    let mut seen = BTreeMap::new();
    for line in table.lines() {
        let (left, right) = line.split_once(" - ").unwrap_or_else(|| panic!("not a mount: {line}"));
        let fields: Vec<&str> = left.split(' ').collect();
        let (source, point, options) = (fields[3], fields[4], fields[5]);
        let kind = right.split(' ').next().expect("a type");
        seen.insert(point.to_owned(), kind.to_owned());
        let fine = match (point, kind) {
            ("/", "overlay") | ("/run/kaista", _) => options.split(',').any(|option| option == "ro"),
            ("/var/lib/function", _) => true,
            (_, "proc" | "sysfs" | "tmpfs" | "devpts" | "mqueue") if source == "/" || kind == "proc" => true,
            // Masked files and the OCI default devices are bind mounts of the host's device nodes.
            (_, "devtmpfs" | "tmpfs") => ["/null", "/zero", "/full", "/tty", "/random", "/urandom"].contains(&source),
            (_, "devpts") => true,
            _ => false,
        };
        assert!(fine, "{line}");
    }
    for point in ["/", "/proc", "/sys", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/tmp", "/run", "/run/kaista"] {
        assert!(seen.contains_key(point), "{point} is not in {seen:?}");
    }
    assert_eq!(fs::read_to_string(state.host.join("x")).expect("written by the function"), "kept\n");
}

#[test]
fn files_of_the_image_belong_to_the_container_s_root_and_laid_files_hide_them() {
    needs!("files_of_the_image_belong_to_the_container_s_root_and_laid_files_hide_them", containers());
    let node = Node::new();
    let image = node.busybox(|root| {
        fs::create_dir_all(root.join("usr/share")).expect("made");
        std::os::unix::fs::symlink("usr/share", root.join("share")).expect("made");
        fs::write(root.join("etc/motd"), "image").expect("written");
    });
    let id = node.function("files");
    let files: BTreeMap<PathBuf, String> =
        [("/etc/motd", "laid"), ("/share/deep/x", "new")].map(|(path, text)| (path.into(), text.into())).into();
    let line = "stat -c '%u %g %a' /bin/busybox /etc; cat /etc/motd /usr/share/deep/x; hostname; pwd; cat /etc/hosts";
    let spec = ContainerSpec { command: shell(line), files, ..ContainerSpec::new(image, "inside") };
    let printed = node.run(&id, &spec);
    assert!(printed.starts_with("0 0 755\n0 0 755\nlaidnewinside\n/\n127.0.0.1 localhost inside\n"), "{printed}");
}

#[test]
fn limits_and_cores_are_in_effect() {
    needs!("limits_and_cores_are_in_effect", containers());
    let node = Node::new();
    let image = node.busybox(|_| {});
    let id = node.function("limits");
    let command = Some(["/bin/busybox", "sleep", "1000"].map(String::from).to_vec());
    let core = *runtime::Host::online_cores().expect("cores").last().expect("a core");
    let spec = ContainerSpec {
        command,
        memory: Some(32 << 20),
        pids: 20,
        cores: vec![core],
        ..ContainerSpec::new(image, "limits")
    };
    let running = node.launch(&id, &spec);
    assert_eq!(running.container.confinement().expect("confinement").cores, [core]);
    assert_eq!(running.sh("nproc").trim(), "1");

    let all = runtime::Host::online_cores().expect("cores");
    running.container.set_cores(&all).expect("set");
    assert_eq!(running.container.confinement().expect("confinement").cores, all);

    let usage = running.container.usage().expect("usage");
    assert!(usage.pids >= 1 && usage.memory > 0 && usage.memory < 32 << 20, "{usage:?}");

    let bomb = running.exec(&["/bin/busybox", "sh", "-c", "for i in $(seq 40); do sleep 1 & done; wait"]);
    assert!(String::from_utf8_lossy(&bomb.stderr).contains("fork"), "40 processes in a container of 20");
    // tmpfs counts towards the memory limit, so this process is killed by it or refused by the tmpfs's size.
    let hog = running.exec(&["/bin/busybox", "dd", "if=/dev/zero", "of=/tmp/x", "bs=1M", "count=64"]);
    assert!(!hog.status.success(), "64 MiB in a container of 32 MiB");
}

#[test]
fn ping_works_and_low_ports_can_be_bound_without_a_capability() {
    needs!("ping_works_and_low_ports_can_be_bound_without_a_capability", containers(), support::program("python3"));
    let node = Node::new();
    let image = node.busybox(|_| {});
    let id = node.function("net");
    let container = node.idle(&id, &image);
    let served = container.sh("echo hello > /tmp/f; busybox httpd -p 80 -h /tmp && wget -q -O - http://127.0.0.1/f");
    assert_eq!(served, "hello\n");
    let range = container.sh("cat /proc/sys/net/ipv4/ping_group_range");
    assert_eq!(range.split_whitespace().collect::<Vec<_>>(), ["0", "65535"], "as numbered inside");
    assert!(!container.exec(&["/bin/busybox", "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]).status.success());
}

#[test]
fn a_container_that_fails_to_start_says_why() {
    needs!("a_container_that_fails_to_start_says_why", containers());
    let node = Node::new();
    let image = node.busybox(|_| {});
    let id = node.function("broken");
    let sandbox = Sandbox::create(&node.layout, &id).expect("a sandbox");
    let container = Container::new(&node.layout, &node.runtime, &id);
    let spec = ContainerSpec { command: Some(vec!["/no/such/program".into()]), ..ContainerSpec::new(image, "broken") };
    container.prepare(&sandbox, &spec).expect("prepared");
    let created = container.create_command().to_command().stderr(std::process::Stdio::null()).status().expect("runs");
    assert!(!created.success());
    assert!(container.after_create().expect_err("no process").to_string().contains("/no/such/program"));
    container.delete().expect("deleted");
}

#[test]
fn a_container_can_be_made_again_in_its_sandbox() {
    needs!("a_container_can_be_made_again_in_its_sandbox", containers());
    let node = Node::new();
    let image = node.busybox(|_| {});
    let id = node.function("again");
    let first = node.idle(&id, &image);
    let before = first.sh("readlink /proc/self/ns/net; readlink /proc/self/ns/user");
    // Without a word to the first one: it is replaced.
    let second = node.idle(&id, &image);
    assert_eq!(second.sh("readlink /proc/self/ns/net; readlink /proc/self/ns/user"), before);
    assert!(matches!(second.container.state(), Ok(State::Running(_))));
    second.container.kill().expect("killed");
    assert_eq!(second.container.state().expect("a state"), State::Stopped);
    second.container.delete().expect("deleted");
    assert_eq!(second.container.state().expect("a state"), State::Absent);
    second.container.delete().expect("deleting twice is no error");
    assert!(Sandbox::open(&node.layout, &id).expect("looked").is_some(), "the sandbox stays");
    IdRanges::release(&node.layout, &id).expect("released");
}
