//! Containers are what they are promised to be: each test looks from inside, or at what the kernel says.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use runtime::{
    Container, ContainerSpec, Exec, FunctionId, IdRange, IdRanges, Sandbox, State, StateDirectory, Terminal,
};
use support::{Node, containers, eventually, host, program};

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
fn what_a_container_is_given_is_seen_by_no_other_user_of_the_host() {
    needs!("what_a_container_is_given_is_seen_by_no_other_user_of_the_host", containers());
    let node = Node::new();
    let image = node.busybox(|root| fs::write(root.join("etc/secret"), "xyzzy").expect("written"));
    // The other user does not find it in the image's directory.
    fs::set_permissions(&image.rootfs, fs::Permissions::from_mode(0o700)).expect("permissions");
    let id = node.function("closed");
    let spec = ContainerSpec {
        command: shell("cat /etc/secret /etc/laid; echo $WORD; sleep 1000"),
        env: [("WORD".to_owned(), "xyzzy".to_owned())].into(),
        files: [(PathBuf::from("/etc/laid"), "xyzzy".to_owned())].into(),
        ..ContainerSpec::new(image, "closed")
    };
    let container = node.launch(&id, &spec);
    eventually("it has all of it", || container.printed() == "xyzzyxyzzyxyzzy\n");
    let found_by = |uid: u32| {
        let mut grep = Command::new("grep");
        grep.args(["-r", "-l", "xyzzy"]).arg(node.layout.run()).uid(uid).gid(uid);
        String::from_utf8_lossy(&grep.output().expect("grep").stdout).lines().count()
    };
    assert!(found_by(0) >= 3);
    assert_eq!(found_by(65534), 0);
    let neighbour = Sandbox::create(&node.layout, &node.function("neighbour")).expect("a sandbox").ids();
    assert_eq!(found_by(neighbour.first), 0, "nor by another container's root");
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
    let working_directory = Some("/made/for/it".into());
    let spec = ContainerSpec { command: shell(line), files, working_directory, ..ContainerSpec::new(image, "inside") };
    let printed = node.run(&id, &spec);
    assert!(
        printed.starts_with("0 0 755\n0 0 755\nlaidnewinside\n/made/for/it\n127.0.0.1 localhost inside\n"),
        "{printed}"
    );
}

