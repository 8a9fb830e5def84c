//! `kaista-upf` as a process that is killed: ports of a broker in this process, a gNB and a data network that are this test,
//! and a session manager on a loopback address.

#[path = "stage/replacing.rs"]
mod replacing;
mod stage;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pfcp::session::{Established, Modification};
use pfcp::{Request, Response};
use stage::{Stage, end, simple, teid_of};

fn establish(stage: &mut Stage, number: u32) -> Established {
    let Response::SessionEstablishment(response) = stage.ask(0, &Request::SessionEstablishment(simple(number))) else {
        panic!()
    };
    response.outcome.unwrap()
}

#[test]
fn a_upf_that_is_killed_goes_on_with_sessions_counts_and_time_stamp() {
    let mut stage = Stage::new(61, "", 1_000);
    stage.start();
    stage.associate();
    let recovery = stage.recovery();
    let sessions: Vec<_> = (0..20).map(|number| establish(&mut stage, number)).collect();
    let gone = establish(&mut stage, 20);
    end(&mut stage, gone.up_f_seid.seid);
    let octets = stage.uplink(teid_of(&sessions[3]), 3, 100);
    for round in 1..=5 {
        stage.kill();
        stage.start();
        stage.uplink(teid_of(&sessions[3]), 3, 100);
        assert_eq!(stage.recovery(), recovery, "round {round}");
    }
    let counted = end(&mut stage, sessions[3].up_f_seid.seid) / octets;
    // A kill may come between the count of a burst and its publication, if the test has waited too short.
    let in_flight = 5 * port::BURST_MAX as u64;
    assert!((stage.arrived()..=stage.arrived() + in_flight).contains(&counted), "{counted} of {}", stage.arrived());
    let next = establish(&mut stage, 20);
    assert!(sessions.iter().chain([&gone]).all(|other| teid_of(other) != teid_of(&next)));
    assert!(next.up_f_seid.seid > gone.up_f_seid.seid);
}

#[test]
fn what_was_accepted_is_there_after_a_kill_and_nothing_else() {
    let mut stage = Stage::new(62, "", 10_000);
    stage.start();
    stage.associate();
    let (mut number, mut there, mut recovery) = (0, vec![], None);
    for round in 0..8_u32 {
        recovery = recovery.or(Some(stage.recovery()));
        let killed = AtomicBool::new(false);
        let victim = stage.take_child();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(u64::from(30 + round * 17)));
                victim.kill();
                killed.store(true, Ordering::Release);
            });
            while !killed.load(Ordering::Acquire) {
                number += 1;
                // What is not answered may be there or not; it is asked for again after the restart.
                match stage.try_ask(0, &Request::SessionEstablishment(simple(number))) {
                    Some(Response::SessionEstablishment(response)) => {
                        there.push(response.outcome.unwrap().up_f_seid.seid)
                    }
                    _ => break,
                }
                if number % 3 == 0 {
                    let seid = there[there.len() / 2];
                    match stage.try_ask(seid, &Request::SessionDeletion) {
                        Some(Response::SessionDeletion(response)) => {
                            response.outcome.unwrap();
                            there.retain(|&other| other != seid);
                        }
                        _ => there.retain(|&other| other != seid),
                    }
                }
            }
        });
        stage.start();
        assert_eq!(Some(stage.recovery()), recovery);
        // The one that was not answered gets its answer now.
        if let Some(Response::SessionEstablishment(response)) = stage.ask_last_again() {
            there.push(response.outcome.unwrap().up_f_seid.seid);
        }
        for &seid in &there {
            let query = Request::SessionModification(Modification { flags: Modification::QAURR, ..Default::default() });
            let Response::SessionModification(response) = stage.ask(seid, &query) else { panic!() };
            assert!(response.outcome.is_ok(), "round {round}: {seid:#x} of {}", there.len());
        }
    }
    assert!(there.len() > 20, "{}", there.len());
}

#[test]
fn without_its_store_a_upf_has_a_later_time_stamp_and_no_sessions() {
    let mut stage = Stage::new(63, "", 1_000);
    stage.start();
    stage.associate();
    let before = stage.recovery();
    establish(&mut stage, 1);
    stage.kill();
    std::fs::write(stage.state().join("sessions.redb"), "spoilt").unwrap();
    stage.start();
    assert!(stage.recovery().is_after(before));
    let Response::SessionEstablishment(response) = stage.ask(0, &Request::SessionEstablishment(simple(1))) else {
        panic!()
    };
    assert!(response.outcome.is_err(), "there is no association");
}

#[test]
fn a_full_disk_costs_the_restart_and_not_the_service() {
    let mut stage = Stage::new(64, "mount -t tmpfs -o size=1600k tmpfs \"$STATE\"", 3_000);
    if !Stage::can_mount() {
        eprintln!("skipped: a_full_disk_costs_the_restart_and_not_the_service: no mount namespace");
        return;
    }
    stage.start();
    stage.associate();
    let told = |stage: &Stage| stage.log().contains("sessions would not survive a restart");
    let full = (0..2_900).find(|&number| {
        establish(&mut stage, number);
        told(&stage)
    });
    let full = full.unwrap_or_else(|| panic!("{}", stage.log()));
    assert!((full + 1..full + 20).all(|number| establish(&mut stage, number).up_f_seid.seid > 0));
}

#[test]
fn all_of_many_sessions_are_back_after_a_kill() {
    let count = 2_000;
    let mut stage = Stage::new(65, "", 4_096);
    stage.start();
    stage.associate();
    let all = stage.flood((0..count).map(|number| Request::SessionEstablishment(simple(number))));
    stage.kill();
    stage.spawn();
    for number in (0..count).step_by(111) {
        stage.await_uplink(teid_of(&all[number as usize]), number);
    }
    // Packets went through before N4 had everything, or at the latest then.
    stage.await_log("sessions=2000");
}
