//! Steering: which queue a frame comes to.

use port::steering::{BUCKETS, BucketTable, teid_bucket};
use port::{PacketRef, PortInfo, Steering};

use crate::backend::{Backend, Declared};
use crate::rig::{Rig, packets, receive, until};

#[path = "tunnels.rs"]
mod tunnels;

use tunnels::{KINDS, teids};

const QUEUES: u16 = 3;
const FLOWS: usize = 256;

/// A frame of a flow, which differs from other flows in every key that there is, with its number in the flow.
fn frame(flow: u8, number: u8) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    frame[23] = 17;
    frame[26..34].copy_from_slice(&[10, 0, 1, flow, 10, 0, 0, flow]);
    frame[34..38].copy_from_slice(&[0x08, flow, 0x08, 0x68]);
    // GTP-U, TEID.
    frame[42..44].copy_from_slice(&[0x30, 0xff]);
    frame[46..50].copy_from_slice(&[0, 0, 0, flow]);
    frame[50..52].copy_from_slice(&[flow, number]);
    frame
}

fn flow_of(frame: &[u8]) -> (usize, u8) {
    (usize::from(frame[50]), frame[51])
}

fn steered(by: Steering) -> PortInfo {
    PortInfo { queues: QUEUES, steering: by, ..PortInfo::named("p") }
}

pub fn frames_reach_the_queue_that_owns_their_bucket_in_order(backend: &Backend) -> Declared {
    const ROUNDS: u8 = 4;
    backend.steers()?;
    for steering in [Steering::None, Steering::Teid, Steering::UeAddress, Steering::FiveTuple] {
        let frames: Vec<_> =
            (0..ROUNDS).flat_map(|number| (0..FLOWS).map(move |flow| frame(flow as u8, number))).collect();
        let mut rig;
        if backend.live.is_ok() {
            rig = backend.open_as(steered(steering), 2, Vec::new());
            send(&mut rig, &frames);
        } else {
            rig = backend.open_as(steered(steering), 1, frames);
        }
        let table = BucketTable::fixed(QUEUES.into());
        let mut next = [0; FLOWS];
        let mut on = [0; QUEUES as usize];
        until("all frames come", || {
            for (queue, pair) in rig.port.queues.iter_mut().enumerate() {
                for frame in receive(&mut *pair.rx) {
                    assert_eq!(table.queue(steering.bucket(&frame)), queue);
                    let (flow, number) = flow_of(&frame);
                    assert_eq!(number, next[flow], "order of flow {flow}");
                    next[flow] += 1;
                    on[queue] += 1;
                }
            }
            next == [ROUNDS; FLOWS]
        });
        let used = on.iter().filter(|count| **count > 0).count();
        assert_eq!(used, if steering == Steering::None { 1 } else { QUEUES.into() }, "{on:?}");
        assert!(rig.port.queues.iter().all(|pair| pair.rx.counters().invalid == 0));
    }
    Ok(())
}

/// Ports behind 152 bytes of options: a sender that has the whole frame could find them, a receiver may not.
pub fn frames_whose_ports_lie_deep_reach_the_queue_that_owns_their_bucket(backend: &Backend) -> Declared {
    backend.steers()?;
    let frames: Vec<_> = (0..FLOWS).map(|flow| frame_with_options(flow as u8)).collect();
    let mut rig;
    if backend.live.is_ok() {
        rig = backend.open_as(steered(Steering::FiveTuple), 2, Vec::new());
        send(&mut rig, &frames);
    } else {
        rig = backend.open_as(steered(Steering::FiveTuple), 1, frames);
    }
    let table = BucketTable::fixed(QUEUES.into());
    let mut come = 0;
    until("all frames come", || {
        for (queue, pair) in rig.port.queues.iter_mut().enumerate() {
            for frame in receive(&mut *pair.rx) {
                assert_eq!(table.queue(Steering::FiveTuple.bucket(&frame)), queue);
                come += 1;
            }
        }
        assert!(rig.port.queues.iter().all(|pair| pair.rx.counters().invalid == 0));
        come == FLOWS
    });
    Ok(())
}

pub fn tunnels_of_every_kind_spread_as_evenly_as_plain_ones(backend: &Backend) -> Declared {
    const TUNNELS: usize = 20 * BUCKETS;
    const AT_ONCE: usize = 256;
    // The 99.9 % quantile of chi-square with 127 degrees of freedom.
    const LIMIT: f64 = 181.99;
    backend.steers()?;
    let teids: Vec<u32> = teids(TUNNELS).collect();
    let all = KINDS.into_iter().flat_map(|kind| teids.iter().map(move |teid| (kind, *teid)));
    let frames: Vec<_> = all.zip(0..).map(|((kind, teid), number)| tunnels::frame(kind, teid, number)).collect();
    let is_live = backend.live.is_ok();
    let peers = if is_live { 2 } else { 1 };
    let mut rig = backend.open_as(steered(Steering::Teid), peers, if is_live { vec![] } else { frames.clone() });
    let (table, mut come) = (BucketTable::fixed(QUEUES.into()), 0);
    let mut in_bucket = [[0_u32; BUCKETS]; KINDS.len()];
    for (some, before) in frames.chunks(AT_ONCE).zip((0..).step_by(AT_ONCE)) {
        if is_live {
            send(&mut rig, some);
        }
        until("all frames come", || {
            for (queue, pair) in rig.port.queues.iter_mut().enumerate() {
                for frame in receive(&mut *pair.rx) {
                    let number = u32::from_be_bytes(*frame.last_chunk().unwrap()) as usize;
                    let bucket = teid_bucket(teids[number % TUNNELS]);
                    assert_eq!(table.queue(bucket), queue, "{:?}", KINDS[number / TUNNELS]);
                    in_bucket[number / TUNNELS][usize::from(bucket)] += 1;
                    come += 1;
                }
            }
            come >= before + some.len()
        });
    }
    for (kind, in_bucket) in KINDS.iter().zip(in_bucket) {
        assert_eq!(in_bucket.iter().sum::<u32>() as usize, TUNNELS, "{kind:?}");
        let expected = (TUNNELS / BUCKETS) as f64;
        let chi_square: f64 = in_bucket.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum();
        assert!(chi_square < LIMIT, "{kind:?}: {chi_square}");
    }
    Ok(())
}

