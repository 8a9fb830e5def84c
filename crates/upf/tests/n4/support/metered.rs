//! A session whose usage is measured.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use pfcp::report::{SessionReport, SessionReportResponse, UsageReport, UsageReportTrigger as Why};
use pfcp::rule::*;
use pfcp::session::{Modification, Modified};
use pfcp::{Fault, Header, Request, Response, Volume};
use upf::alarms::{self, AlarmReceiver, Alarms};
use upf::bell::Bell;
use upf::n4::Datagram;
use upf::usage::Usage;

/// A session with usage reporting rules, a worker's hand on its counters, and the session manager.
pub struct Metered {
    pub bench: Bench,
    pub seid: u64,
    pub alarms: Alarms,
    pub heard: AlarmReceiver,
    pub reports: Vec<UsageReport>,
}

pub fn total(octets: u64) -> Option<Volume> {
    Some(Volume { total: Some(octets), ..Volume::default() })
}

pub fn urr(id: u32, triggers: ReportingTriggers, terms: UrrTerms) -> CreateUrr {
    let method = Some(MeasurementMethod(MeasurementMethod::VOLUM.0 | MeasurementMethod::DURAT.0));
    CreateUrr { id, method, triggers: Some(triggers), terms, others: vec![] }
}

pub fn volume(report: &UsageReport) -> (u64, u64) {
    let octets = report.volume.unwrap().octets;
    assert_eq!(octets.total, Some(octets.uplink.unwrap() + octets.downlink.unwrap()));
    (octets.uplink.unwrap(), octets.downlink.unwrap())
}

pub fn response(datagram: &Datagram, outcome: Result<(), Fault>) -> Vec<u8> {
    let (header, _) = Header::parse(&datagram.octets).unwrap();
    Response::SessionReport(SessionReportResponse::new(outcome)).encode(0x77, header.sequence)
}

impl Metered {
    pub fn new(urrs: Vec<CreateUrr>) -> Self {
        let mut bench = Bench::associated();
        let mut request = establishment(1);
        let ids: Vec<_> = urrs.iter().map(|urr| urr.id).collect();
        request.create_pdrs.iter_mut().for_each(|pdr| pdr.urr_ids = ids.clone());
        request.create_urrs = urrs;
        let Response::SessionEstablishment(response) = bench.ask(0, &Request::SessionEstablishment(request)) else {
            panic!()
        };
        let seid = response.outcome.unwrap().up_f_seid.seid;
        let (alarms, heard) = alarms::channel(Arc::new(Bell::new().unwrap()));
        Self { bench, seid, alarms, heard, reports: vec![] }
    }

    pub fn usage(&self, urr: u32) -> Usage {
        let session = &self.bench.seen().sessions[&self.seid];
        session.urrs.iter().find(|found| found.id == urr).unwrap().usage.clone()
    }

    /// A packet of the session, as the worker treats it. Whether it passed.
    pub fn packet(&mut self, uplink: bool, octets: usize) -> bool {
        let session = self.bench.seen().sessions[&self.seid].clone();
        let usages: Vec<_> = session.urrs.iter().filter(|urr| urr.measures).map(|urr| urr.usage.clone()).collect();
        let now_ns = self.bench.clock.ns(self.bench.now);
        let passes = usages.iter().all(|usage| usage.gauge().admits(uplink, octets as u64, &mut self.alarms));
        if passes {
            count(&usages, uplink, octets, now_ns, &mut self.alarms);
        }
        while let Some(alarm) = self.heard.take() {
            let datagrams = self.bench.node.alarm(alarm, self.bench.now);
            self.take_in(datagrams);
        }
        passes
    }

    /// Time passes. The association is kept alive.
    pub fn wait(&mut self, time: Duration) {
        let end = self.bench.now + time;
        while self.bench.now < end {
            let due = self.bench.node.due().unwrap_or(end);
            self.bench.now = due.clamp(self.bench.now + Duration::from_millis(1), end);
            let datagrams = self.bench.node.tick(self.bench.now);
            self.take_in(datagrams);
        }
    }

    /// Takes reports in, and answers.
    pub fn take_in(&mut self, datagrams: Vec<Datagram>) {
        for datagram in datagrams {
            let (header, body) = Header::parse(&datagram.octets).unwrap();
            assert_eq!(datagram.to, (SMF, pfcp::PORT).into());
            let answer = match Request::parse(&header, body).unwrap() {
                Request::SessionReport(SessionReport { usage, downlink_data: None, .. }) => {
                    assert_eq!(header.seid, Some(0x5001), "a report is for the session manager's SEID");
                    self.reports.extend(usage);
                    response(&datagram, Ok(()))
                }
                Request::Heartbeat(_) => {
                    let recovery = pfcp::RecoveryTimeStamp(1_000);
                    Response::Heartbeat(pfcp::node::Heartbeat { recovery }).encode(0, header.sequence)
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(self.bench.octets(&answer), None);
        }
    }

    pub fn modify(&mut self, request: Modification) -> Result<Modified, Fault> {
        match self.bench.ask(self.seid, &Request::SessionModification(request)) {
            Response::SessionModification(response) => response.outcome,
            other => panic!("{other:?}"),
        }
    }

    pub fn update(&mut self, id: u32, terms: UrrTerms) {
        let update = UpdateUrr { id, terms, ..UpdateUrr::default() };
        self.modify(Modification { update_urrs: vec![update], ..Modification::default() }).unwrap();
    }

    pub fn delete(&mut self) -> Vec<UsageReport> {
        match self.bench.ask(self.seid, &Request::SessionDeletion) {
            Response::SessionDeletion(response) => response.outcome.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Reasons and volumes of the reports since the last call.
    pub fn told(&mut self) -> Vec<(u32, Why, u64)> {
        let told = |report: UsageReport| (report.urr_id, report.trigger, report.volume.unwrap().octets.total.unwrap());
        self.reports.drain(..).map(told).collect()
    }
}
