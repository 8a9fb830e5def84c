//! The proof, for every kind of shared segment, that the kernel lets nobody write it but the one mapping that its writer
//! made before it was closed; and that a writer who spoils a segment before that is found out, or harms nobody.

mod raw;

use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::sync::atomic::Ordering;

use raw::{Bench, Held, Inbox, Memory, Own, Raw, greet_and_take};
use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals, fstat, ftruncate};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mprotect, munmap};
use vport::broker::LinkKind;
use vport::wire::{Reply, Request};

/// Everything by which one might try to change a segment; the names of those that succeeded.
fn ways_in(segment: BorrowedFd<'_>) -> Vec<&'static str> {
    let len = fstat(segment).unwrap().st_size as usize;
    let mut found = Vec::new();
    let mut attempt = |name, succeeded: bool| {
        if succeeded {
            found.push(name)
        }
    };
    let proc = format!("/proc/self/fd/{}", segment.as_raw_fd());

    attempt("writable map", maps_writable(segment, len));
    // SAFETY: new mappings at addresses that the kernel chooses, undone at the end, used in between.
    unsafe {
        let read_only = mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, segment, 0).unwrap();
        attempt("mprotect", mprotect(read_only, len, MprotectFlags::READ | MprotectFlags::WRITE).is_ok());
        attempt("madvise(REMOVE)", madvise(read_only, len, Advice::LinuxRemove).is_ok());
        let memory = OpenOptions::new().write(true).open("/proc/self/mem");
        attempt("/proc/self/mem", memory.is_ok_and(|memory| memory.write_at(&[1], read_only as u64).is_ok()));
        munmap(read_only, len).unwrap();
    }
    attempt("pwrite", rustix::io::pwrite(segment, &[1], 0).is_ok());
    attempt("write", rustix::io::write(segment, &[1]).is_ok());
    attempt("pwritev2", rustix::io::pwritev(segment, &[std::io::IoSlice::new(&[1])], 0).is_ok());
    for (name, options) in [
        ("reopened to read and write", OpenOptions::new().read(true).write(true)),
        ("reopened to write", OpenOptions::new().write(true)),
        ("reopened to append", OpenOptions::new().append(true)),
        ("reopened to truncate", OpenOptions::new().write(true).custom_flags(libc::O_TRUNC)),
    ] {
        let Ok(again) = options.open(&proc) else { continue };
        let written = again.write_at(&[1], 0).is_ok() || maps_writable(again.as_fd(), len);
        attempt(name, written || fstat(&again).unwrap().st_size as usize != len);
    }
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    attempt("punch hole", fallocate(segment, punch, 0, 4096.min(len) as u64).is_ok());
    attempt("punch all", fallocate(segment, punch, 0, len as u64).is_ok());
    attempt("zero range", fallocate(segment, FallocateFlags::ZERO_RANGE, 0, len as u64).is_ok());
    attempt("collapse range", fallocate(segment, FallocateFlags::COLLAPSE_RANGE, 0, 4096).is_ok());
    attempt("truncate", ftruncate(segment, 0).is_ok());
    attempt("shrink", ftruncate(segment, len as u64 / 2).is_ok());
    attempt("grow", ftruncate(segment, 2 * len as u64).is_ok());
    attempt("allocate beyond the end", fallocate(segment, FallocateFlags::empty(), 0, 2 * len as u64).is_ok());
    // Not even more safety: a segment on which nobody may write would be useless to its writer.
    attempt("add a seal", fcntl_add_seals(segment, SealFlags::WRITE).is_ok());
    found
}

fn maps_writable(segment: BorrowedFd<'_>, len: usize) -> bool {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses, undone at once.
    unsafe {
        let map = mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, segment, 0);
        map.is_ok_and(|map| munmap(map, len).is_ok())
    }
}

