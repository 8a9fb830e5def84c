//! Frames: their order, their lengths, their bytes.

use port::{BURST_MAX, FRAME_MAX, LONG_BURST_MAX, PacketRef};

use crate::backend::{Backend, Declared};
use crate::rig::{OURS, copied, frame, gather, numbered, packets, receive, tagged, until};

pub fn frames_arrive_whole_and_in_order(backend: &Backend) -> Declared {
    let frames = numbered(0, 20_000);
    let received = backend.open_with(frames.clone()).arriving(frames.len());
    assert!(received == frames);
    Ok(())
}

pub fn frames_leave_whole_and_in_order(backend: &Backend) -> Declared {
    let frames = numbered(0, 20_000);
    assert!(backend.open().leaving(&frames) == frames);
    Ok(())
}

fn of_every_length(backend: &Backend) -> Vec<Vec<u8>> {
    backend.frames.clone().enumerate().map(|(n, len)| frame(n as u64, len)).collect()
}

pub fn frames_of_every_length_arrive(backend: &Backend) -> Declared {
    let frames = of_every_length(backend);
    let received = backend.open_with(frames.clone()).arriving(frames.len());
    assert!(received == frames);
    Ok(())
}

pub fn frames_of_every_length_leave(backend: &Backend) -> Declared {
    let frames = of_every_length(backend);
    assert!(backend.open().leaving(&frames) == frames);
    Ok(())
}

pub fn frames_keep_the_tags_of_virtual_networks(backend: &Backend) -> Declared {
    let tag = |n: u64| [0x81, 0x00, n as u8, 0xff - n as u8];
    let frames: Vec<_> = (0..60).map(|n| tagged(frame(n, 60 + 20 * n as usize), tag(n))).collect();
    assert!(backend.open().leaving(&frames) == frames);
    assert!(backend.open_with(frames.clone()).arriving(frames.len()) == frames);
    Ok(())
}

/// The caller is rid of them, and those around them are sent.
pub fn lengths_that_it_does_not_carry_are_taken_and_counted(backend: &Backend) -> Declared {
    let mut rig = backend.open();
    let uncarried = (0..*backend.frames.start()).chain([FRAME_MAX + 1, 65_536, 100_000]);
    let mut burst = vec![frame(0, 60)];
    burst.extend(uncarried.map(|len| frame(9, len)));
    burst.push(frame(1, 60));
    let tx = &mut rig.port.queues[0].tx;
    assert_eq!(tx.send(&packets(&burst)), burst.len());
    let counters = tx.counters();
    assert_eq!((counters.packets, counters.bytes), (2, 120));
    assert_eq!((counters.discarded, counters.refused), (burst.len() as u64 - 2, 0));
    assert_eq!(gather(2, |_| rig.far.take()), [frame(0, 60), frame(1, 60)], "those around them");
    Ok(())
}

/// Headers are changed in private memory, and what follows them is passed on without having been looked at.
pub fn received_frames_can_be_changed_and_sent_on(backend: &Backend) -> Declared {
    // Lengths around everything that is special: heads, blocks, pages, the usual MTU, the longest.
    let special = [60, 61, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 1_000, 1_514, 4_096, FRAME_MAX - 6];
    // They grow by six bytes.
    let lengths = backend.carried(special.map(|len| len.min(backend.frames.end() - 6)));
    let frames: Vec<_> = (0..4 * lengths.len()).map(|n| frame(n as u64, lengths[n % lengths.len()])).collect();
    let header = [[9; 12].as_slice(), &OURS, &[7; 6]].concat();
    let mut rig = backend.open_with(frames.clone());
    let (mut forwarded, mut taken) = (0, Vec::new());
    until("all frames are passed on", || {
        rig.prompt(forwarded);
        let pair = &mut rig.port.queues[0];
        let mut burst = pair.rx.recv();
        for i in 0..burst.len() {
            let mut packet = burst.get_mut(i);
            if packet.head()[12..14] != OURS {
                continue;
            }
            assert!(packet.head().len() <= 192, "no more than was asked for is private");
            assert!(packet.strip(14));
            packet.prepend(20).unwrap().copy_from_slice(&header);
            assert_eq!(pair.tx.send(&[packet.as_ref()]), 1);
            forwarded += 1;
        }
        taken.extend(rig.far.take());
        taken.len() == frames.len()
    });
    for (before, after) in frames.iter().zip(taken) {
        assert!(after[..20] == header && after[20..] == before[14..]);
    }
    Ok(())
}

/// Whole bursts, as they came, and with a packet that was taken apart and put together again.
pub fn a_burst_is_sent_on_as_its_packets_are(backend: &Backend) -> Declared {
    pass_on(backend, BURST_MAX, BURST_MAX);
    Ok(())
}

/// The same of bursts that are as long as was asked for, and no longer than any.
pub fn a_long_burst_is_sent_on_as_its_packets_are(backend: &Backend) -> Declared {
    for (asked_for, most) in [(0, BURST_MAX), (BURST_MAX + 5, BURST_MAX + 5), (usize::MAX, LONG_BURST_MAX)] {
        pass_on(backend, asked_for, most);
    }
    Ok(())
}

fn pass_on(backend: &Backend, asked_for: usize, most: usize) {
    let frames = numbered(0, 1_000);
    let mut rig = backend.open_with(frames.clone());
    rig.port.queues[0].rx.set_burst_max(asked_for);
    let (mut forwarded, mut taken) = (0, Vec::new());
    until("all frames are passed on", || {
        rig.prompt(forwarded);
        let pair = &mut rig.port.queues[0];
        let mut burst = pair.rx.recv();
        assert!(burst.len() <= most);
        forwarded += (0..burst.len()).filter(|i| burst.get(*i).head[12..14] == OURS).count();
        if burst.len() % 2 == 1 {
            let mut packet = burst.get_mut(burst.len() / 2);
            let header: [u8; 14] = packet.head()[..14].try_into().unwrap();
            assert!(packet.strip(14));
            packet.prepend(14).unwrap().copy_from_slice(&header);
        }
        let mut sent = 0;
        while sent < burst.len() {
            sent += pair.tx.send_burst(&burst, sent);
            taken.extend(rig.far.take());
        }
        assert_eq!(pair.tx.send_burst(&burst, sent), 0);
        taken.extend(rig.far.take());
        taken.len() == frames.len()
    });
    assert!(taken == frames);
}

/// However much comes in meanwhile.
pub fn what_was_received_stays_as_it_is_until_the_next_receive(backend: &Backend) -> Declared {
    backend.live?;
    let mut rig = backend.open();
    let (rx, far) = (&mut rig.port.queues[0].rx, &mut rig.far);
    for round in 0..20 {
        let number = round * 10_000;
        let held = frame(number, 9_000.min(*backend.frames.end()));
        until("there is room", || far.tx().send(&[PacketRef::from_slice(&held)]) == 1);
        until("it comes", || {
            let burst = rx.recv();
            let Some(i) = (0..burst.len()).find(|i| copied(&burst.get(*i)) == held) else { return false };
            for next in numbered(number + 1, 2_000) {
                if far.tx().send(&[PacketRef::from_slice(&next)]) == 0 {
                    break;
                }
            }
            assert!(copied(&burst.get(i)) == held);
            true
        });
        // Away with what did come.
        let last = frame(number + 9_999, 60);
        until("the last frame comes", || {
            far.tx().send(&[PacketRef::from_slice(&last)]);
            receive(&mut **rx).contains(&last)
        });
        while !receive(&mut **rx).is_empty() {}
    }
    Ok(())
}
