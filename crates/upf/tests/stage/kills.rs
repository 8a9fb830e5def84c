//! `kill -9` under traffic, again and again: every session forwards again, and what was used is counted.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use pfcp::Request;

use super::stage::{Stage, teid_of};
use super::{end, number, simple};

/// A UPF with so many sessions; their TEIDs.
fn begin(net: u8, sessions: u32) -> (Stage, Vec<u32>, u64) {
    let mut stage = Stage::new(net, "", sessions.next_power_of_two() as usize);
    stage.start();
    stage.associate();
    let established = stage.flood((0..sessions).map(|number| Request::SessionEstablishment(simple(number))));
    let teids = established.iter().map(teid_of).collect();
    let seid = established[0].up_f_seid.seid;
    (stage, teids, seid)
}

/// Kills the process under the traffic of these UEs and starts another. How long after that has begun the first of them, and
/// all of them, were forwarded again.
fn kill(stage: &mut Stage, teids: &[u32], ues: &BTreeSet<u32>) -> [Duration; 2] {
    let until = Instant::now() + Duration::from_millis(20);
    while Instant::now() < until {
        stage.offer(teids, ues.iter().copied());
        stage.arrived_from();
    }
    stage.kill();
    stage.settle_ues();
    let began = stage.spawn();
    let (mut missing, mut first) = (ues.clone(), None);
    while !missing.is_empty() {
        assert!(began.elapsed() < Duration::from_secs(20), "{} do not come; {}", missing.len(), stage.log());
        stage.offer(teids, missing.iter().copied().take(64));
        for ue in stage.arrived_from() {
            missing.remove(&ue);
            first = first.or(Some(began.elapsed()));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    [first.unwrap_or_default(), began.elapsed()]
}

fn spread(sessions: u32, samples: u32) -> BTreeSet<u32> {
    let samples = samples.min(sessions).max(2);
    (0..samples).map(|sample| (u64::from(sample) * u64::from(sessions - 1) / u64::from(samples - 1)) as u32).collect()
}

/// Prints quantiles of what was measured.
fn tell(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let [least, median, most] = [0, times.len() / 2, times.len() - 1].map(|at| times[at].as_secs_f64());
    println!("{name} min {least:.3} s, median {median:.3} s, max {most:.3} s");
}

fn campaign(net: u8, sessions: u32, kills: u32, limit: Option<Duration>) {
    let (mut stage, teids, seid) = begin(net, sessions);
    let recovery = stage.recovery();
    let ues = spread(sessions, 1_000);
    let (mut firsts, mut alls) = (vec![], vec![]);
    for _ in 0..kills {
        let [first, all] = kill(&mut stage, &teids, &ues);
        firsts.push(first);
        alls.push(all);
        assert_eq!(stage.recovery(), recovery);
    }
    // Each session forwards.
    let all: BTreeSet<u32> = (0..sessions).collect();
    let mut missing = all.clone();
    let began = Instant::now();
    while !missing.is_empty() && began.elapsed() < Duration::from_secs(20) {
        stage.offer(&teids, missing.iter().copied().take(256));
        for ue in stage.arrived_from() {
            missing.remove(&ue);
        }
    }
    stage.settle_ues();
    let (counted, arrived) = (end(&mut stage, seid) / stage.octets(teids[0], 0), stage.of_the_first());
    println!("upf-kills: {kills} events, {} sessions lost, {counted} packets counted of {arrived}", missing.len());
    let over = limit.map_or(0, |limit| alls.iter().filter(|all| **all > limit).count());
    tell("upf-kills: first session forwards after", firsts);
    tell(&format!("upf-kills: all of {} sampled sessions forward after", ues.len()), alls);
    assert!(missing.is_empty(), "{} sessions are lost", missing.len());
    let in_flight = u64::from(kills) * port::BURST_MAX as u64;
    assert!((arrived..=arrived + in_flight).contains(&counted), "{counted} of {arrived}");
    assert_eq!(over, 0, "times in which the sampled sessions took longer than {limit:?}");
}

#[test]
fn whenever_a_upf_is_killed_under_traffic_every_session_forwards_again() {
    campaign(70, number("SESSIONS", 300), number("KILLS", 3), None);
}

/// In a release build: `cargo test --release -p upf --test restart campaign -- --ignored --nocapture`.
#[test]
#[ignore = "a campaign of some minutes"]
fn campaign_of_a_hundred_kills_with_a_hundred_thousand_sessions() {
    campaign(71, number("SESSIONS", 100_000), number("KILLS", 100), Some(Duration::from_millis(500)));
}