/// Every segment of a link, as each side has it: index, records and table, each in the hands of its writer and of its reader.
fn segments(ends: &[Held; 2]) -> Vec<(String, BorrowedFd<'_>)> {
    let mut all = Vec::new();
    for (name, end) in ["a", "b"].iter().zip(ends) {
        for (whose, fds) in [("own", &end.own), ("peer's", &end.peer)] {
            for (kind, fd) in ["index", "records", "table"].iter().zip([&fds[0], &fds[1], &fds[3]]) {
                all.push((format!("{name}: {whose} {kind}"), fd.as_fd()));
            }
        }
    }
    all
}

#[test]
fn nobody_can_write_a_segment_of_ordinary_pages() {
    let bench = Bench::new("ordinary", false);
    for (name, segment) in segments(&bench.handshake()) {
        assert_eq!(ways_in(segment), [""; 0], "{name}");
    }
}

#[test]
fn nobody_can_write_a_segment_of_huge_pages() {
    let bench = Bench::new("huge", true);
    let ends = bench.handshake();
    bench.until("the link is up", |ports| ports[0].up);
    if !bench.broker.ports().unwrap()[0].hugepages {
        println!("SKIPPED nobody_can_write_a_segment_of_huge_pages: no free huge pages on this host");
        return;
    }
    for (name, segment) in segments(&ends) {
        assert_eq!(ways_in(segment), [""; 0], "{name}");
    }
}

/// The process of the test below.
#[test]
fn child() {
    let Ok(segments) = std::env::var("KAISTA_TEST_SEGMENTS") else { return };
    let uid_map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
    assert!(!uid_map.starts_with("         0          0 4294967295"), "not in a user namespace of its own");
    for fd in segments.split(' ') {
        // SAFETY: the parent passed these descriptors for us to own.
        let segment = unsafe { OwnedFd::from_raw_fd(fd.parse().unwrap()) };
        assert_eq!(ways_in(segment.as_fd()), [""; 0], "descriptor {fd}");
    }
    println!("nothing was possible");
}

#[test]
fn root_of_an_unprivileged_user_namespace_cannot_either() {
    let bench = Bench::new("userns", false);
    let ends = bench.handshake();
    let inherited: Vec<OwnedFd> = segments(&ends).into_iter().map(|(_, fd)| rustix::io::dup(fd).unwrap()).collect();
    let list: Vec<String> = inherited.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    let program = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user"])
        .arg(program)
        .args(["child", "--exact", "--nocapture", "--test-threads=1"])
        .env("KAISTA_TEST_SEGMENTS", list.join(" "))
        .output();
    let output = match output {
        Ok(output) if !String::from_utf8_lossy(&output.stderr).contains("unshare failed") => output,
        _ => return println!("SKIPPED root_of_an_unprivileged_user_namespace_cannot_either: no user namespaces here"),
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("nothing was possible"), "{said}");
}

#[test]
fn the_writer_s_own_mapping_goes_on_to_work_and_its_reader_sees_it() {
    let bench = Bench::new("works", false);
    let [a, b] = bench.handshake();
    a.memory.index(3 * 128).store(0x1234, Ordering::Release);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let seen = unsafe {
        mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, b.peer[0].as_fd(), 0).unwrap().cast::<u64>()
    };
    // SAFETY: within the mapping.
    assert_eq!(unsafe { seen.add(3 * 16).read_volatile() }, 0x1234);
}

#[test]
fn holes_that_a_writer_punched_before_the_seal_are_filled() {
    let bench = Bench::new("holes", false);
    let [a, b] = ["a", "b"].map(|function| bench.connect(function));
    let [a_own, b_own] = greet_and_take(&a, &b);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for segment in [0, 1, 3].map(|n| &a_own.fds[n]) {
        let len = fstat(segment).unwrap().st_size as u64;
        fallocate(segment, punch, 0, len).unwrap();
        assert_eq!(fstat(segment).unwrap().st_blocks, 0);
    }
    for raw in [&a, &b] {
        raw.say(&Request::Mapped { generation: a_own.generation });
    }
    drop(b_own);
    let seen = b.take_peer();
    for segment in [0, 1, 3].map(|n| &seen[n]) {
        let found = fstat(segment).unwrap();
        assert_eq!(found.st_blocks * 512, found.st_size, "every page is there again");
    }
}

