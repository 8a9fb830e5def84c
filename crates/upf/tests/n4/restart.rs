//! A node that goes on where another process ended: the same sessions, associations, TEIDs, counts, answers and time stamp;
//! or, if anything of that is missing, none of it and a new time stamp.

mod tables;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use crate::support::drive::drive_on;
use crate::support::*;
use pfcp::node::Heartbeat;
use pfcp::pfd::{ApplicationPfds, PfdContents, PfdManagement};
use pfcp::rule::{CreateUrr, MeasurementMethod, ReportingTriggers, UrrTerms};
use pfcp::session::{Established, Modification};
use pfcp::{Cause, Fault, Header, IeType, MessageType, NodeId, RecoveryTimeStamp, Request, Response, Volume};
use proptest::prelude::*;
use tempfile::TempDir;
use upf::alarms::{self, Alarm, AlarmReceiver, Alarms};
use upf::bell::Bell;
use upf::n4::{Limits, Node, RestoreError, RuleTables};
use upf::rules::Session;
use upf::store::{Change, Database, Identity, Kind, State};
use upf::usage::{Reading, Usage, UsageId};

const SESSIONS: usize = 64;

/// A UPF's life: a node whose changes are durable when they are taken.
struct Life {
    bench: Bench,
    state: State,
    durable: Arc<AtomicU64>,
    alarms: Alarms,
    told: AlarmReceiver,
    directory: TempDir,
}

/// What there is if nothing can be restored.
type Unborn = Box<(RestoreError, State, Watched, TempDir)>;
type Spoil<'s> = &'s dyn Fn(&Path);

fn identity() -> Identity {
    Identity { node: "upf".into(), access: vec!["10.3.0.1".into()] }
}

fn open_at(directory: &Path) -> State {
    // Whoever starts again starts later.
    let later = u32::from(directory.join("lock").exists() || directory.join("sessions.redb").exists());
    State::open(directory, identity(), SESSIONS, RecoveryTimeStamp(3_900_000_000 + later)).unwrap()
}

impl Life {
    fn first() -> Self {
        let mut life = Self::begin(tempfile::tempdir().unwrap(), Instant::now()).map_err(|unborn| unborn.0).unwrap();
        let Response::AssociationSetup(setup) = life.ask(0, &setup("smf", 1_000)) else { panic!() };
        assert_eq!(setup.outcome, Ok(()));
        life
    }

    /// A life on what there is in the directory, and the state if it cannot begin.
    fn begin(directory: TempDir, now: Instant) -> Result<Self, Unborn> {
        let mut state = open_at(directory.path());
        let (clock, memory) = (state.clock(), state.take_memory());
        let config = upf::n4::Config { recovery: state.recovery(), ..config() };
        let tables = Watched::on(SESSIONS, memory);
        let restored = match state.is_found() {
            true => Node::restore(config, tables, clock, state.database(), state.begin_to_restore(), now),
            false => Ok(Node::new(config, tables, clock)),
        };
        let mut node = match restored {
            Ok(node) => node,
            Err(not) => {
                let error = not.error;
                assert_eq!(not.tables.seen(), Seen::default(), "what cannot be restored leaves no trace");
                return Err(Box::new((error, state, not.tables, directory)));
            }
        };
        state.restored();
        let durable = Arc::new(AtomicU64::new(node.last_change()));
        node.keep(durable.clone());
        let bench = Bench::of(node, clock, now);
        let (alarms, told) = alarms::channel(Arc::new(Bell::new().unwrap()));
        Ok(Self { bench, state, durable, alarms, told, directory })
    }

    fn ask(&mut self, seid: u64, request: &Request) -> Response {
        let response = self.bench.ask(seid, request);
        self.keep();
        response
    }

    fn keep(&mut self) {
        commit(&mut self.bench.node, &self.state, &self.durable);
    }

