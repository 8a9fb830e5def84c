//! The session tables from both ends: what is applied is what workers see, whole or not at all.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sessions::{qer, session, ue};
use port::PortInfo;
use upf::counters::Counters;
use upf::side::{PortId, PortKind, Side, Sides};
use upf::tables::{Action, ApplyError, Blocks, Memory, Origin, Reader, Rules, SessionUpdate, Settings, Tables};

fn tables(max_sessions: usize, workers: usize) -> (Tables, Vec<Reader>) {
    let mut n3 = PortInfo::named("n3");
    n3.addresses = vec![("10.3.0.1".parse().unwrap(), 24)];
    let settings = Settings { max_sessions, policer_burst_ms: 50, workers };
    Tables::new(&settings, Side::new(&n3, &[]), Side::new(&PortInfo::named("n6"), &[]), Box::new(|_, _| {}))
}

fn has(reader: &mut Reader, teid: u32, ue_number: u32) -> (bool, bool) {
    reader.refresh();
    let version = reader.version();
    (version.by_teid(teid).is_some(), version.by_ue(PortId::N6, false, ue(ue_number).to_bits().into()).is_some())
}

#[test]
fn a_session_is_found_by_teid_and_address_until_it_is_removed() {
    let (tables, mut readers) = tables(10, 1);
    let reader = &mut readers[0];
    tables.apply(vec![SessionUpdate::Put(session(1, 0x10, 1))]).unwrap();
    assert_eq!(has(reader, 0x11, 2), (false, false));
    assert_eq!(has(reader, 0x10, 1), (true, true));
    assert_eq!(tables.sessions(), 1);
    std::thread::scope(|scope| {
        // From its first look on, a worker is waited for.
        let removed = scope.spawn(|| tables.apply(vec![SessionUpdate::Remove(1), SessionUpdate::Remove(7)]));
        while !removed.is_finished() {
            reader.refresh();
        }
        removed.join().unwrap().unwrap();
    });
    assert_eq!(has(reader, 0x10, 1), (false, false));
    assert_eq!(tables.sessions(), 0);
}

#[test]
fn teids_of_the_upf_s_and_of_the_smf_s_choice_live_side_by_side() {
    let (tables, mut readers) = tables(10, 1);
    let own = tables.reserve_teid(tables.home_bucket(&upf::rules::UeIp { v4: Some(ue(1)), v6: None })).unwrap();
    let same_index = own ^ 0x8000_0000;
    tables.apply(vec![SessionUpdate::Put(session(1, own, 1)), SessionUpdate::Put(session(2, same_index, 2))]).unwrap();
    readers[0].refresh();
    let home = |teid| readers[0].version().by_teid(teid).map(|rules| rules.home());
    assert_eq!(home(own), Some(vport::steering::address_bucket(ue(1).into())));
    assert_eq!(home(same_index), Some(vport::steering::address_bucket(ue(2).into())));
}

#[test]
fn sessions_share_a_policer_by_correlation_id_whoever_owns_them() {
    use upf::rules::{CpFSeid, Qer};
    let correlated = |seid: u64, number: u32| {
        let mut session = session(seid, 0x10 + number, number);
        session.qers = vec![Qer { correlation_id: Some(7), ..qer(1, Some(1_000_000)) }];
        session.pdrs.iter_mut().for_each(|pdr| pdr.qer_ids = vec![1]);
        session
    };
    let put = |session| vec![SessionUpdate::Put(session)];
    let (tables, mut readers) = tables(10, 2);
    let worker = |number: u32| vport::steering::address_bucket(ue(number).into()) % 2;
    let elsewhere = (2..).find(|&number| worker(number) != worker(1)).unwrap();
    tables.apply(put(correlated(1, 1))).unwrap();
    tables.apply(put(correlated(2, elsewhere))).unwrap();
    // Another session manager's ID is another one.
    let another = elsewhere + 1;
    let mut other = correlated(3, another);
    other.cp_f_seid = CpFSeid { address: [10, 4, 0, 9].into(), ..other.cp_f_seid };
    tables.apply(put(other)).unwrap();

    readers[0].refresh();
    let version = readers[0].version();
    let meters = |teid: u32| version.by_teid(teid).unwrap().first().unwrap().meters(version).collect::<Vec<_>>();
    let first = meters(0x11);
    assert_eq!(first.len(), 1);
    assert_eq!(meters(0x10 + elsewhere), first);
    assert_ne!(meters(0x10 + another), first);
}