#[test]
fn a_writer_cannot_change_a_segment_s_size_before_the_seal() {
    let bench = Bench::new("size", false);
    let a = bench.connect("a");
    let b = bench.connect("b");
    let own = greet_and_take(&a, &b);
    for segment in [0, 1, 3].map(|n| &own[0].fds[n]) {
        assert!(ftruncate(segment, 0).is_err() && ftruncate(segment, 1 << 30).is_err());
    }
}

#[test]
fn a_writer_that_keeps_the_broker_from_sealing_is_cut_off_and_its_peer_sees_nothing_of_it() {
    for seal in [SealFlags::SEAL, SealFlags::WRITE] {
        let bench = Bench::new("blocked", false);
        let [a, b] = ["a", "b"].map(|function| bench.connect(function));
        let [a_own, _b_own] = greet_and_take(&a, &b);
        // No mapping of a's: F_SEAL_WRITE is possible only then, and leaves a writer that cannot write.
        fcntl_add_seals(&a_own.fds[1], seal).unwrap();
        for raw in [&a, &b] {
            raw.say(&Request::Mapped { generation: a_own.generation });
        }
        if seal == SealFlags::SEAL {
            assert!(a.refusal().starts_with("segments could not be closed"));
        } else {
            // Harmless: what nobody can write, a reader need not fear.
            assert_eq!(b.take_peer().len(), 4);
        }
    }
}

/// An end that has been shown its peer's records.
struct Shown {
    raw: Raw,
    own: Own,
    memory: Memory,
    records: OwnedFd,
}

/// Both ends, which can write what they read, up to each other's records.
fn shown(bench: &Bench) -> [Shown; 2] {
    let ends = ["a", "b"].map(|function| bench.connect(function));
    ends.iter().for_each(Raw::hello_shared);
    let owns = ends.each_ref().map(Raw::take_own);
    let memories = [0, 1].map(|end| ends[end].map(&owns[end]));
    ends.iter().for_each(|raw| raw.say(&Request::Mapped { generation: owns[0].generation }));
    let mut rest = owns.into_iter().zip(memories);
    ends.map(|raw| {
        let (records, (own, memory)) = (raw.take_records().pop().unwrap(), rest.next().unwrap());
        Shown { raw, own, memory, records }
    })
}

#[test]
fn a_reader_can_write_what_it_reads_by_the_one_mapping_that_it_made_before_the_seal() {
    let bench = Bench::of("shared", LinkKind::SharedRecords);
    let [a, b] = shown(&bench);
    let inbox = Inbox::map(b.records.as_fd(), b.own.records_bytes);
    [&a, &b].into_iter().for_each(|end| end.raw.say(&Request::Mapped { generation: end.own.generation }));
    let [of_b, of_a] = [a.raw.take_peer(), b.raw.take_peer()];
    for (name, segment) in [("shown", &b.records), ("own", &a.own.fds[1]), ("its index", &of_a[0]), ("b's", &of_b[1])] {
        assert_eq!(ways_in(segment.as_fd()), [""; 0], "{name}");
    }
    assert!(!inbox.remove_first_page());
    a.memory.records(8).store(0x1234, Ordering::Release);
    assert_eq!(inbox.word(8).load(Ordering::Acquire), 0x1234);
}

#[test]
fn nobody_is_shown_records_before_their_writers_have_mapped_them() {
    let bench = Bench::of("order", LinkKind::SharedRecords);
    let ends = ["a", "b"].map(|function| bench.connect(function));
    ends.iter().for_each(Raw::hello_shared);
    let [own, _] = ends.each_ref().map(Raw::take_own);
    let [a, b] = &ends;
    b.say(&Request::Mapped { generation: own.generation });
    assert!(!b.has_mail_within(std::time::Duration::from_millis(100)), "a has not mapped its own");
    a.say(&Request::Mapped { generation: own.generation });
    assert_eq!(b.take_records().len(), 1);
}