    /// What a process that is killed at this moment leaves.
    fn remains(&self) -> TempDir {
        let copy = tempfile::tempdir().unwrap();
        for file in ["sessions.redb", "counters", "tables"] {
            fs::copy(self.directory.path().join(file), copy.path().join(file)).unwrap();
        }
        copy
    }

    /// The next life.
    fn killed(self) -> Self {
        let (before, sequence) = (self.everything(), self.bench.sequence);
        let recovery = self.bench.node.recovery();
        let mut next =
            Self::begin(self.remains(), self.bench.now.max(Instant::now())).map_err(|unborn| unborn.0).unwrap();
        next.bench.sequence = sequence;
        assert_eq!(next.everything(), before);
        assert_eq!(next.bench.node.recovery(), recovery);
        next.bench.check();
        next
    }

    /// Sessions with their counts.
    fn everything(&self) -> Vec<(Session, Vec<Counted>)> {
        let counted = |mut session: Session| {
            let urrs = std::mem::take(&mut session.urrs);
            let reading = |usage: &Usage| usage.read(0);
            let activity = session.activity.take();
            let activity = activity.iter().map(|usage| (usage.id().urr, false, usage.id(), reading(usage)));
            let urrs = urrs.iter().map(|urr| (urr.id, urr.measures, urr.usage.id(), reading(&urr.usage)));
            (session, urrs.chain(activity).collect())
        };
        self.bench.node.sessions().map(counted).collect()
    }

    /// All that is kept but for the numbers, as the store has it.
    fn kept(&mut self) -> Vec<Change> {
        let (_, mut changes) = self.bench.node.all_changes();
        changes.retain(|change| change.kind != Kind::Numbers);
        changes.sort_by_key(|change| (change.kind, change.key));
        changes
    }

    /// A packet of a session, for all its rules.
    fn packet(&mut self, up_seid: u64, uplink: bool, octets: usize) {
        let session = self.bench.node.session(up_seid).unwrap();
        let usages: Vec<_> = session.urrs.into_iter().map(|urr| urr.usage).collect();
        count(&usages, uplink, octets, self.bench.clock.now_ns(), &mut self.alarms);
    }

    fn establish(&mut self, number: u8, urrs: Vec<CreateUrr>) -> Established {
        let mut request = establishment(number);
        request.create_pdrs.iter_mut().for_each(|pdr| pdr.urr_ids = urrs.iter().map(|urr| urr.id).collect());
        request.create_urrs = urrs;
        let Response::SessionEstablishment(response) = self.ask(0, &Request::SessionEstablishment(request)) else {
            panic!()
        };
        response.outcome.unwrap()
    }
}

/// What the keeper does.
fn commit(node: &mut Node<Watched>, state: &State, durable: &AtomicU64) {
    let (number, changes) = node.take_changes();
    if !changes.is_empty() {
        state.database().commit(&changes).unwrap();
        node.counters().head().commit(number);
        durable.store(number, Relaxed);
    }
}

type Counted = (u32, bool, UsageId, Reading);

fn volume_rule(id: u32, threshold: Option<u64>) -> CreateUrr {
    CreateUrr {
        id,
        method: Some(MeasurementMethod::VOLUM),
        triggers: Some(if threshold.is_some() { ReportingTriggers::VOLTH } else { ReportingTriggers(0) }),
        terms: UrrTerms {
            volume_threshold: threshold.map(|total| Volume { total: Some(total), ..Volume::default() }),
            ..UrrTerms::default()
        },
        others: vec![],
    }
}

fn query() -> Request {
    Request::SessionModification(Modification { flags: Modification::QAURR, ..Modification::default() })
}

