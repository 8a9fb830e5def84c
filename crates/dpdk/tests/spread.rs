//! Software steering: frames go where the table says.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dpdk::Device;
use dpdk::name::Name;
use port::steering::{BUCKETS, BucketTable};
use port::{BURST_MAX, OpenOptions, PacketRef, Port};
use tempfile::TempDir;

#[path = "../../port/tests/conformance/tunnels.rs"]
mod tunnels;

use tunnels::{KINDS, frame, teids};

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

/// Nothing is lost when the table changes while frames are on their way, and frames sent afterwards go by the new one.
#[test]
fn buckets_go_where_the_table_says_while_frames_flow() {
    let Some(mut rig) = rig(1) else { return };
    for owner in [3, 0, 7] {
        // Some are in the rings already.
        let kinds = KINDS.into_iter().cycle();
        let frames: Vec<_> =
            teids(100).zip(kinds).zip(0..).map(|((teid, kind), number)| frame(kind, teid, number)).collect();
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
                    let frame = frame(KINDS[0], worker as u32, number);
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
