//! The session tables from both ends: what is applied is what workers see, whole or not at all.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sessions::{qer, session, ue};
use port::PortInfo;
use upf::side::{PortId, Side};
use upf::tables::{ApplyError, Reader, SessionUpdate, Settings, Tables};

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
    let home = |teid| readers[0].version().by_teid(teid).map(|found| found.1);
    assert_eq!(home(own), Some(vport::steering::address_bucket(ue(1).into())));
    assert_eq!(home(same_index), Some(vport::steering::address_bucket(ue(2).into())));
}

#[test]
fn sessions_share_a_policer_by_correlation_id_if_one_worker_owns_them() {
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
    let with_first = (2..).find(|&number| worker(number) == worker(1)).unwrap();
    let elsewhere = (2..).find(|&number| worker(number) != worker(1)).unwrap();
    tables.apply(put(correlated(1, 1))).unwrap();
    tables.apply(put(correlated(2, with_first))).unwrap();
    assert_eq!(tables.apply(put(correlated(3, elsewhere))), Err(ApplyError::OtherWorker(7)));
    // Another session manager's ID is another one.
    let mut other = correlated(3, elsewhere);
    other.cp_f_seid = CpFSeid { address: [10, 4, 0, 9].into(), ..other.cp_f_seid };
    tables.apply(put(other)).unwrap();

    let meters = |reader: &mut Reader, teid: u32| {
        reader.refresh();
        reader.version().by_teid(teid).unwrap().0[0].meters().to_vec()
    };
    let first = meters(&mut readers[0], 0x11);
    assert_eq!(first.len(), 1);
    assert_eq!(meters(&mut readers[0], 0x10 + with_first), first);
    assert_ne!(meters(&mut readers[0], 0x10 + elsewhere), first);
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
fn policers_are_bounded_and_come_back() {
    let (tables, _) = tables(1, 0);
    let with = |qers: std::ops::Range<u32>| {
        let mut session = session(1, 0x10, 1);
        session.qers = qers.map(|id| qer(id, Some(1_000))).collect();
        vec![SessionUpdate::Put(session)]
    };
    // Four policers go with one session: two QERs, both ways.
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