/// Octets uplink and downlink of the only report, and its number.
fn told(reports: &[pfcp::report::UsageReport]) -> (u64, u64, u32) {
    assert_eq!(reports.len(), 1);
    let octets = reports[0].volume.unwrap().octets;
    (octets.uplink.unwrap(), octets.downlink.unwrap(), reports[0].sequence)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_upf_that_was_killed_is_octet_for_octet_what_it_was(octets in proptest::collection::vec(any::<u8>(), 0..2_000)) {
        let mut life = Life::first();
        let Life { bench, state, durable, alarms, told, .. } = &mut life;
        let mut turn = 0_usize;
        drive_on(bench, &octets, |bench| {
            turn += 1;
            for session in bench.node.sessions() {
                let usages: Vec<_> = session.urrs.into_iter().map(|urr| urr.usage).collect();
                count(&usages, turn.is_multiple_of(2), turn, bench.clock.now_ns(), alarms);
            }
            while told.take().is_some() {}
            commit(&mut bench.node, state, durable);
        });
        let before = life.kept();
        // Answers and reports may be of times that have not come yet.
        let mut after = life.killed();
        let is_session = |change: &&Change| matches!(change.kind, Kind::Session | Kind::Association);
        let kept = after.kept();
        prop_assert_eq!(
            kept.iter().filter(is_session).collect::<Vec<_>>(),
            before.iter().filter(is_session).collect::<Vec<_>>()
        );
        // TEIDs that were reserved for a request which was refused then are nobody's business.
        prop_assert!(kept.iter().filter(|change| change.kind == Kind::Teid).all(|change| before.contains(change)));
        let answers = |changes: &[Change]| changes.iter().filter(|change| change.kind == Kind::Answer).count();
        prop_assert_eq!(answers(&kept), answers(&before));
    }
}

#[test]
fn usage_goes_on_to_the_octet_and_nothing_is_billed_twice() {
    let mut life = Life::first();
    let seid = life.establish(1, vec![volume_rule(7, Some(10_000))]).up_f_seid.seid;
    life.packet(seid, true, 600);
    life.packet(seid, false, 400);
    let Response::SessionModification(response) = life.ask(seid, &query()) else { panic!() };
    assert_eq!(told(&response.outcome.unwrap().usage), (600, 400, 0));
    life.packet(seid, true, 50);
    let mut life = life.killed();
    life.packet(seid, true, 5);
    let mut life = life.killed();
    // The threshold counts from the report, and is told when it is reached.
    life.packet(seid, false, 9_944);
    assert_eq!(life.told.take(), None);
    life.packet(seid, false, 1);
    assert_eq!(life.told.take(), Some(Alarm::Usage(UsageId { up_seid: seid, urr: 7 })));
    let Response::SessionDeletion(response) = life.ask(seid, &Request::SessionDeletion) else { panic!() };
    assert_eq!(told(&response.outcome.unwrap()), (55, 9_945, 1));
}

#[test]
fn counters_of_a_rule_that_is_gone_are_used_again_only_when_that_is_durable() {
    let mut life = Life::first();
    let seid = life.establish(1, vec![volume_rule(7, None)]).up_f_seid.seid;
    life.packet(seid, true, 600);
    // Deleted and answered by nobody yet: the next process would still have the session.
    life.bench.ask(seid, &Request::SessionDeletion);
    let other = {
        let mut request = establishment(2);
        request.create_urrs = vec![volume_rule(7, None)];
        let Response::SessionEstablishment(response) = life.bench.ask(0, &Request::SessionEstablishment(request))
        else {
            panic!()
        };
        response.outcome.unwrap().up_f_seid.seid
    };
    life.packet(other, true, 1);
    let mut next = Life::begin(life.remains(), Instant::now()).map_err(|unborn| unborn.0).unwrap();
    next.bench.sequence = 1_000;
    let Response::SessionDeletion(response) = next.ask(seid, &Request::SessionDeletion) else { panic!() };
    assert_eq!(told(&response.outcome.unwrap()).0, 600);
    assert!(next.bench.node.session(other).is_none(), "its acceptance was not durable");
}