/// A datagram of IPv6 with a header of options.
fn frame_with_options(flow: u8) -> Vec<u8> {
    const UNITS: u8 = 19;
    let mut frame = vec![0; 300];
    frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    frame[20] = 60;
    frame[50] = flow;
    frame[54..56].copy_from_slice(&[17, UNITS - 1]);
    let udp = 54 + 8 * usize::from(UNITS);
    frame[udp..udp + 4].copy_from_slice(&[0x08, flow, 0x08, 0x68]);
    frame
}

/// All frames of a flow by the same queue of the far end, which has two where it can. A queue may come up a little later than its port.
fn send(rig: &mut Rig, frames: &[Vec<u8>]) {
    let queues = &mut rig.far.peer().queues;
    for frame in frames {
        let queue = flow_of(frame).0 % queues.len();
        until("a frame is taken", || queues[queue].tx.send(&[PacketRef::from_slice(frame)]) == 1);
    }
}

/// Nothing goes with a bucket. Whether something that waited was sent, though its bucket is about to leave.
struct Late(bool);

impl port::Buckets for Late {
    type State = ();

    fn has_sent(&mut self) -> bool {
        std::mem::take(&mut self.0)
    }

    fn leave(&mut self, _bucket: u8, _to: usize) {}

    fn arrive(&mut self, _bucket: u8, _from: usize, (): ()) {}
}

pub fn buckets_go_where_the_function_wants_them(backend: &Backend) -> Declared {
    backend.resteers?;
    let mut rig = backend.open_as(steered(Steering::UeAddress), 2, Vec::new());
    let (mut decider, mut owners) = port::owner::group::<()>(&[rig.port.steering().unwrap()], &[]).unwrap();
    let flows: Vec<_> = (0..FLOWS).map(|flow| frame(flow as u8, 0)).collect();
    for owner in [2, 0, 1] {
        decider.set_owners(&[owner; BUCKETS]).unwrap();
        until("the change is over", || {
            for (pair, owner) in rig.port.queues.iter_mut().zip(&mut owners) {
                assert!(pair.rx.recv().is_empty());
                owner.settle(&mut Late(false));
            }
            !decider.is_open()
        });
        send(&mut rig, &flows);
        let mut on = [0; QUEUES as usize];
        until("all frames come", || {
            for (count, pair) in on.iter_mut().zip(&mut rig.port.queues) {
                *count += receive(&mut *pair.rx).len();
            }
            on.iter().sum::<usize>() >= FLOWS
        });
        assert_eq!(on[usize::from(owner)], FLOWS, "{on:?}");
    }
    assert_eq!(decider.load().iter().sum::<u64>(), 3 * FLOWS as u64);
    Ok(())
}

pub fn a_bucket_leaves_when_all_that_was_sent_of_it_is_read(backend: &Backend) -> Declared {
    backend.resteers?;
    let mut rig = backend.open_as(steered(Steering::UeAddress), 1, Vec::new());
    let (mut decider, mut owners) = port::owner::group::<()>(&[rig.port.steering().unwrap()], &[]).unwrap();
    let mut settle = |rig: &mut Rig, late: bool| {
        for (queue, (pair, owner)) in rig.port.queues.iter_mut().zip(&mut owners).enumerate() {
            assert!(pair.rx.recv().is_empty());
            owner.settle(&mut Late(late && queue == 0));
        }
    };
    let leave = |rig: &mut Rig, number: u8| {
        let frame = [frame(0, number)];
        until("it is sent", || rig.port.queues[0].tx.send(&packets(&frame)) == 1);
    };
    let read = |rig: &mut Rig| {
        let rx = &mut rig.far.peer().queues[0].rx;
        until("it comes", || receive(&mut **rx).len() == 1);
        until("it is given back", || rx.arm());
        rx.disarm();
    };
    leave(&mut rig, 0);
    decider.set_owners(&[1; BUCKETS]).unwrap();
    (0..3).for_each(|_| settle(&mut rig, false));
    assert!(decider.is_open());
    read(&mut rig);
    leave(&mut rig, 1);
    settle(&mut rig, true);
    (0..3).for_each(|_| settle(&mut rig, false));
    assert!(decider.is_open(), "what was sent since then is not read");
    read(&mut rig);
    until("the change is over", || {
        settle(&mut rig, false);
        !decider.is_open()
    });
    Ok(())
}