#[test]
fn a_shared_policer_is_free_when_the_last_session_leaves_it() {
    use upf::rules::Qer;
    let correlated = |seid: u64, number: u32, mbr_bps| {
        let mut session = session(seid, 0x10 + number, number);
        session.qers = vec![Qer { correlation_id: Some(7), ..qer(1, mbr_bps) }];
        session.pdrs.iter_mut().for_each(|pdr| pdr.qer_ids = vec![1]);
        SessionUpdate::Put(session)
    };
    // Room for eight policers: each round would take two more if any stayed.
    let (tables, _) = tables(2, 0);
    for _ in 0..20 {
        tables.apply(vec![correlated(1, 1, Some(1)), correlated(2, 2, Some(1))]).unwrap();
        tables.apply(vec![correlated(1, 1, None)]).unwrap();
        tables.apply(vec![SessionUpdate::Remove(1), correlated(2, 2, Some(2))]).unwrap();
        tables.apply(vec![SessionUpdate::Remove(2)]).unwrap();
    }
}

#[test]
fn what_cannot_be_applied_changes_nothing() {
    let (tables, _) = tables(2, 0);
    tables.apply(vec![SessionUpdate::Put(session(1, 0x10, 1))]).unwrap();
    let put = |session| SessionUpdate::Put(session);
    let refused = |updates, error| {
        assert_eq!(tables.apply(updates), Err(error));
        assert_eq!(tables.sessions(), 1);
    };
    refused(vec![put(session(2, 0x10, 2))], ApplyError::TeidInUse(0x10));
    refused(vec![put(session(2, 0x20, 1))], ApplyError::UeAddressInUse(IpAddr::V4(ue(1))));
    refused(vec![put(session(2, 0x20, 2)), put(session(3, 0x20, 3))], ApplyError::TeidInUse(0x20));
    refused(vec![put(session(2, 0x20, 2)), put(session(3, 0x30, 3))], ApplyError::Full);
    let mut dangling = session(2, 0x20, 2);
    dangling.fars.clear();
    refused(vec![SessionUpdate::Remove(1), put(dangling)], ApplyError::DanglingRule { pdr: 1 });
    // One session's TEID and address may pass to another in one step.
    tables.apply(vec![SessionUpdate::Remove(1), put(session(2, 0x10, 1))]).unwrap();
    tables.apply(vec![put(session(3, 0x10, 1)), put(session(2, 0x20, 2))]).unwrap();
    assert_eq!(tables.sessions(), 2);
}

#[test]
fn shared_policers_are_bounded_and_come_back() {
    use upf::rules::Qer;
    let (tables, _) = tables(1, 0);
    let with = |qers: std::ops::Range<u32>| {
        let mut session = session(1, 0x10, 1);
        session.qers = qers.map(|id| Qer { correlation_id: Some(id), ..qer(id, Some(1_000)) }).collect();
        vec![SessionUpdate::Put(session)]
    };
    // Four of them go with one session: two QERs, both ways.
    assert_eq!(tables.apply(with(0..3)), Err(ApplyError::Full));
    for round in 0..20 {
        tables.apply(with(round..round + 1)).unwrap();
        tables.apply(vec![SessionUpdate::Remove(1)]).unwrap();
        tables.apply(with(0..2)).unwrap();
        tables.apply(with(0..2)).unwrap();
    }
}