#[test]
fn counters_of_a_rule_that_goes_with_the_first_request_are_not_used_again_before_that_is_durable() {
    let mut life = Life::first();
    let seid = life.establish(1, vec![volume_rule(7, None)]).up_f_seid.seid;
    life.packet(seid, true, 600);
    let mut life = life.killed();
    life.bench.ask(seid, &Request::SessionDeletion);
    let mut request = establishment(2);
    request.create_pdrs.iter_mut().for_each(|pdr| pdr.urr_ids = vec![7]);
    request.create_urrs = vec![volume_rule(7, None)];
    let other = establish(&mut life.bench, request).unwrap().up_f_seid.seid;
    life.packet(other, true, 1);
    let mut next = Life::begin(life.remains(), Instant::now()).map_err(|unborn| unborn.0).unwrap();
    next.bench.sequence = 1_000;
    let Response::SessionDeletion(response) = next.ask(seid, &Request::SessionDeletion) else { panic!() };
    assert_eq!(told(&response.outcome.unwrap()).0, 600);
}

#[test]
fn while_sessions_are_restored_nobody_is_told_that_one_is_not_there() {
    let mut life = Life::first();
    life.establish(1, vec![]);
    // In force, and not in the store.
    establish(&mut life.bench, establishment(2)).unwrap();
    let next = Life::begin(life.remains(), Instant::now()).map_err(|unborn| unborn.0).unwrap();
    assert_eq!(next.bench.node.tables().seen().sessions.len(), 1);
    assert!(!next.bench.node.tables().exposed.load(Relaxed));
    let mut next = next;
    next.establish(3, vec![]);
    assert!(next.bench.node.tables().exposed.load(Relaxed), "all are there again");
}

#[test]
fn a_request_that_was_answered_gets_the_same_octets_from_the_next_process() {
    let mut life = Life::first();
    life.bench.sequence += 1;
    let request = Request::SessionEstablishment(establishment(1)).encode(0, life.bench.sequence);
    let answer = life.bench.octets(&request).unwrap();
    life.keep();
    let mut life = life.killed();
    assert_eq!(life.bench.octets(&request).unwrap(), answer);
    assert_eq!(life.bench.node.sessions().count(), 1);
}

#[test]
fn a_report_that_is_not_answered_is_sent_again_by_the_next_process() {
    let mut life = Life::first();
    let seid = life.establish(1, vec![volume_rule(7, Some(1_000))]).up_f_seid.seid;
    life.packet(seid, true, 1_500);
    let alarm = life.told.take().unwrap();
    let report = life.bench.node.alarm(alarm, Instant::now()).pop().unwrap();
    life.keep();
    let mut life = life.killed();
    let sent = life.bench.node.tick(Instant::now());
    assert!(sent.contains(&report), "{sent:x?}");
    let (header, _) = Header::parse(&report.octets).unwrap();
    let response = Response::SessionReport(pfcp::report::SessionReportResponse::new(Ok(())));
    assert_eq!(life.bench.octets(&response.encode(0, header.sequence)), None);
    life.keep();
    let mut life = life.killed();
    let sent = life.bench.node.tick(Instant::now());
    assert!(!sent.iter().any(|datagram| datagram.octets == report.octets), "it was answered");
    assert!(sent.iter().all(|datagram| Header::parse(&datagram.octets).unwrap().0.sequence != header.sequence));
}

#[test]
fn seids_and_teids_are_neither_those_in_use_nor_those_that_just_were() {
    let teid = |established: &Established| match established.created_pdrs[0].f_teid {
        Some(pfcp::rule::FTeid::Given { teid, .. }) => teid,
        _ => panic!(),
    };
    let mut life = Life::first();
    let (first, second) = (life.establish(1, vec![]), life.establish(2, vec![]));
    life.ask(second.up_f_seid.seid, &Request::SessionDeletion);
    let mut used = BTreeSet::from([teid(&first), teid(&second)]);
    let mut life = life.killed();
    for number in 3..20 {
        let next = life.establish(number, vec![]);
        assert!(next.up_f_seid.seid > second.up_f_seid.seid);
        assert!(used.insert(teid(&next)));
    }
}

