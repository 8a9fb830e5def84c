//! Planned replacements: `kaista replace FUNCTION` under traffic loses no packet, and one that fails changes nothing.

use std::os::unix::fs::PermissionsExt;
use std::process::Child;
use std::time::Duration;

use e2e::{Census, Node, PATIENCE, assert_nothing_is_missing, eventually, machine, skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// How many there are of each function, uplink and downlink.
const REPLACEMENTS: usize = 3;

/// `load` sends as a UE by `ran` and as a data network by `upf`, and takes what comes out at the other end. A forwarder lies on the
/// way. Rings are larger than by default: what waits in them while a process is replaced can be that of a second on a busy machine.
const SLICE: &str = "\
apiVersion: kaista.dev/v1alpha1
kind: Slice
metadata: {name: replace}
spec:
  functions:
    - name: load
      image: {rootfs: rootfs}
      command: [/bin/busybox, sleep, '1000000']
      ports:
        - {name: ue, addresses: [10.60.0.1/24], routes: [{to: 0.0.0.0/0, via: 10.60.0.254}]}
        - {name: dn, addresses: [10.6.0.2/24], routes: [{to: 10.60.0.0/24, via: 10.6.0.1}]}
    - name: fwd
      image: {rootfs: rootfs}
      command: [/bin/kaista-traffic, forward, --port, in, --port, out, --addresses, keep]
      ports: [{name: in}, {name: out}]
    - name: ran
      image: {rootfs: rootfs}
      command: [/bin/kaista-ran, --config, /etc/kaista/ran.yaml]
      files:
        /etc/kaista/ran.yaml: |
          gnb: {port: n3}
          ue: {port: uu}
          smf: {address: 10.4.0.2, upf: 10.4.0.1, heartbeatMs: 1000}
          sessions:
            - {ue: 10.60.0.1, qfi: 9, downlinkTeid: 0x1001, accessInstance: access, networkInstance: internet}
      ports:
        - {name: n3, addresses: [10.3.0.2/24], mtu: 9000}
        - {name: uu}
        - {name: n4, interface: n4, addresses: [10.4.0.2/24]}
    - name: upf
      image: {rootfs: rootfs}
      command: [/bin/kaista-upf, --config, /etc/kaista/upf.yaml]
      stateDirectory: /data
      files:
        /etc/kaista/upf.yaml: |
          stateDirectory: /data
          n4: {listen: '10.4.0.1:8805', nodeId: 10.4.0.1, heartbeatS: 1}
          n3: {port: n3, networkInstances: [access]}
          n6: {port: n6, networkInstances: [internet]}
      ports:
        - {name: n3, steering: teid, addresses: [10.3.0.1/24], mtu: 9000}
        - {name: n6, steering: ue-address, addresses: [10.6.0.1/24], routes: [{to: 0.0.0.0/0, via: 10.6.0.2}]}
        - {name: n4, interface: n4, addresses: [10.4.0.1/24]}
  links:
    - {between: [load/ue, ran/uu], ringSize: 8MiB}
    - {between: [ran/n3, upf/n3], ringSize: 8MiB}
    - {between: [upf/n6, fwd/in], ringSize: 8MiB}
    - {between: [fwd/out, load/dn], ringSize: 8MiB}
    - {between: [ran/n4, upf/n4]}
";

fn up(node: &Node) {
    node.up_with(&["kaista-traffic", "kaista-ran", "kaista-upf"], SLICE);
}

/// Packets of the UE, or for it, which go on until told to stop.
fn load(node: &Node, uplink: bool) -> Child {
    let (sink, arguments): (_, &[&str]) = if uplink {
        ("dn", &["--port", "ue", "--from", "10.60.0.1", "--to", "10.6.0.2", "--via", "10.60.0.254"])
    } else {
        ("ue", &["--port", "dn", "--from", "10.6.0.2", "--to", "10.60.0.1", "--via", "10.6.0.1"])
    };
    // The session is there, and all neighbours are resolved.
    eventually("a short load passes", PATIENCE, || {
        (node.try_generate(sink, arguments, "0.3")?["found"]["received"].as_u64()? > 1_000).then_some(())
    });
    node.generate(sink, arguments)
}

/// Ends the load, of which nothing may be missing or have been refused.
fn end(node: &Node, load: Child) {
    let result = node.end_load(load);
    assert_nothing_is_missing(&result);
    assert_eq!(result["sent"]["accepted"], result["sent"]["offered"], "{result}");
}

fn process(node: &Node, name: &str) -> Value {
    let processes = node.json(&["ps"]);
    processes.as_array().unwrap().iter().find(|process| process["name"] == name).unwrap().clone()
}

#[test]
fn functions_that_are_replaced_under_traffic_lose_no_packet_and_leave_nothing_behind() {
    if skip(
        "functions_that_are_replaced_under_traffic_lose_no_packet_and_leave_nothing_behind",
        Node::missing_for_load(),
    ) {
        return;
    }
    let _machine = machine();
    let before = Census::take();
    {
        let node = Node::new();
        up(&node);
        for uplink in [true, false] {
            let load = load(&node, uplink);
            for _ in 0..REPLACEMENTS {
                for function in ["upf", "fwd"] {
                    let former = process(&node, function)["pid"].clone();
                    let replaced = node.json(&["replace", function]);
                    assert_ne!(replaced["pid"], former);
                    let now = process(&node, function);
                    assert_eq!((&now["pid"], &now["state"]), (&replaced["pid"], &Value::from("running")));
                    assert_eq!(now["restarts"], 0, "{now}");
                    std::thread::sleep(Duration::from_millis(200));
                }
            }
            end(&node, load);
        }
        let log = node.run(&["logs", "upf"]).stderr;
        let restored = String::from_utf8_lossy(&log).matches("the recovery time stamp stays").count();
        assert_eq!(restored, 2 * REPLACEMENTS);
    }
    before.assert_restored(Duration::from_secs(10));
}

#[test]
fn a_replacement_that_fails_changes_nothing() {
    if skip("a_replacement_that_fails_changes_nothing", Node::missing_for_load()) {
        return;
    }
    let _machine = machine();
    let node = Node::new();
    up(&node);
    let load = load(&node, true);
    let upf = node.path().join("rootfs/bin/kaista-upf");
    let former = process(&node, "upf")["pid"].clone();
    // One that ends at once, and one that never gets ready.
    for script in ["#!/bin/busybox sh\necho no such thing >&2; exit 3\n", "#!/bin/busybox sh\nsleep 1; exit 4\n"] {
        std::fs::rename(&upf, upf.with_extension("good")).unwrap();
        std::fs::write(&upf, script).unwrap();
        std::fs::set_permissions(&upf, std::fs::Permissions::from_mode(0o755)).unwrap();
        let refused = node.run(&["replace", "upf"]);
        assert_eq!(refused.status.code(), Some(1));
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(text.contains("the new process has ended; the old one goes on"), "{text}");
        std::fs::rename(upf.with_extension("good"), &upf).unwrap();
        assert_eq!(process(&node, "upf")["pid"], former);
    }
    let unknown = node.run(&["replace", "nobody"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("there is no function nobody"));
    node.kaista(&["replace", "upf"]);
    end(&node, load);
}

/// Whoever dies, one of the two is in charge afterwards, and none of the other is left.
#[test]
fn whoever_is_killed_in_a_replacement_one_process_is_in_charge() {
    if skip("whoever_is_killed_in_a_replacement_one_process_is_in_charge", Node::missing_for_load()) {
        return;
    }
    let _machine = machine();
    let before = Census::take();
    {
        let node = Node::new();
        up(&node);
        let status = |field: &str| node.json(&["status"])[field].as_i64().unwrap();
        for (round, ms) in [5, 60, 120, 5, 60, 120, 5, 60, 120].into_iter().enumerate() {
            let load = load(&node, true);
            let victim = match round / 3 {
                0 => status("daemonPid"),
                1 => status("keeperPid"),
                _ => process(&node, "upf")["pid"].as_i64().unwrap(),
            };
            let mut replace = node.spawn(&["replace", "upf"]);
            std::thread::sleep(Duration::from_millis(ms));
            let _ = kill(Pid::from_raw(victim as i32), Signal::SIGKILL);
            let _ = replace.wait();
            eventually("one process runs", PATIENCE, || {
                let processes: Value = serde_json::from_slice(&node.run(&["ps", "--json"]).stdout).ok()?;
                let all = processes.as_array()?;
                all.iter().all(|process| process["state"] == "running").then_some(())
            });
            node.wait_for_more("dn", 1_000);
            assert_eq!(upfs(&node), 1, "round {round}");
            node.end_load(load);
        }
    }
    before.assert_restored(Duration::from_secs(10));
}

/// Processes of the UPF's program in the function's network namespace.
fn upfs(node: &Node) -> usize {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let here = namespace(&process(node, "upf")["pid"].to_string());
    assert!(here.is_some());
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let names = processes.filter_map(|entry| entry.file_name().into_string().ok());
    let program = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    names.filter(|pid| program(pid).trim() == "kaista-upf" && namespace(pid) == here).count()
}