#[test]
fn neighbours_that_tunnels_lead_to_are_asked_for_and_keep_their_place() {
    let mut n3 = PortInfo::named("n3");
    n3.addresses = vec![("10.3.0.1".parse().unwrap(), 24)];
    let settings = Settings { max_sessions: 10, policer_burst_ms: 50, workers: 1 };
    let (wanted, asked) = std::sync::mpsc::channel();
    let tell = Box::new(move |port, address| wanted.send((port, address)).unwrap());
    let n6 = Side::new(&PortInfo::named("n6"), &[]);
    let (tables, mut readers) = Tables::new(&settings, Side::new(&n3, &[]), n6, tell);
    tables.apply(vec![SessionUpdate::Put(session(1, 0x10, 1))]).unwrap();
    let peer: IpAddr = "10.3.0.2".parse().unwrap();
    assert_eq!(asked.try_recv(), Ok((PortId::N3, peer)));
    tables.set_neighbours(&[(PortId::N3, peer, Some([2; 6]))]).unwrap();
    tables.apply(vec![SessionUpdate::Put(session(1, 0x10, 1)), SessionUpdate::Put(session(2, 0x20, 2))]).unwrap();
    assert!(asked.try_recv().is_err());
    readers[0].refresh();
    assert!((0..1).all(|index| readers[0].version().hop(index).ethernet.is_some()));
}

#[test]
fn applying_returns_only_when_every_worker_sees_it() {
    let (tables, readers) = tables(1_000, 3);
    let done = AtomicBool::new(false);
    let applied = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for mut reader in readers {
            let (done, applied) = (&done, &applied);
            scope.spawn(move || {
                reader.refresh();
                while !done.load(Ordering::Acquire) {
                    let least = applied.load(Ordering::Acquire);
                    reader.refresh();
                    // Sessions 1..=n are put one by one, so the newest that is there tells how many are.
                    assert!(least == 0 || reader.version().by_teid(least as u32).is_some());
                    std::thread::yield_now();
                }
            });
        }
        for seid in 1..=300 {
            tables.apply(vec![SessionUpdate::Put(session(seid, seid as u32, seid as u32))]).unwrap();
            applied.store(seid, Ordering::Release);
        }
        done.store(true, Ordering::Release);
    });
    assert_eq!(tables.apply(vec![SessionUpdate::Remove(1)]), Err(ApplyError::Stopped));
}

/// So that they are spread over all sets of a cache.
#[test]
fn sessions_whatever_they_have_lie_an_odd_number_of_lines_apart() {
    let (tables, _) = tables(20, 0);
    for qers in 0..4 {
        let put = |seid: u64| {
            let mut session = session(seid, 0x10 + seid as u32, seid as u32);
            session.qers = (0..qers).map(|id| qer(id, Some(1_000_000))).collect();
            session.pdrs.iter_mut().for_each(|pdr| pdr.qer_ids = (0..qers).collect());
            SessionUpdate::Put(session)
        };
        // The path to the base station lies behind the very first one.
        let seids = [1, 2, 3].map(|number| u64::from(3 * qers) + number);
        seids.into_iter().for_each(|seid| tables.apply(vec![put(seid)]).unwrap());
        let list = |seid: u64| tables.look(|version| version.by_teid(0x10 + seid as u32).unwrap().list());
        assert_eq!((list(seids[2]) - list(seids[1])) % 2, 1, "{qers} QERs");
    }
}

/// Tables with what an earlier process left in `file`.
fn kept(file: &std::path::Path, max_sessions: usize, address: &str) -> Tables {
    let mut n3 = PortInfo::named("n3");
    n3.addresses = vec![(address.parse().unwrap(), 24)];
    let sides = Sides::new(vec![
        Side::new(&n3, &[]).of_kind(PortKind::N3),
        Side::new(&PortInfo::named("n6"), &[]).of_kind(PortKind::N6),
    ]);
    let file = std::fs::File::options().read(true).write(true).create(true).truncate(false).open(file).unwrap();
    let memory = Memory {
        blocks: Blocks::in_file(file, max_sessions).unwrap(),
        counters: Counters::private(max_sessions).unwrap(),
    };
    let settings = Settings { max_sessions, policer_burst_ms: 50, workers: 0 };
    Tables::over(&settings, sides, memory, Box::new(|_, _| {})).unwrap().0
}