#[test]
fn heartbeats_go_on_and_tell_of_a_restart_of_the_peer_only() {
    let mut life = Life::first();
    life.establish(1, vec![]);
    let recovery = life.bench.node.recovery();
    let mut life = life.killed();
    let Response::Heartbeat(answer) =
        life.ask(0, &Request::Heartbeat(Heartbeat { recovery: RecoveryTimeStamp(1_000) }))
    else {
        panic!()
    };
    assert_eq!(answer.recovery, recovery);
    let sent = life.bench.node.tick(Instant::now());
    let (header, body) = Header::parse(&sent[0].octets).unwrap();
    assert_eq!(header.message_type, MessageType::HEARTBEAT_REQUEST);
    assert_eq!(Request::parse(&header, body).unwrap(), Request::Heartbeat(Heartbeat { recovery }));
    assert_eq!(life.bench.node.sessions().count(), 1);
    life.ask(0, &Request::Heartbeat(Heartbeat { recovery: RecoveryTimeStamp(1_001) }));
    assert_eq!(life.bench.node.sessions().count(), 0);
    assert_eq!(life.killed().bench.node.sessions().count(), 0);
}

#[test]
fn the_longest_times_that_a_session_manager_may_ask_for_are_restored() {
    let mut life = Life::first();
    let longest = Some(u32::MAX);
    let terms = UrrTerms {
        period_s: longest,
        time_threshold_s: longest,
        time_quota_s: longest,
        quota_holding_time_s: longest,
        quota_validity_time_s: longest,
        monitoring_time: longest,
        inactivity_detection_time_s: longest,
        ..UrrTerms::default()
    };
    let rule = CreateUrr { terms, method: Some(MeasurementMethod::DURAT), ..volume_rule(1, None) };
    let seid = life.establish(1, vec![rule]).up_f_seid.seid;
    let watch = Modification { inactivity_timer_s: longest, ..Modification::default() };
    let Response::SessionModification(answer) = life.ask(seid, &Request::SessionModification(watch)) else { panic!() };
    answer.outcome.unwrap();
    assert_eq!(life.killed().bench.node.sessions().count(), 1);
}

/// A state directory with sessions that count.
fn lived() -> Life {
    let mut life = Life::first();
    for number in 1..=8 {
        let seid = life.establish(number, vec![volume_rule(1, Some(1_000))]).up_f_seid.seid;
        life.packet(seid, true, 100);
    }
    life
}

/// Begins a life on what is spoilt: all of what was, or nothing under a later time stamp.
fn begin_on(directory: TempDir, before: &Life) -> bool {
    let old = before.bench.node.recovery();
    match Life::begin(directory, Instant::now()) {
        Ok(life) if life.bench.node.recovery() == old => {
            assert_eq!(life.everything().len(), before.everything().len());
            assert!(life.bench.node.sessions().count() > 0);
            true
        }
        Ok(life) => {
            assert_eq!(life.bench.node.sessions().count(), 0);
            false
        }
        Err(unborn) => {
            let (error, mut state, tables, _directory) = *unborn;
            assert!(tables.up_seids().is_empty());
            state.start_anew(&error.to_string(), RecoveryTimeStamp(0), &tables.counters()).unwrap();
            assert!(state.recovery().is_after(old));
            false
        }
    }
}

