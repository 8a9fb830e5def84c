//! Several ports to data networks and one for N9: F-TEIDs, UEs that have the same address, and what goes from worker to worker.

use std::net::IpAddr;

use crate::sessions::{downlink, info, mark, ue};
use port::synthetic::Synthetic;
use port::{PortInfo, Steering};
use upf::function::{AssemblyError, Place, Plan, Upf};
use upf::rules::{Buffering, FarAction, Interface, Session};
use upf::side::{PortId, PortKind};
use upf::tables::{ApplyError, SessionUpdate, Tables};
use vport::steering::address_bucket;

fn place(kind: PortKind, instances: &[&str], info: PortInfo) -> Place {
    let network_instances = instances.iter().map(|name| name.to_string()).collect();
    Place { kind, network_instances, port: Synthetic::new(vec![]).info(info).open() }
}

fn at(name: &str, address: &str) -> PortInfo {
    info(name, address, 1, Steering::None)
}

fn places() -> Vec<Place> {
    vec![
        place(PortKind::N3, &["access"], at("n3", "10.3.0.1")),
        place(PortKind::N6, &["internet"], at("n6a", "10.6.0.1")),
        place(PortKind::N6, &["ims"], at("n6b", "10.7.0.1")),
        place(PortKind::N9, &["core"], at("n9", "10.9.0.1")),
    ]
}

/// Puts a session in force while the workers run.
fn put(upf: &mut Upf, session: Session) -> Result<(), ApplyError> {
    let tables: Tables = upf.tables.clone();
    std::thread::scope(|scope| {
        let change = scope.spawn(move || tables.apply(vec![SessionUpdate::Put(session)]));
        while !change.is_finished() {
            upf.workers.iter_mut().for_each(|worker| _ = worker.run_once());
        }
        change.join().unwrap()
    })
}

#[test]
fn f_teids_have_the_addresses_of_the_port_that_their_rule_means() {
    let upf = Upf::over(&Plan::default(), places()).unwrap();
    let address = |interface, instance| {
        let addresses = upf.tables.addresses_for(interface, instance);
        addresses.first().map(IpAddr::to_string)
    };
    assert_eq!(address(Interface::Access, None).as_deref(), Some("10.3.0.1"));
    assert_eq!(address(Interface::Core, None).as_deref(), Some("10.9.0.1"));
    // The anchor's end of N9 is its way to the RAN.
    assert_eq!(address(Interface::Access, Some("core")).as_deref(), Some("10.9.0.1"));
    assert_eq!(address(Interface::Core, Some("elsewhere")), None);
    assert_eq!(upf.tables.tunnel_addresses().len(), 2);
}

#[test]
fn an_address_is_one_ue_s_in_each_data_network() {
    let mut upf = Upf::over(&Plan::default(), places()).unwrap();
    let session = |seid: u64, instance: &str| {
        let mut session = crate::sessions::session(seid, seid as u32, 1);
        session.pdrs[1].pdi.network_instance = Some(instance.to_owned());
        session
    };
    put(&mut upf, session(1, "internet")).unwrap();
    put(&mut upf, session(2, "ims")).unwrap();
    let refused = put(&mut upf, session(3, "ims"));
    assert_eq!(refused, Err(ApplyError::UeAddressInUse(crate::sessions::ue(1).into())));
}

#[test]
fn packets_are_handed_over_and_wait_as_what_came_from_their_data_network() {
    // Two UEs with one address, which belongs to the second worker; everything comes to the first.
    let number = (1..).find(|&number| address_bucket(ue(number).into()) % 2 == 1).unwrap();
    let frames = |marks: std::ops::Range<u32>| marks.map(|mark| downlink(number, mark, 100)).collect::<Vec<_>>();
    let n6 = |name: &str, address: &str, marks| {
        let port = Synthetic::new(frames(marks)).once().info(info(name, address, 2, Steering::None)).open();
        Place { kind: PortKind::N6, network_instances: vec![name.to_owned()], port }
    };
    let (n3, to_n3) = Synthetic::new(vec![]).info(info("n3", "10.3.0.1", 2, Steering::Teid)).open_captured();
    let n3 = Place { kind: PortKind::N3, network_instances: vec![], port: n3 };
    let places = vec![n3, n6("internet", "10.6.0.1", 0..40), n6("ims", "10.7.0.1", 100..140)];
    let mut upf = Upf::over(&Plan::default(), places).unwrap();
    upf.tables.set_neighbours(&[(PortId::N3, "10.3.0.2".parse().unwrap(), Some([2; 6]))]).unwrap();
    let session = |seid: u64, instance: &str| {
        let mut session = crate::sessions::session(seid, seid as u32, number);
        session.pdrs[1].pdi.network_instance = Some(instance.to_owned());
        session
    };
    let mut asleep = session(2, "ims");
    asleep.fars[1].action = FarAction::Buffer(Buffering { max_packets: 100, ..Buffering::default() });
    let updates = [session(1, "internet"), asleep].map(SessionUpdate::Put);
    upf.tables.apply(updates.into()).unwrap();
    while upf.workers.iter_mut().fold(false, |worked, worker| worker.run_once() | worked) {}
    let sent = || -> Vec<(u32, u32)> {
        let teid = |frame: &[u8]| u32::from_be_bytes(frame[14 + 28 + 4..][..4].try_into().unwrap());
        to_n3.take().iter().map(|frame| (teid(frame), mark(frame))).collect()
    };
    assert_eq!(sent(), (0..40).map(|mark| (1, mark)).collect::<Vec<_>>());
    put(&mut upf, session(2, "ims")).unwrap();
    while upf.workers.iter_mut().fold(false, |worked, worker| worker.run_once() | worked) {}
    assert_eq!(sent(), (100..140).map(|mark| (2, mark)).collect::<Vec<_>>());
    assert!(upf.counts.all().is_empty(), "{:?}", upf.counts.all());
}

#[test]
fn networks_behind_ues_are_one_ue_s_in_each_data_network() {
    let mut upf = Upf::over(&Plan::default(), places()).unwrap();
    let session = |seid: u64, instance: &str, length| {
        let mut session = crate::sessions::session(seid, seid as u32, seid as u32);
        session.pdrs[1].pdi.network_instance = Some(instance.to_owned());
        session.pdrs[1].pdi.framed_routes = vec![("192.168.0.0".parse().unwrap(), length)];
        session
    };
    put(&mut upf, session(1, "internet", 24)).unwrap();
    put(&mut upf, session(2, "ims", 24)).unwrap();
    assert!(matches!(put(&mut upf, session(3, "ims", 24)), Err(ApplyError::UeAddressInUse(_))));
    put(&mut upf, session(3, "ims", 25)).unwrap();
}

#[test]
fn ports_that_lack_a_queue_pair_or_n3_or_a_data_network_make_no_upf() {
    let mut few = places();
    few[3] = place(PortKind::N9, &["core"], info("n9", "10.9.0.1", 2, Steering::Teid));
    let Err(refused) = Upf::over(&Plan::default(), few) else { panic!("n9 has two queue pairs") };
    assert!(matches!(&refused, AssemblyError::Queues { n3: 1, name, queues: 2 } if name == "n9"), "{refused}");
    let without = |number| {
        let mut places = places();
        places.remove(number);
        places
    };
    assert!(matches!(Upf::over(&Plan::default(), without(0)), Err(AssemblyError::Ports)));
    let mut no_data_network = without(1);
    no_data_network.remove(1);
    assert!(matches!(Upf::over(&Plan::default(), no_data_network), Err(AssemblyError::Ports)));
}