/// By each of these TEIDs: session, PDR, what becomes of packets, maximum bit rates.
fn found(tables: &Tables, teids: impl IntoIterator<Item = u32>) -> Vec<Option<(Origin, Action, Vec<u64>)>> {
    tables.look(|version| {
        let rule = |rules: Rules<'_>| {
            let rule = rules.first().unwrap();
            let rates = rule.meters(version).map(|meter| meter.rate_bps());
            (rule.origin(version), rule.action(version), rates.collect())
        };
        teids.into_iter().map(|teid| version.by_teid(teid).map(rule)).collect()
    })
}

fn limited(seid: u64, teid: u32, number: u32) -> SessionUpdate {
    let mut session = session(seid, teid, number);
    session.qers = vec![qer(1, Some(1_000_000 * seid)), qer(2, Some(7_000_000))];
    session.pdrs.iter_mut().for_each(|pdr| pdr.qer_ids = vec![1, 2]);
    SessionUpdate::Put(session)
}

#[test]
fn the_next_process_has_in_force_what_was_and_takes_the_same_again_without_a_change() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tables");
    let tables = kept(&file, 40, "10.3.0.1");
    let own = tables.reserve_teid(7).unwrap();
    tables.apply((1..20).map(|number| limited(number.into(), 0x100 + number, number)).collect()).unwrap();
    tables.apply(vec![limited(20, own, 20), limited(3, 0x203, 3), SessionUpdate::Remove(5)]).unwrap();
    tables.apply(vec![SessionUpdate::Remove(6), limited(21, 0x106, 6)]).unwrap();
    let teids = || BTreeSet::from_iter((0x100..0x500).chain([own]));
    let before = found(&tables, teids());
    assert_eq!((before.iter().flatten().count(), tables.sessions()), (19, 19));

    // Nobody says goodbye.
    let next = kept(&file, 40, "10.3.0.1");
    assert_eq!((next.sessions(), next.version()), (19, 0));
    assert_eq!(found(&next, teids()), before);
    assert_eq!(next.session_of(ue(6).into()), Some(21));
    assert!(next.claim_teids(&[own], &[own]));
    let same = (1..20)
        .filter(|number| ![3, 5, 6].contains(number))
        .map(|number| limited(number.into(), 0x100 + number, number));
    next.apply(same.chain([limited(20, own, 20), limited(3, 0x203, 3), limited(21, 0x106, 6)]).collect()).unwrap();
    assert_eq!((found(&next, teids()), next.version()), (before.clone(), 0));
    // What is new goes where nothing is.
    next.apply((30..40).map(|number| limited(number.into(), 0x400 + number, number)).collect()).unwrap();
    let after = found(&next, teids());
    assert!(after.iter().flatten().filter(|(origin, ..)| origin.up_seid < 30).eq(before.iter().flatten()));
    next.look(|version| {
        let rules = teids().into_iter().filter_map(|teid| version.by_teid(teid)?.first());
        let all: Vec<_> = rules.flat_map(|rule| rule.meters(version)).collect();
        assert_eq!(all.len(), 29 * 2);
        let is_alone = |one| all.iter().filter(|other| *other == one).count() == 1;
        assert!(all.iter().all(is_alone), "each session has policers of its own");
    });

    let of_others = kept(&file, 40, "10.3.0.9");
    assert_eq!(of_others.sessions(), 0, "rules of other surroundings are of no use");
}

#[test]
fn what_a_session_leaves_is_used_again_when_two_more_versions_are_in_force() {
    let (tables, _) = tables(10, 0);
    let put = |mbr_bps| {
        let mut session = session(1, 0x10, 1);
        session.qers = vec![qer(1, Some(mbr_bps))];
        session.pdrs.iter_mut().for_each(|pdr| pdr.qer_ids = vec![1]);
        tables.apply(vec![SessionUpdate::Put(session)]).unwrap();
        tables.look(|version| version.by_teid(0x10).unwrap().list())
    };
    let places: Vec<_> = (1..20).map(put).collect();
    assert!(places.windows(4).all(|of| BTreeSet::from_iter(of).len() == 4), "{places:?}");
    assert_eq!(BTreeSet::from_iter(&places).len(), 4);
}

