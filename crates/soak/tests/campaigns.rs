//! The campaigns of `make soak`, for seconds: the same code.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Result;
use soak::course::Course;
use soak::outcome::Outcome;
use soak::site::Site;
use soak::{kills, pools, replace, restarts, upf_kills};

/// One after the other: each has processes enough for two cores.
static MACHINE: Mutex<()> = Mutex::new(());

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_kaista-soak"))
}

fn clean(seconds: u64, events: u64, run: impl FnOnce(&Course) -> Result<Outcome>) {
    let _machine = MACHINE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let outcome = run(&Course::begin(Duration::from_secs(seconds), events, false)).unwrap();
    outcome.remarks().for_each(|remark| println!("{remark}"));
    println!("{outcome}");
    assert!(outcome.is_clean() && outcome.events >= events, "{outcome}; {:?}", outcome.failures);
}

fn skipped(test: &str) -> bool {
    let missing = Site::missing();
    if let Some(reason) = &missing {
        println!("SKIPPED {test}: {reason}");
    }
    missing.is_some()
}

#[test]
fn whatever_is_killed_or_stopped_nothing_is_lost_but_what_the_dead_had() {
    if !skipped("whatever_is_killed_or_stopped_nothing_is_lost_but_what_the_dead_had") {
        clean(5, 30, |course| kills::run(course, program()));
    }
}

#[test]
fn a_daemon_that_is_replaced_over_and_over_loses_nothing() {
    if !skipped("a_daemon_that_is_replaced_over_and_over_loses_nothing") {
        clean(0, 3, |course| restarts::run(course, program()));
    }
}

#[test]
fn a_pool_that_is_scaled_loses_nothing_and_a_member_that_is_killed_only_what_it_held() {
    clean(1, 28, |course| pools::run(course, program()));
}

#[test]
fn a_hostile_peer_harms_nobody_but_itself() {
    // Beside the others, as nothing needs to be fast; in a process of its own, as they count what theirs holds.
    let minute = ["--seconds-each", "60", "--events", "100", "hostile"];
    let output = Command::new(program()).args(minute).output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn whenever_a_upf_is_killed_under_traffic_every_session_forwards_again() {
    clean(0, 3, |course| upf_kills::run(course, program(), 300));
}

#[test]
fn a_upf_that_is_replaced_loses_no_packet_no_order_no_session_and_no_count() {
    clean(0, 3, |course| replace::run(course, program(), 300));
}
