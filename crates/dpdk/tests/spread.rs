//! Software steering: tunnels of every kind spread over the port's workers as evenly as plain ones, and go where the table says.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dpdk::Device;
use dpdk::name::Name;
use port::steering::{BUCKETS, BucketTable, teid_bucket};
use port::{BURST_MAX, OpenOptions, PacketRef, Port};
use tempfile::TempDir;

const QUEUES: usize = 8;
const PATIENCE: Duration = Duration::from_secs(30);

/// A port with workers, and one at the other end of the same memif.
struct Rig {
    near: Port,
    device: Arc<Device>,
    far: Port,
    _folder: TempDir,
}

/// None where DPDK does not start, which is said.
fn rig(number: u32) -> Option<Rig> {
    if let Err(error) = dpdk::start(&dpdk::Settings::default()) {
        println!("SKIPPED software steering: {error}");
        return None;
    }
    let folder = TempDir::new().unwrap();
    let open = |role: &str, number: u32, between: &str, more: &str| {
        let socket = format!("{}{between}memif.sock", folder.path().display());
        let text = format!("net_memif{number},role={role},socket={socket},socket-abstract=no{more}");
        dpdk::open(&Name::parse(&text).unwrap(), &OpenOptions::default()).unwrap()
    };
    let workers = format!(",port-queues={QUEUES},port-steering=teid,port-descriptors=128");
    let (near, device) = open("server", 2 * number, "/", &workers);
    // Of one process, the ends know their socket by different names.
    let (far, _) = open("client", 2 * number + 1, "//", "");
    until("both ends meet", || device.has_peer());
    Some(Rig { near, device, far, _folder: folder })
}

fn until(what: &str, mut happens: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happens() {
        assert!(Instant::now() < deadline, "in vain: {what}");
    }
}

impl Rig {
    /// Sends frames; which queue each came to, by the number in its last bytes.
    fn pass(&mut self, frames: &[Vec<u8>]) -> Vec<usize> {
        let mut queues = vec![usize::MAX; frames.len()];
        let (mut sent, mut received) = (0, 0);
        until("all frames come", || {
            let more: Vec<_> =
                frames[sent..].iter().take(BURST_MAX).map(|frame| PacketRef::from_slice(frame)).collect();
            sent += self.far.queues[0].tx.send(&more);
            for (queue, pair) in self.near.queues.iter_mut().enumerate() {
                let burst = pair.rx.recv();
                for i in 0..burst.len() {
                    let mut frame = vec![0; burst.get(i).len()];
                    burst.get(i).copy_to(&mut frame);
                    let number = u32::from_be_bytes(*frame.last_chunk().unwrap()) as usize;
                    assert_eq!(std::mem::replace(&mut queues[number], queue), usize::MAX, "{number} comes twice");
                    assert!(frame == frames[number]);
                    received += 1;
                }
            }
            received == frames.len()
        });
        queues
    }
}

/// What tunnels look like.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// No extension headers, IPv4 inside and out.
    Plain,
    /// A PDU session container, as on N3.
    Qos,
    /// Sequence number and a PDU session container behind another extension header, as another UPF may send on N9.
    N9,
    /// A PDU session container, and IPv6 inside.
    V6Inside,
    /// The same with IPv6 outside.
    V6Outside,
}

const KINDS: [Kind; 5] = [Kind::Plain, Kind::Qos, Kind::N9, Kind::V6Inside, Kind::V6Outside];

/// A frame in tunnel `teid`, with a number at its end. Lengths and checksums, which nobody looks at here, are left out.
fn frame(kind: Kind, teid: u32, number: u32) -> Vec<u8> {
    const CONTAINER: [u8; 4] = [1, 0x10, 9, 0];
    let (flags, extensions) = match kind {
        Kind::Plain => (0x30, vec![]),
        Kind::Qos | Kind::V6Inside | Kind::V6Outside => (0x34, [&[0, 0, 0, 0x85][..], &CONTAINER].concat()),
        // A PDCP PDU number first.
        Kind::N9 => (0x36, [&[0, 7, 0, 0xc0][..], &[1, 0, 5, 0x85], &CONTAINER].concat()),
    };
    let inner = match kind {
        Kind::V6Inside | Kind::V6Outside => [&[0x60, 0, 0, 0, 0, 0, 17, 64][..], &[0xfd; 32]].concat(),
        _ => [&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0][..], &[10, 60, 0, 1, 10, 6, 0, 2]].concat(),
    };
    let outer = match kind {
        Kind::V6Outside => [&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 17, 64][..], &[0xfc; 32]].concat(),
        _ => [&[8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0][..], &[10, 3, 0, 2, 10, 3, 0, 1]].concat(),
    };
    let udp = [0x08, 0x68, 0x08, 0x68, 0, 0, 0, 0];
    let gtpu = [&[flags, 0xff, 0, 0][..], &teid.to_be_bytes(), &extensions].concat();
    [&[2; 12][..], &outer, &udp, &gtpu, &inner, &[0; 16], &number.to_be_bytes()].concat()
}