#[test]
fn limits_and_cores_are_in_effect() {
    needs!("limits_and_cores_are_in_effect", containers());
    let node = Node::new();
    let image = node.busybox(|_| {});
    let id = node.function("limits");
    let command = Some(["/bin/busybox", "sleep", "1000"].map(String::from).to_vec());
    let core = *runtime::online_cores().expect("cores").last().expect("a core");
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

    let all = runtime::online_cores().expect("cores");
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
    needs!("ping_works_and_low_ports_can_be_bound_without_a_capability", containers(), support::program("ping"));
    let node = Node::new();
    let image = node.busybox(|root| support::copy_program(root, "ping"));
    let id = node.function("net");
    let container = node.idle(&id, &image);
    assert!(container.sh("/bin/ping -c 1 127.0.0.1").contains("1 received"));
    assert!(container.sh("/bin/ping -c 1 ::1").contains("1 received"));
    let served = container.sh("echo hello > /tmp/f; busybox httpd -p 80 -h /tmp && wget -q -O - http://127.0.0.1/f");
    assert_eq!(served, "hello\n");
    assert!(!container.exec(&["/bin/busybox", "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]).status.success());
}

#[test]
fn a_function_cannot_reserve_hugepages() {
    needs!("a_function_cannot_reserve_hugepages", containers());
    let node = Node::new();
    let image = node.busybox(|root| {
        fs::copy(std::env::current_exe().expect("this test"), root.join("bin/test")).expect("copied");
    });
    let id = node.function("huge");
    let container = node.idle(&id, &image);

    // The filter: this very program, static as it is, tries from inside.
    let tried = container.sh("INSIDE=1 /bin/test --exact inside_hugepages_are_refused --nocapture");
    assert!(tried.contains("all refused"), "{tried}");

    // The limit: where the kernel counts hugepages, the container may have none.
    let hierarchies = runtime::cgroup::Hierarchies::read().expect("cgroups");
    if !hierarchies.has("hugetlb") {
        println!("SKIPPED a_function_cannot_reserve_hugepages (limit): the kernel has no hugetlb controller");
        return;
    }
    let groups = support::cgroups(&node.layout, &id);
    let limits: Vec<_> = groups
        .iter()
        .flat_map(|dir| fs::read_dir(dir).expect("a cgroup"))
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            let name = path.file_name().expect("a name").to_string_lossy();
            name.starts_with("hugetlb.")
                && (name.ends_with("max") && !name.contains("failcnt") || name.ends_with("limit_in_bytes"))
        })
        .collect();
    assert!(!limits.is_empty());
    for limit in &limits {
        assert_eq!(fs::read_to_string(limit).expect("a limit").trim(), "0", "{}", limit.display());
        let members = fs::read_to_string(limit.with_file_name("cgroup.procs")).expect("members");
        let pid = container.container.first_process().expect("a process").to_string();
        assert!(members.lines().any(|member| member == pid));
    }
}

/// Not a test of its own: the part of the one above that runs in the container.
#[test]
fn inside_hugepages_are_refused() {
    if std::env::var_os("INSIDE").is_none() {
        return;
    }
    let refused = |what: &str, answer: i64| {
        let error = std::io::Error::last_os_error();
        assert!(answer == -1 && error.raw_os_error() == Some(libc::EPERM), "{what}: {answer}, {error}");
    };
    for (what, huge, plain) in [
        ("memfd_create", [c"x".as_ptr() as i64, libc::MFD_HUGETLB as i64, 0, 0], [c"x".as_ptr() as i64, 0, 0, 0]),
        (
            "mmap",
            [0, 2 << 20, 3, (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB) as i64],
            [0, 2 << 20, 3, (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as i64],
        ),
        (
            "shmget",
            [0, 2 << 20, (libc::IPC_CREAT | libc::SHM_HUGETLB | 0o600) as i64, 0],
            [0, 2 << 20, (libc::IPC_CREAT | 0o600) as i64, 0],
        ),
    ] {
        let number = match what {
            "mmap" => libc::SYS_mmap,
            "shmget" => libc::SYS_shmget,
            _ => libc::SYS_memfd_create,
        };
        let call = |args: [i64; 4]| {
            // SAFETY: the arguments are numbers and a C string; a mapping that is made is not used.
            #[allow(unsafe_code)]
            unsafe {
                libc::syscall(number, args[0], args[1], args[2], args[3], -1i64, 0i64)
            }
        };
        refused(what, call(huge));
        assert_ne!(call(plain), -1, "{what} without the flag: {}", std::io::Error::last_os_error());
    }
    println!("all refused");
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
    let first_process = second.container.first_process().expect("it runs");
    nix::sys::signal::kill(first_process, nix::sys::signal::Signal::SIGKILL).expect("sent");
    eventually("it has stopped", || second.container.state().expect("a state") == State::Stopped);
    second.container.delete().expect("deleted");
    assert_eq!(second.container.state().expect("a state"), State::Absent);
    second.container.delete().expect("deleting twice is no error");
    assert!(Sandbox::open(&node.layout, &id).expect("looked").is_some(), "the sandbox stays");
    IdRanges::release(&node.layout, &id).expect("released");
}

/// Nothing of the function is left anywhere that the kernel or the file system shows.
fn assert_nothing_left(node: &Node, id: &FunctionId) {
    let dir = node.layout.function_dir(id);
    assert!(!dir.exists(), "{} is left", dir.display());
    assert!(!node.layout.slice_dir(id.slice()).exists());
    assert!(!node.layout.runtime_root().join(id.container()).exists());
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let run = node.layout.run().to_str().expect("UTF-8").to_owned();
    assert!(!mounts.contains(&run), "{}", mounts.lines().filter(|line| line.contains(&run)).collect::<String>());
    assert_eq!(support::cgroups(&node.layout, id), Vec::<PathBuf>::new());
    for entry in fs::read_dir("/proc").expect("processes").flatten() {
        let cgroup = fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        let ours = cgroup.contains(&format!("/{}/", node.layout.cgroup()));
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        assert!(!ours || stat.contains(") Z "), "process {} is left: {stat}", entry.path().display());
    }
}

#[test]
fn after_delete_nothing_is_left() {
    needs!("after_delete_nothing_is_left", containers());
    let node = Node::new();
    let image = node.busybox(|_| {});
    let id = node.function("gone");
    let container = node.idle(&id, &image);
    container.sh("(sleep 1000 >/dev/null 2>&1 </dev/null &)");
    Sandbox::delete(&node.layout, &id).expect("deleted");
    assert_nothing_left(&node, &id);
    Sandbox::delete(&node.layout, &id).expect("deleting twice is no error");
}

#[test]
fn whatever_moment_the_daemon_is_killed_at_delete_finds_what_is_left() {
    needs!("whatever_moment_the_daemon_is_killed_at_delete_finds_what_is_left", containers());
    let node = Node::new();
    let image = node.busybox(|_| {});
    let id = node.function("killed");
    let command = Some(["/bin/busybox", "sleep", "1000"].map(String::from).to_vec());
    let spec = ContainerSpec { command, ..ContainerSpec::new(image, "killed") };
    let container = Container::new(&node.layout, &node.runtime, &id);
    let spawn = || {
        let null = std::process::Stdio::null;
        container.create_command().to_command().stdin(null()).stdout(null()).stderr(null()).spawn().expect("spawned")
    };

    // A sandbox of which only one namespace was mounted.
    Sandbox::create(&node.layout, &id).expect("a sandbox");
    let net = node.layout.function_dir(&id).join("ns/net");
    nix::mount::umount2(&net, nix::mount::MntFlags::MNT_DETACH).expect("unmounted");
    assert!(Sandbox::open(&node.layout, &id).expect("looked").is_none());
    Sandbox::create(&node.layout, &id).expect("made anew");
    nix::mount::umount2(&net, nix::mount::MntFlags::MNT_DETACH).expect("unmounted");
    Sandbox::delete(&node.layout, &id).expect("deleted");
    assert_nothing_left(&node, &id);

    // A container that was prepared and never made.
    container.prepare(&Sandbox::create(&node.layout, &id).expect("a sandbox"), &spec).expect("prepared");
    Sandbox::delete(&node.layout, &id).expect("deleted");
    assert_nothing_left(&node, &id);

    // One that was made and never started.
    container.prepare(&Sandbox::create(&node.layout, &id).expect("a sandbox"), &spec).expect("prepared");
    assert!(spawn().wait().expect("made").success());
    assert!(matches!(container.state().expect("a state"), State::Created(_)));
    Sandbox::delete(&node.layout, &id).expect("deleted");
    assert_nothing_left(&node, &id);

    // One whose making was killed, earlier or later.
    for millis in (0..30).step_by(2) {
        container.prepare(&Sandbox::create(&node.layout, &id).expect("a sandbox"), &spec).expect("prepared");
        let mut create = spawn();
        std::thread::sleep(std::time::Duration::from_millis(millis));
        create.kill().expect("killed");
        create.wait().expect("waited");
        // Made again over what is there, as a restarted daemon does, every other time.
        if millis % 4 == 0 {
            container.prepare(&Sandbox::create(&node.layout, &id).expect("a sandbox"), &spec).expect("prepared");
            assert!(spawn().wait().expect("made").success(), "{}", container.create_log());
            container.after_create().expect("confined");
        }
        Sandbox::delete(&node.layout, &id).expect("deleted");
        assert_nothing_left(&node, &id);
    }
}

#[test]
fn a_terminal_can_be_sent_to_whoever_asks() {
    needs!("a_terminal_can_be_sent_to_whoever_asks", containers());
    let node = Node::new();
    let image = node.busybox(|_| {});
    let id = node.function("tty");
    let container = node.idle(&id, &image);
    let (socket, pid_file) = (node.dir().join("console.sock"), node.dir().join("exec.pid"));
    let listener = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
    let exec = Exec {
        args: ["/bin/busybox", "sh", "-c", "tty; echo $COLOUR"].map(String::from).to_vec(),
        env: vec![("COLOUR".into(), "blue".into())],
        terminal: Terminal::Sent { socket, pid_file: pid_file.clone() },
        ..Exec::default()
    };
    let mut command = container.container.exec_command(&exec).expect("a command").to_command();
    let mut child = command.stdin(std::process::Stdio::null()).spawn().expect("spawned");
    let (stream, _) = listener.accept().expect("accepted");
    let mut master = support::receive_file(&stream);
    assert!(child.wait().expect("waited").success());
    assert!(fs::read_to_string(pid_file).expect("a pid").trim().parse::<i32>().is_ok());
    let mut printed = Vec::new();
    // Reading ends with EIO once the terminal has no other user.
    let _ = std::io::Read::read_to_end(&mut master, &mut printed);
    assert_eq!(String::from_utf8_lossy(&printed), "/dev/pts/0\r\nblue\r\n");
}

/// Says of each family of sockets whether it is to be had. The last number is that of vsock in the 32 bits that the kernel reads.
const SOCKETS: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
    long families[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, 38 /* ALG */, 40 /* vsock */, 0x100000028};
    for (int i = 0; i < 8; i++)
        printf("%s\n", syscall(SYS_socket, families[i], SOCK_DGRAM, 0) >= 0 ? "yes" : errno == EPERM ? "refused" : "no");
}
"#;

#[test]
fn a_function_has_the_sockets_that_its_namespace_confines_and_no_others() {
    let name = "a_function_has_the_sockets_that_its_namespace_confines_and_no_others";
    needs!(name, containers(), program("gcc"));
    let node = Node::new();
    let source = node.dir().join("sockets.c");
    fs::write(&source, SOCKETS).expect("written");
    let image = node.busybox(|root| {
        let program = root.join("bin/sockets");
        let (source, program) = (source.to_str().expect("UTF-8"), program.to_str().expect("UTF-8"));
        host("gcc", &["-static", "-o", program, source]);
    });
    let id = node.function("sockets");
    let command = Some(vec!["/bin/sockets".into()]);
    let printed = node.run(&id, &ContainerSpec { command, ..ContainerSpec::new(image, "sockets") });
    assert_eq!(printed, "yes\nyes\nyes\nyes\nrefused\nrefused\nrefused\nrefused\n");
}