#[test]
fn a_session_has_as_many_maximum_bit_rates_as_rules_have_room_for() {
    let (tables, _) = tables(10, 0);
    let with = |count: u32| {
        let mut session = session(1, 0x10, 1);
        // What has none does not count.
        session.qers = (0..count).map(|id| qer(id, Some(1_000))).chain([qer(count, None)]).collect();
        session.pdrs[1].qer_ids = (0..=count).collect();
        tables.apply(vec![SessionUpdate::Put(session)])
    };
    assert_eq!(with(192), Ok(()));
    tables.look(|version| {
        let rule = version.by_ue(PortId::N6, false, ue(1).to_bits().into()).unwrap().first().unwrap();
        assert_eq!(rule.meters(version).count(), 192);
    });
    assert_eq!(with(193), Err(ApplyError::TooLarge));
}

#[test]
fn buckets_are_full_for_the_next_process() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tables");
    let meters_admit = |tables: &Tables| {
        tables.look(|version| {
            let mut meters = version.by_teid(0x10).unwrap().first().unwrap().meters(version);
            meters.all(|meter| meter.admit(9_600, 0))
        })
    };
    let tables = kept(&file, 40, "10.3.0.1");
    tables.apply(vec![limited(1, 0x10, 1)]).unwrap();
    assert!((0..10).any(|_| !meters_admit(&tables)), "more than a bucket");
    assert!(meters_admit(&kept(&file, 40, "10.3.0.1")));
}

#[test]
fn rules_that_would_charge_what_is_not_their_session_s_are_not_taken_over() {
    const LINE: usize = 64;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tables");
    let tables = kept(&file, 40, "10.3.0.1");
    tables.apply(vec![SessionUpdate::Put(session(1, 0x10, 1))]).unwrap();
    let mut left = std::fs::read(&file).unwrap();
    assert_eq!(kept(&file, 40, "10.3.0.1").sessions(), 1);
    // Behind the file's line and the block's head comes the first rule. It has no policer: words for one, and how packets are policed.
    let (slots, policing) = (2 * LINE + 4 * 8, 2 * LINE + 7 * 8 + 2);
    assert!(left[slots..][..3 * 8].iter().chain(&left[policing..][..2]).all(|octet| *octet == 0));
    for (policed, slot) in [(1, 0), (2, 1), (2, 2), (2, 0x80)] {
        (left[policing], left[slots]) = (policed, slot);
        std::fs::write(&file, &left).unwrap();
        assert_eq!(kept(&file, 40, "10.3.0.1").sessions(), 0, "{policed}, {slot}");
    }
}

#[test]
fn of_two_that_a_process_leaves_of_one_session_the_later_one_is_in_force() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tables");
    let tables = kept(&file, 40, "10.3.0.1");
    tables.apply(vec![limited(1, 0x10, 1), limited(2, 0x20, 2)]).unwrap();
    let before = std::fs::read(&file).unwrap();
    tables.apply(vec![limited(1, 0x30, 1)]).unwrap();
    let mut left = std::fs::read(&file).unwrap();
    // As if the process had been killed before it let go of the former one: both heads are as they were.
    let end = before.chunks(64).skip(1).position(|line| line.iter().all(|octet| *octet == 0)).unwrap();
    left[64..64 * (end + 1)].copy_from_slice(&before[64..64 * (end + 1)]);
    std::fs::write(&file, left).unwrap();
    let next = kept(&file, 40, "10.3.0.1");
    let is_there: Vec<_> = found(&next, [0x10, 0x20, 0x30]).iter().map(Option::is_some).collect();
    assert_eq!((is_there, next.sessions()), (vec![false, true, true], 2));
}