/// TEIDs as if by chance, the same at every run.
fn teids(count: usize) -> impl Iterator<Item = u32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    })
}

#[test]
fn tunnels_of_every_kind_spread_as_evenly_as_plain_ones() {
    const EACH: usize = 100;
    // The 99.9 % quantile of chi-square with 127 degrees of freedom.
    const LIMIT: f64 = 181.99;
    let Some(mut rig) = rig(0) else { return };
    let table = BucketTable::fixed(QUEUES);
    for kind in KINDS {
        let teids: Vec<u32> = teids(EACH * BUCKETS).collect();
        let frames: Vec<_> = teids.iter().zip(0..).map(|(teid, number)| frame(kind, *teid, number)).collect();
        let queues = rig.pass(&frames);
        let mut in_bucket = [0_u32; BUCKETS];
        for (teid, queue) in teids.iter().zip(queues) {
            let bucket = teid_bucket(*teid);
            assert_eq!(queue, table.queue(bucket), "{kind:?}: TEID {teid:#x}");
            in_bucket[usize::from(bucket)] += 1;
        }
        let expected = EACH as f64;
        let chi_square: f64 = in_bucket.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum();
        println!("{kind:?}: chi-square {chi_square:.1} over {BUCKETS} buckets");
        assert!(chi_square < LIMIT, "{kind:?}: {chi_square}");
    }
}

/// Nothing is lost when the table changes while frames are on their way, and frames sent afterwards go by the new one.
#[test]
fn buckets_go_where_the_table_says_while_frames_flow() {
    let Some(mut rig) = rig(1) else { return };
    for owner in [3, 0, 7] {
        // Some are in the rings already.
        let frames: Vec<_> = teids(100).zip(0..).map(|(teid, number)| frame(Kind::Qos, teid, number)).collect();
        let some: Vec<_> = frames.iter().map(|frame| PacketRef::from_slice(frame)).collect();
        assert_eq!(rig.far.queues[0].tx.send(&some), 100);
        let mut received = rig.near.queues[0].rx.recv().len();
        rig.device.steer(&BucketTable::new([owner; BUCKETS], QUEUES).unwrap()).unwrap();
        until("those before come", || {
            received += rig.near.queues.iter_mut().map(|pair| pair.rx.recv().len()).sum::<usize>();
            received == 100
        });
        assert!(rig.pass(&frames).iter().all(|queue| *queue == usize::from(owner)));
    }
    let table = BucketTable::new([8; BUCKETS], 9).unwrap();
    assert!(rig.device.steer(&table).unwrap_err().to_string().ends_with("has no queue 8"));
}

/// Each of them sends on a thread of its own by the one queue that the device has.
#[test]
fn workers_that_share_a_queue_of_the_device_send_in_turns() {
    const FRAMES: u32 = 5_000;
    let Some(Rig { near, device: _device, mut far, _folder }) = rig(2) else { return };
    // A client of memif has to receive once before there is room for anything.
    assert!(far.queues[0].rx.recv().is_empty());
    std::thread::scope(|scope| {
        for (worker, mut pair) in near.queues.into_iter().enumerate() {
            scope.spawn(move || {
                for number in 0..FRAMES {
                    let frame = frame(Kind::Plain, worker as u32, number);
                    until("there is room", || pair.tx.send(&[PacketRef::from_slice(&frame)]) == 1);
                }
            });
        }
        let mut next = [0; QUEUES];
        until("all frames come", || {
            let burst = far.queues[0].rx.recv();
            for i in 0..burst.len() {
                let mut frame = vec![0; burst.get(i).len()];
                burst.get(i).copy_to(&mut frame);
                let worker = u32::from_be_bytes(frame[46..50].try_into().unwrap()) as usize;
                assert_eq!(u32::from_be_bytes(*frame.last_chunk().unwrap()), next[worker], "order of worker {worker}");
                next[worker] += 1;
            }
            next == [FRAMES; QUEUES]
        });
    });
}
