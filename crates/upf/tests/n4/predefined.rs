//! Predefined rules: activated and deactivated by their names (TS 29.244, 5.19).

use crate::support::*;
use pfcp::rule::{CreateQer, SdfFilter, UpdatePdr};
use pfcp::session::Modification;
use pfcp::{Cause, Fault, IeType};
use upf::rules::{Pdr, Session};

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn change(activate: &[&str], deactivate: &[&str]) -> Modification {
    let update = UpdatePdr { activate: names(activate), deactivate: names(deactivate), ..UpdatePdr::new(2) };
    Modification { update_pdrs: vec![update], ..Modification::default() }
}

/// What PDR 2 is in force as: of each part the remote port that it matches (0 for all), and its QERs of the UPF's.
fn parts(session: &Session) -> Vec<(u16, usize)> {
    let port = |pdr: &Pdr| pdr.pdi.sdf_filters.first().map_or(0, |filter| filter.from.ports[0].0);
    let own = |pdr: &Pdr| pdr.qer_ids.iter().filter(|&&id| id >> 31 != 0).count();
    session.pdrs.iter().filter(|pdr| pdr.id == 2).map(|pdr| (port(pdr), own(pdr))).collect()
}

#[test]
fn a_predefined_rule_adds_filters_and_qos_while_it_is_active() {
    let mut bench = Bench::associated();
    let mut request = establishment(1);
    request.create_pdrs[1].pdi.sdf_filters = vec![SdfFilter::flow("permit out 6 from any 80 to assigned")];
    request.create_pdrs[1].activate = names(&["dns"]);
    let seid = establish(&mut bench, request).unwrap().up_f_seid.seid;
    let in_force = |bench: &Bench| bench.seen().sessions[&seid].clone();
    assert_eq!(parts(&in_force(&bench)), [(53, 0), (80, 0)]);
    // Those without filters are for what the PDR matches by itself.
    modify(&mut bench, seid, change(&["slow", "closed"], &["dns"])).unwrap();
    let session = in_force(&bench);
    assert_eq!(parts(&session), [(25, 1), (80, 1), (80, 0)]);
    let mut of_upf: Vec<_> = session.qers.iter().filter(|qer| qer.id >> 31 != 0).collect();
    of_upf.sort_by_key(|qer| qer.id);
    assert_eq!((of_upf[0].downlink_mbr_bps, of_upf[0].downlink_gate_open), (Some(1_000), true));
    assert_eq!((of_upf[1].downlink_gate_open, of_upf[1].uplink_gate_open, of_upf[1].qfi), (false, true, Some(7)));
    assert_eq!(session.qers.last().map(|qer| qer.id), Some(1), "a rule's QFI comes before that of the PDR's QERs");
    modify(&mut bench, seid, change(&[], &["closed", "slow"])).unwrap();
    let session = in_force(&bench);
    assert_eq!((parts(&session), session.qers.len()), (vec![(80, 0)], 1));
    bench.check();
}

#[test]
fn a_pdr_without_filters_matches_what_its_predefined_rules_describe() {
    let mut bench = Bench::associated();
    let seid = establish(&mut bench, establishment(1)).unwrap().up_f_seid.seid;
    let in_force = |bench: &Bench| parts(&bench.seen().sessions[&seid]);
    assert_eq!(in_force(&bench), [(0, 0)]);
    modify(&mut bench, seid, change(&["dns"], &[])).unwrap();
    assert_eq!(in_force(&bench), [(53, 0)]);
    modify(&mut bench, seid, change(&["slow"], &[])).unwrap();
    assert_eq!(in_force(&bench), [(53, 0), (0, 1)]);
    // With the PDR go its rules; another one with its ID has none.
    let again = Modification { remove_pdrs: vec![2], create_pdrs: vec![downlink_pdr(2, 1)], ..Modification::default() };
    modify(&mut bench, seid, again).unwrap();
    assert_eq!(in_force(&bench), [(0, 0)]);
}

#[test]
fn predefined_rules_that_are_not_there_are_refused() {
    let mut bench = Bench::associated();
    let unknown = |kind| Fault::of(Cause::UnknownPredefinedRule, kind);
    let mut request = establishment(1);
    request.create_pdrs[0].activate = names(&["video"]);
    assert_eq!(establish(&mut bench, request), Err(unknown(IeType::ActivatePredefinedRules)));
    let seid = establish(&mut bench, establishment(1)).unwrap().up_f_seid.seid;
    let before = bench.seen();
    let refused = modify(&mut bench, seid, change(&["dns", "video"], &[]));
    assert_eq!(refused, Err(unknown(IeType::ActivatePredefinedRules)));
    let refused = modify(&mut bench, seid, change(&[], &["dns"]));
    assert_eq!(refused, Err(unknown(IeType::DeactivatePredefinedRules)));
    assert_eq!(bench.seen(), before);
    // Their IDs are not for session managers.
    let create_qers = vec![CreateQer { id: 0x8000_0001, ..qer(1) }];
    let refused = modify(&mut bench, seid, Modification { create_qers, ..Modification::default() });
    assert_eq!(refused, Err(Fault::of(Cause::MandatoryIeIncorrect, IeType::QerId)));
}