#[test]
fn holes_that_a_reader_punched_before_the_seal_are_filled() {
    let bench = Bench::of("reader-holes", LinkKind::SharedRecords);
    let [a, b] = shown(&bench);
    let len = fstat(&b.records).unwrap().st_size as u64;
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&b.records, punch, 0, len).unwrap();
    [&a, &b].into_iter().for_each(|end| end.raw.say(&Request::Mapped { generation: end.own.generation }));
    b.raw.take_peer();
    let found = fstat(&a.own.fds[1]).unwrap();
    assert_eq!(found.st_blocks * 512, found.st_size, "every page is there again");
}

#[test]
fn records_that_a_reader_keeps_the_broker_from_sealing_are_their_writer_s_alone_until_an_end_is_attached_anew() {
    let bench = Bench::of("spoilt", LinkKind::SharedRecords);
    let [a, b] = shown(&bench);
    fcntl_add_seals(&b.records, SealFlags::SEAL).unwrap();
    [&a, &b].into_iter().for_each(|end| end.raw.say(&Request::Mapped { generation: end.own.generation }));
    // Nobody is cut off for it: the writer could have done so, too.
    let owns = [&a, &b].map(|end| end.raw.take_own());
    assert!(owns[0].generation > a.own.generation);
    [&a, &b].into_iter().for_each(|end| end.raw.say(&Request::Mapped { generation: owns[0].generation }));
    for end in [&a, &b] {
        assert!(matches!(end.raw.receive(), Some((Reply::Peer { .. }, _))), "and no records before");
        end.raw.say(&Request::Ready { generation: owns[0].generation });
    }
    bench.until("the link is up", |ports| ports[0].up);
    drop(b);
    bench.until("b is gone", |ports| !ports[0].up);
    let b = bench.connect("b");
    b.hello_shared();
    let generation = [&a.raw, &b].map(|raw| raw.take_own().generation)[0];
    [&a.raw, &b].into_iter().for_each(|raw| raw.say(&Request::Mapped { generation }));
    assert_eq!(b.take_records().len(), 1);
}

#[test]
fn doorbells_give_each_side_its_own_end_only() {
    let bench = Bench::new("doorbell", false);
    let [a, b] = bench.handshake();
    assert!(rustix::io::write(&a.own[2], &[1]).is_err(), "the sleeper's end only reads");
    assert!(rustix::io::read(&b.peer[2], &mut [0; 1]).is_err(), "the waker's end only writes");
    assert_eq!(rustix::io::write(&b.peer[2], &[1]).unwrap(), 1);
    assert_eq!(rustix::io::read(&a.own[2], &mut [0; 9]).unwrap(), 1);
    // Nothing the other does makes a write block.
    while rustix::io::write(&b.peer[2], &[0; 512]).is_ok() {}
}

/// The attempts above are not vain: without the last seals nearly all succeed.
#[test]
fn every_attempt_succeeds_on_a_segment_that_was_not_closed() {
    let bench = Bench::new("control", false);
    let (a, b) = (bench.connect("a"), bench.connect("b"));
    let [own, _b] = greet_and_take(&a, &b);
    let found = ways_in(own.fds[1].as_fd());
    let all = [
        "writable map",
        "mprotect",
        "madvise(REMOVE)",
        "/proc/self/mem",
        "pwrite",
        "write",
        "pwritev2",
        "reopened to read and write",
        "reopened to write",
        "punch hole",
        "punch all",
        "add a seal",
    ];
    for name in all {
        assert!(found.contains(&name), "{name}: {found:?}");
    }
}

/// A hole in the middle of a ring could stop a reader that cannot allocate the page.
#[test]
fn not_even_the_writer_can_take_pages_out_of_a_closed_segment() {
    let bench = Bench::new("remove", false);
    let [a, _b] = bench.handshake();
    assert!(!a.memory.remove_first_pages());
    for segment in [0, 1, 3].map(|n| &a.own[n]) {
        let found = fstat(segment).unwrap();
        assert_eq!(found.st_blocks * 512, found.st_size);
    }
}
