//! Applications that session managers describe, and PDRs that detect them.

use crate::support::*;
use pfcp::pfd::{ApplicationPfds, PfdContents, PfdManagement};
use pfcp::rule::{SdfFilter as WireFilter, UpdatePdr};
use pfcp::session::{Establishment, Modification};
use pfcp::{Cause, Fault, IeType, NodeId, Request, Response};
use upf::n4::parse_flow_description;
use upf::rules::SdfFilter;
use upf::tables::ApplyError;

const DNS: &str = "permit out 17 from 192.0.2.53 53 to assigned";
const WEB: &str = "permit out 6 from 198.51.100.0/24 80,443 to assigned";

fn application(id: &str, texts: &[&str]) -> ApplicationPfds {
    ApplicationPfds { id: id.into(), pfds: texts.iter().map(|text| PfdContents::flow(*text)).collect() }
}

fn describe(bench: &mut Bench, applications: Vec<ApplicationPfds>) -> Result<(), Fault> {
    let node_id = Some(NodeId::Fqdn("smf".into()));
    match bench.ask(0, &Request::PfdManagement(PfdManagement { node_id, applications })) {
        Response::PfdManagement(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

/// A session whose uplink PDR detects the application.
fn detecting(number: u8, id: &str) -> Establishment {
    let mut request = establishment(number);
    request.create_pdrs[0].pdi.application_id = Some(id.into());
    request
}

/// The filters of the session's uplink PDR, as in force.
fn filters(bench: &Bench, seid: u64) -> Vec<SdfFilter> {
    let session = &bench.seen().sessions[&seid];
    session.pdrs.iter().find(|pdr| pdr.id == 1).unwrap().pdi.sdf_filters.clone()
}

fn parsed(texts: &[&str]) -> Vec<SdfFilter> {
    texts.iter().map(|text| parse_flow_description(text).unwrap()).collect()
}

#[test]
fn a_pdr_detects_an_application_as_it_is_described_now() {
    let mut bench = Bench::associated();
    describe(&mut bench, vec![application("dns", &[DNS]), application("web", &[WEB])]).unwrap();
    let first = establish(&mut bench, detecting(1, "dns")).unwrap().up_f_seid.seid;
    let second = establish(&mut bench, detecting(2, "dns")).unwrap().up_f_seid.seid;
    let other = establish(&mut bench, detecting(3, "web")).unwrap().up_f_seid.seid;
    assert_eq!((filters(&bench, first), filters(&bench, other)), (parsed(&[DNS]), parsed(&[WEB])));
    // Another description takes effect in all sessions; that of other applications stays.
    describe(&mut bench, vec![application("dns", &[DNS, WEB])]).unwrap();
    assert_eq!((filters(&bench, first), filters(&bench, second)), (parsed(&[DNS, WEB]), parsed(&[DNS, WEB])));
    assert_eq!(filters(&bench, other), parsed(&[WEB]));
    bench.check();
    // An application that is not described any more is not detected, and not known to new rules.
    describe(&mut bench, vec![application("dns", &[])]).unwrap();
    assert_eq!(filters(&bench, first), [SdfFilter::nothing()]);
    let unknown = Fault::of(Cause::UnknownApplicationId, IeType::ApplicationId);
    assert_eq!(establish(&mut bench, detecting(4, "dns")), Err(unknown));
    modify(&mut bench, first, Modification::default()).unwrap();
    describe(&mut bench, vec![application("dns", &[WEB])]).unwrap();
    assert_eq!(filters(&bench, first), parsed(&[WEB]));
    // Without any application all descriptions go.
    describe(&mut bench, vec![]).unwrap();
    assert_eq!(filters(&bench, other), [SdfFilter::nothing()]);
    bench.check();
    [first, second, other].into_iter().for_each(|seid| delete(&mut bench, seid).unwrap());
    describe(&mut bench, vec![application("dns", &[DNS])]).unwrap();
    bench.check();
}

#[test]
fn a_pdr_may_come_to_detect_an_application_or_another_one_or_none() {
    let mut bench = Bench::associated();
    describe(&mut bench, vec![application("dns", &[DNS]), application("web", &[WEB])]).unwrap();
    let seid = establish(&mut bench, establishment(1)).unwrap().up_f_seid.seid;
    let f_teid = bench.seen().sessions[&seid].pdrs.iter().find_map(|pdr| pdr.pdi.f_teid).unwrap();
    let given = pfcp::rule::FTeid::Given { teid: f_teid.teid, v4: f_teid.v4, v6: f_teid.v6 };
    let set = |bench: &mut Bench, id: Option<&str>| {
        let mut pdi = uplink_pdr(1, 1, given).pdi;
        pdi.application_id = id.map(Into::into);
        let update = UpdatePdr { pdi: Some(pdi), ..UpdatePdr::new(1) };
        modify(bench, seid, Modification { update_pdrs: vec![update], ..Default::default() })
    };
    set(&mut bench, Some("dns")).unwrap();
    assert_eq!(filters(&bench, seid), parsed(&[DNS]));
    set(&mut bench, Some("web")).unwrap();
    describe(&mut bench, vec![application("dns", &[])]).unwrap();
    assert_eq!(filters(&bench, seid), parsed(&[WEB]));
    let before = bench.seen();
    assert_eq!(set(&mut bench, Some("dns")).unwrap_err().cause, Cause::UnknownApplicationId);
    assert_eq!(bench.seen(), before);
    set(&mut bench, None).unwrap();
    assert_eq!(filters(&bench, seid), []);
    bench.check();
}

#[test]
fn what_cannot_be_detected_is_refused_and_changes_nothing() {
    use Cause::*;
    let mut bench = Bench::associated();
    describe(&mut bench, vec![application("dns", &[DNS])]).unwrap();
    let seid = establish(&mut bench, detecting(1, "dns")).unwrap().up_f_seid.seid;
    let before = bench.seen();
    let contents = |cause| Fault::of(cause, IeType::PfdContents);
    let url = ApplicationPfds { id: "x".into(), pfds: vec![PfdContents { flow_description: None, has_others: true }] };
    let empty = ApplicationPfds { id: "x".into(), pfds: vec![PfdContents::default()] };
    for (request, fault) in [
        (vec![application("dns", &[WEB]), url], contents(ServiceNotSupported)),
        (vec![application("dns", &[WEB]), empty], contents(MandatoryIeIncorrect)),
        (vec![application("dns", &[WEB]), application("x", &["web traffic"])], contents(MandatoryIeIncorrect)),
        (vec![application("dns", &[WEB; 65])], Fault::of(NoResourcesAvailable, IeType::PfdContext)),
    ] {
        assert_eq!(describe(&mut bench, request), Err(fault));
        assert_eq!(bench.seen(), before);
    }
    // What the tables refuse changes nothing either: neither sessions, nor what is known.
    bench.node.tables().refuse_next(ApplyError::Stopped);
    assert_eq!(describe(&mut bench, vec![application("dns", &[WEB])]), Err(Fault::new(SystemFailure)));
    assert_eq!(bench.seen(), before);
    bench.check();
    delete(&mut bench, seid).unwrap();
    let seid = establish(&mut bench, detecting(1, "dns")).unwrap().up_f_seid.seid;
    assert_eq!(filters(&bench, seid), parsed(&[DNS]));
    // An application and filters in one PDI.
    let mut both = detecting(2, "dns");
    both.create_pdrs[0].pdi.sdf_filters = vec![WireFilter::flow(WEB)];
    assert_eq!(establish(&mut bench, both), Err(Fault::of(ServiceNotSupported, IeType::ApplicationId)));
    // Nobody but a session manager describes applications.
    let none = Err(Fault::new(NoEstablishedPfcpAssociation));
    let anonymous = |node_id| Request::PfdManagement(PfdManagement { node_id, applications: vec![] });
    let stranger = anonymous(Some(NodeId::Fqdn("stranger".into())));
    assert_eq!(bench.ask(0, &stranger), Response::PfdManagement(none));
    assert_eq!(bench.ask(0, &anonymous(None)), Response::PfdManagement(Ok(())), "one at an address that is known");
}