#[test]
fn applications_stay_described_whether_or_not_a_session_detects_them() {
    let mut life = Life::first();
    let described = |ids: &[&str]| {
        let pfds = |_: &&str| vec![PfdContents::flow("permit out 17 from 192.0.2.53 53 to assigned")];
        let applications = ids.iter().map(|id| ApplicationPfds { id: (*id).into(), pfds: pfds(id) }).collect();
        Request::PfdManagement(PfdManagement { node_id: Some(NodeId::Fqdn("smf".into())), applications })
    };
    let detects = |life: &mut Life, number: u8, id: &str| {
        let mut request = establishment(number);
        request.create_pdrs[0].pdi.application_id = Some(id.into());
        let Response::SessionEstablishment(response) = life.ask(0, &Request::SessionEstablishment(request)) else {
            panic!()
        };
        response.outcome.map(|_| ())
    };
    let unknown = Err(Fault::of(Cause::UnknownApplicationId, IeType::ApplicationId));
    assert_eq!(life.ask(0, &described(&["used", "unused"])), Response::PfdManagement(Ok(())));
    assert_eq!(detects(&mut life, 1, "used"), Ok(()));
    let mut life = life.killed();
    assert_eq!((detects(&mut life, 2, "used"), detects(&mut life, 3, "unused")), (Ok(()), Ok(())));
    // All are taken back, and that lasts, too.
    assert_eq!(life.ask(0, &described(&[])), Response::PfdManagement(Ok(())));
    assert_eq!(detects(&mut life.killed(), 4, "used"), unknown);

    // A store of a process that kept none has the descriptions that its sessions use.
    let mut life = Life::first();
    assert_eq!(life.ask(0, &described(&["used", "unused"])), Response::PfdManagement(Ok(())));
    assert_eq!(detects(&mut life, 1, "used"), Ok(()));
    let directory = life.remains();
    change(directory.path(), Kind::Applications, 0, None);
    let sequence = life.bench.sequence;
    let mut life = Life::begin(directory, life.bench.now.max(Instant::now())).map_err(|unborn| unborn.0).unwrap();
    life.bench.sequence = sequence;
    assert_eq!((detects(&mut life, 2, "used"), detects(&mut life, 3, "unused")), (Ok(()), unknown));
}

#[test]
fn a_store_that_cannot_be_right_is_put_aside() {
    let life = lived();
    assert!(begin_on(life.remains(), &life), "nothing is wrong with it");
    let spoil: [(&str, Spoil); 9] = [
        ("empty", &|at| fs::write(at.join("sessions.redb"), "").unwrap()),
        ("foreign", &|at| fs::write(at.join("sessions.redb"), "SQLite format 3\0".repeat(1_000)).unwrap()),
        ("a directory", &|at| {
            fs::remove_file(at.join("sessions.redb")).unwrap();
            fs::create_dir(at.join("sessions.redb")).unwrap();
        }),
        ("without counters", &|at| fs::remove_file(at.join("counters")).unwrap()),
        ("with others' counters", &|at| fs::write(at.join("counters"), [7; 4_096]).unwrap()),
        ("with counters cut off", &|at| {
            fs::write(at.join("counters"), &fs::read(at.join("counters")).unwrap()[..32]).unwrap()
        }),
        ("of another format", &|at| change(at, Kind::Preface, 0, Some(&[99, 0, 0]))),
        ("without an association", &|at| change(at, Kind::Association, 1, None)),
        ("with a broken session", &|at| change(at, Kind::Session, u64::MAX, Some(&[1, 2, 3]))),
    ];
    for (what, spoil) in spoil {
        let directory = life.remains();
        spoil(directory.path());
        assert!(!begin_on(directory, &life), "{what}");
    }
}

fn change(directory: &Path, kind: Kind, key: u64, value: Option<&[u8]>) {
    let database = Database::open(&directory.join("sessions.redb")).unwrap();
    database.commit([&Change { kind, key, value: value.map(Into::into) }]).unwrap();
}

#[test]
fn processes_that_are_killed_are_not_held_against_the_store() {
    let directory = lived().remains();
    let head = || {
        let file = File::options().read(true).write(true).open(directory.path().join("counters")).unwrap();
        move |progress: u64| std::os::unix::fs::FileExt::write_all_at(&file, &progress.to_ne_bytes(), 40).unwrap()
    };
    let got_to = head();
    // Killed wherever they had got to.
    for progress in [3, 1, 1, 4, 4, 2] {
        assert!(open_at(directory.path()).begin_to_restore().is_ok());
        got_to(progress);
    }
    for _ in 0..3 {
        assert!(open_at(directory.path()).begin_to_restore().is_ok());
        got_to(7);
    }
    assert!(open_at(directory.path()).begin_to_restore().is_err(), "three have died at one place");
}

