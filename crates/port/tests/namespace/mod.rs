//! Interfaces for tests, in a network namespace that a thread has to itself.
#![allow(dead_code)]

use std::process::Command;
use std::time::{Duration, Instant};

use port::{OpenOptions, Port};

/// Puts this thread into a new network namespace, where nothing is sent but what the test sends. Says why that cannot be.
pub fn enter() -> Result<(), String> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
        .map_err(|errno| format!("no network namespace can be made here ({errno})"))?;
    // The kernel's own neighbour discovery would only be in the way.
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    Ok(())
}

pub fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).status().expect("ip (package iproute2)");
    assert!(done.success(), "ip {arguments}");
}

/// Sets interfaces up. The kernel calls one up when its carrier is there, and sends nothing before.
pub fn up(names: &[&str]) {
    names.iter().for_each(|name| ip(&format!("link set {name} up")));
    let deadline = Instant::now() + Duration::from_secs(30);
    for name in names {
        loop {
            let shown = Command::new("ip").args(["-o", "link", "show", name]).output().unwrap();
            // A TAP device's state stays unknown.
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            if ["state UP", "state UNKNOWN"].iter().any(|state| shown.contains(state)) && shown.contains("LOWER_UP") {
                break;
            }
            assert!(Instant::now() < deadline, "{name} does not come up");
        }
    }
}

pub fn open(name: &str) -> Port {
    port::open(name, &OpenOptions::default()).unwrap()
}
