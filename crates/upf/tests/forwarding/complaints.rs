//! What peers are told of tunnels that are not there, and that they are told nothing while sessions are missing for a while.

use std::time::Instant;

use port::synthetic::{Captured, Synthetic};
use upf::function::{Plan, Upf};
use upf::tables::SessionUpdate;

use crate::sessions::{downlink, info, session};

/// A G-PDU with nothing in it.
fn uplink(teid: u32) -> Vec<u8> {
    let mut frame = downlink(1, 0, 8 + 8);
    frame[26..34].copy_from_slice(&[10, 3, 0, 2, 10, 3, 0, 1]);
    frame[24..26].fill(0);
    let checksum = upf::ip::checksum(upf::ip::sum(&frame[14..34]));
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame[34..46].copy_from_slice(&[0x08, 0x68, 0x08, 0x68, 0, 16, 0, 0, 0x30, 0xff, 0, 0]);
    frame[46..50].copy_from_slice(&teid.to_be_bytes());
    frame
}

/// A UPF to which a packet has come by a tunnel that is not there.
fn upf() -> (Upf, Captured) {
    let n3 = Synthetic::new(vec![uplink(0x11)]).once().info(info("n3", "10.3.0.1", 1, port::Steering::Teid));
    let n6 = Synthetic::new(vec![]).info(info("n6", "10.6.0.1", 1, port::Steering::UeAddress)).open();
    let (n3, sent) = n3.open_captured();
    (Upf::new(&Plan::default(), n3, n6).unwrap(), sent)
}

/// Error indications that are sent, when the slow path reads what workers have left.
fn told(upf: &mut Upf, sent: &Captured) -> usize {
    upf.slow_path.run_once(Instant::now());
    while upf.workers[0].run_once() {}
    sent.take().iter().filter(|frame| frame[12..14] == [8, 0] && frame[43] == 26).count()
}

#[test]
fn a_peer_is_told_of_a_tunnel_that_is_not_there() {
    let (mut upf, sent) = upf();
    while upf.workers[0].run_once() {}
    assert_eq!(told(&mut upf, &sent), 1);
}

#[test]
fn nobody_is_told_while_sessions_are_missing_for_a_while() {
    let (mut upf, sent) = upf();
    upf.tables.set_incomplete(true);
    while upf.workers[0].run_once() {}
    assert_eq!(told(&mut upf, &sent), 0);
    crate::sessions::stop(&mut upf);
    assert_eq!(upf.counts.dropped(upf::drops::DropReason::UnknownTeid), 1);
}

#[test]
fn nobody_is_told_of_a_session_that_has_come_meanwhile() {
    let (mut upf, sent) = upf();
    while upf.workers[0].run_once() {}
    let (tables, worker) = (upf.tables.clone(), &mut upf.workers[0]);
    std::thread::scope(|scope| {
        let put = scope.spawn(|| tables.apply(vec![SessionUpdate::Put(session(1, 0x11, 1))]).unwrap());
        while !put.is_finished() {
            worker.run_once();
        }
    });
    assert_eq!(told(&mut upf, &sent), 0);
}