#[test]
fn what_is_put_aside_is_still_there_for_somebody_to_look_at() {
    let directory = lived().remains();
    fs::write(directory.path().join("sessions.redb"), "nonsense").unwrap();
    let state = open_at(directory.path());
    assert!(!state.is_found());
    assert_eq!(fs::read(directory.path().join("sessions.redb.bad")).unwrap(), b"nonsense");
    assert!(directory.path().join("counters.bad").exists());
}

#[test]
fn sessions_of_another_upf_are_not_taken() {
    let directory = lived().remains();
    let other = Identity { node: "another".into(), ..identity() };
    let state = State::open(directory.path(), other, SESSIONS, RecoveryTimeStamp(5)).unwrap();
    assert!(!state.is_found() && state.recovery().is_after(RecoveryTimeStamp(3_900_000_000)));
}

#[test]
fn more_sessions_than_are_allowed_now_are_not_restored_in_part() {
    let life = lived();
    let directory = life.remains();
    let mut state = State::open(directory.path(), identity(), SESSIONS, RecoveryTimeStamp(5)).unwrap();
    let (clock, tables) = (state.clock(), Watched::on(SESSIONS, state.take_memory()));
    let config = upf::n4::Config { limits: Limits { sessions: 7, ..config().limits }, ..config() };
    let restored = Node::restore(config, tables, clock, state.database(), Ok(()), Instant::now());
    assert!(matches!(restored, Err(not) if matches!(not.error, RestoreError::TooMany { found: 8, most: 7 })));
}

#[test]
fn octets_of_the_store_may_be_any_others() {
    let life = lived();
    let directory = life.remains();
    let store = fs::read(directory.path().join("sessions.redb")).unwrap();
    let counters = fs::read(directory.path().join("counters")).unwrap();
    let mut random = 1_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize
    };
    for round in 0..120 {
        let directory = life.remains();
        let (name, mut octets) =
            if round % 4 == 0 { ("counters", counters[..2_048].to_vec()) } else { ("sessions.redb", store.clone()) };
        match round % 3 {
            0 => octets.truncate(next() % octets.len()),
            _ => (0..1 + next() % 20).for_each(|_| {
                let at = next() % octets.len();
                octets[at] ^= 1 << (next() % 8);
            }),
        }
        fs::write(directory.path().join(name), octets).unwrap();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| begin_on(directory, &life)));
        assert!(outcome.is_ok(), "round {round}");
    }
}

#[test]
fn a_store_that_processes_die_of_is_put_aside_at_last() {
    let life = lived();
    let directory = life.remains();
    for _ in 0..10 {
        assert!(open_at(directory.path()).is_found(), "whoever ends before it restores has not died of that");
    }
    for _ in 0..3 {
        assert!(open_at(directory.path()).begin_to_restore().is_ok());
        // Killed before it got through.
    }
    assert!(open_at(directory.path()).begin_to_restore().is_err());
}

#[test]
fn a_state_directory_belongs_to_one_process() {
    let directory = tempfile::tempdir().unwrap();
    let _state = open_at(directory.path());
    let second = State::open(directory.path(), identity(), SESSIONS, RecoveryTimeStamp(1));
    assert!(second.unwrap_err().to_string().contains("in use"));
}

#[test]
fn a_session_that_is_not_there_any_more_is_not_found() {
    let mut life = Life::first();
    let seid = life.establish(1, vec![]).up_f_seid.seid;
    life.ask(seid, &Request::SessionDeletion);
    let mut life = life.killed();
    let Response::SessionDeletion(response) = life.ask(seid, &Request::SessionDeletion) else { panic!() };
    assert_eq!(response.outcome.unwrap_err().cause, Cause::SessionContextNotFound);
}
