//! Usage on its way to session managers: in responses, and in Session Report Requests (TS 29.244, 5.2.2, 7.5.8).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use pfcp::report::{DownlinkDataReport, SessionReport, SessionReportResponse, UsageReport, UsageReportTrigger};
use pfcp::rule::FTeid;
use pfcp::session::Modification;
use pfcp::{Cause, ParseError, Request, Response};
use serde::{Deserialize, Serialize};

use super::account::Account;
use super::contents::Contents;
use super::held::{Held, Open};
use super::outbox::About;
use super::{Datagram, Node, RuleTables};
use crate::alarms::Alarm;
use crate::clock::Clock;
use crate::log::Hex;
use crate::tables::SessionUpdate;
use crate::usage::ACTIVITY;

/// Least time between two looks at a session by the clock.
const LOOK_AGAIN_NS: u64 = 1_000_000;
/// Sessions that a tick looks at for one reason: each may take some microseconds, and peers wait.
const AT_A_TIME: usize = 256;

impl<T: RuleTables> Node<T> {
    /// Another thread tells something.
    pub fn alarm(&mut self, alarm: Alarm, now: Instant) -> Vec<Datagram> {
        match alarm {
            Alarm::Usage(id) => Vec::from_iter(self.look(id.up_seid, now)),
            Alarm::Unknown { peer, teid } => Vec::from_iter(self.report_unknown(peer, teid, now)),
            Alarm::Data { up_seid, pdr } => Vec::from_iter(self.note_data(up_seid, pdr, now)),
            Alarm::Alive(echo) => self.path_answers(echo, now),
        }
    }

    /// A packet waits that the PDR has matched.
    fn note_data(&mut self, up_seid: u64, pdr: u16, now: Instant) -> Option<Datagram> {
        let now_ns = self.clock.ns(now);
        let mut open = self.sessions.get(&up_seid)?.open();
        let delay = open.contents.notification_delay(pdr)?;
        open.paging.add(pdr, now_ns + delay.as_nanos() as u64);
        self.put_back(up_seid, open);
        self.look(up_seid, now)
    }

    /// A peer says that it does not have a tunnel: the session manager of a session that leads there is told, now and then.
    fn report_unknown(&mut self, peer: IpAddr, teid: u32, now: Instant) -> Option<Datagram> {
        let now_ns = self.clock.ns(now);
        // A peer may say so of each packet.
        if !self.told.is_news((peer, teid), now_ns) {
            return None;
        }
        let held = |up_seid: u64| Some((up_seid, self.sessions.get(&up_seid)?));
        let told = |(up_seid, held): (u64, &Held)| {
            let cp_f_seid = held.owner().cp_f_seid;
            // Sessions are opened only for what can be told.
            let leads_there = || held.open().contents.tunnels().contains(&(peer, teid));
            (!self.outbox.is_full(up_seid, cp_f_seid.address) && leads_there()).then_some((up_seid, cp_f_seid))
        };
        let (up_seid, cp_f_seid) = self.tunnels.sessions(peer, teid).filter_map(held).find_map(told)?;
        self.told.tell((peer, teid), now_ns);
        let to = SocketAddr::new(cp_f_seid.address, self.config.peer_port);
        let cp_seid = cp_f_seid.seid;
        let remote = match peer {
            IpAddr::V4(v4) => FTeid::Given { teid, v4: Some(v4), v6: None },
            IpAddr::V6(v6) => FTeid::Given { teid, v4: None, v6: Some(v6) },
        };
        let report =
            Request::SessionReport(SessionReport { unknown_tunnels: vec![remote], ..SessionReport::default() });
        Some(self.outbox.send(&report, About::Session(up_seid), cp_seid, to, now))
    }

    /// Has the counters of all sessions looked at, some at each tick, since alarms were lost.
    pub fn look_at_all(&mut self) {
        self.round.begin();
    }

    /// Reports that are due by the clock, or of which alarms may have been lost. Where there are many, the next ticks have the rest.
    pub(super) fn due_reports(&mut self, now: Instant) -> Vec<Datagram> {
        let now_ns = self.clock.ns(now);
        let seids = self.round.take(&self.sessions, AT_A_TIME);
        let mut datagrams: Vec<_> = seids.into_iter().filter_map(|up_seid| self.look(up_seid, now)).collect();
        for _ in 0..AT_A_TIME {
            let Some(&(at_ns, up_seid)) = self.timers.first().filter(|(at_ns, _)| *at_ns <= now_ns) else { break };
            self.timers.remove(&(at_ns, up_seid));
            datagrams.extend(self.look(up_seid, now));
        }
        for _ in 0..AT_A_TIME {
            let Some(up_seid) = self.postponed.take(now_ns) else { break };
            let peer = self.sessions.get(&up_seid).map(|held| held.owner().cp_f_seid.address);
            if peer.is_some_and(|peer| self.outbox.is_full(up_seid, peer)) {
                self.postponed.add(up_seid, now_ns);
            } else {
                datagrams.extend(self.look(up_seid, now));
            }
        }
        datagrams
    }

    /// Looks at the counters of a session, and reports what is to be reported.
    fn look(&mut self, up_seid: u64, now: Instant) -> Option<Datagram> {
        let now_ns = self.clock.ns(now);
        let mut open = self.sessions.get(&up_seid)?.open();
        if self.outbox.is_full(up_seid, open.owner.cp_f_seid.address) {
            let (due_ns, is_news) = open.keep_limits(&self.clock, now_ns);
            let due_ns = if is_news { due_ns } else { open.due_ns().map(|due_ns| due_ns.max(now_ns + LOOK_AGAIN_NS)) };
            self.put_back(up_seid, open);
            self.set_timer(up_seid, due_ns);
            if is_news {
                self.postponed.add(up_seid, now_ns);
            }
            return None;
        }
        let (usage, inactive) = open.due_usage(&self.clock, now_ns);
        let downlink_data = open.paging.take(now_ns).map(|pdr_ids| DownlinkDataReport { pdr_ids });
        let cp_f_seid = open.owner.cp_f_seid;
        let to = SocketAddr::new(cp_f_seid.address, self.config.peer_port);
        let cp_seid = cp_f_seid.seid;
        // What is still due must not keep everything else waiting.
        let due_ns = open.due_ns().map(|due_ns| due_ns.max(now_ns + LOOK_AGAIN_NS));
        self.put_back(up_seid, open);
        self.set_timer(up_seid, due_ns);
        if usage.is_empty() && downlink_data.is_none() && !inactive {
            return None;
        }
        let report =
            Request::SessionReport(SessionReport { downlink_data, usage, inactive, ..SessionReport::default() });
        Some(self.outbox.send(&report, About::Session(up_seid), cp_seid, to, now))
    }

    /// Has the session's counters looked at then, and not when that was said before.
    pub(super) fn set_timer(&mut self, up_seid: u64, at_ns: Option<u64>) {
        let Some(held) = self.sessions.get_mut(&up_seid) else { return };
        if let Some(former_ns) = held.set_timer(at_ns) {
            self.timers.remove(&(former_ns, up_seid));
        }
        self.timers.extend(at_ns.map(|at_ns| (at_ns, up_seid)));
    }

    /// A session manager answers a report.
    pub(super) fn report_response(
        &mut self,
        up_seid: u64,
        response: Result<Response, ParseError>,
        from: SocketAddr,
        now: Instant,
    ) {
        match response {
            Ok(Response::SessionReport(response)) => match response.outcome {
                // The session manager has lost it, and so would the session be for ever (TS 29.244, 5.2.2.2, 7.5.9).
                Err(fault) if fault.cause == Cause::SessionContextNotFound => {
                    tracing::warn!(peer = %from, up_seid = %Hex(up_seid), "removed a session that its manager does not know any more");
                    if let Err(error) = self.tables.apply(vec![SessionUpdate::Remove(up_seid)]) {
                        tracing::error!(up_seid = %Hex(up_seid), %error, "cannot remove a session from the tables");
                    }
                    self.forget(up_seid);
                }
                Err(fault) => tracing::warn!(peer = %from, up_seid = %Hex(up_seid), %fault, "a report was rejected"),
                Ok(()) => self.follow(up_seid, response, now),
            },
            other => tracing::debug!(peer = %from, response = ?other, "no sound response to a report"),
        }
    }

    /// What the answer to a report asks for is done as if a modification asked for it (7.5.9).
    fn follow(&mut self, up_seid: u64, response: SessionReportResponse, now: Instant) {
        let SessionReportResponse { update_bars, drop_buffered, cp_f_seid, .. } = response;
        if update_bars.is_empty() && !drop_buffered && cp_f_seid.is_none() {
            return;
        }
        let flags = if drop_buffered { Modification::DROBU } else { 0 };
        let change = Modification { update_bars, flags, cp_f_seid, ..Modification::default() };
        if let Err(fault) = self.modify(up_seid, &change, now) {
            tracing::warn!(up_seid = %Hex(up_seid), %fault, "a session is not changed as the answer to a report asks");
        }
    }
}

impl Open {
    /// When there is something to do about usage, or about packets that wait.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.accounts.values().filter_map(Account::due_ns).chain(self.paging.due_ns).min()
    }

    /// What has an effect has it, though nothing can be reported. When there is more of that, and whether there is something to
    /// report.
    fn keep_limits(&mut self, clock: &Clock, now_ns: u64) -> (Option<u64>, bool) {
        let urrs = self.contents.urrs();
        let keep = |(id, account): (&u32, &mut Account)| Some(account.keep_limits(urrs.get(id)?, clock, now_ns));
        let (due_ns, is_news): (Vec<_>, Vec<_>) = self.accounts.iter_mut().filter_map(keep).unzip();
        let is_paged_for = self.paging.due_ns.is_some_and(|due_ns| due_ns <= now_ns);
        (due_ns.into_iter().flatten().min(), is_paged_for || is_news.contains(&true))
    }

    /// The usage that is to be reported now, and whether it is that there is none.
    fn due_usage(&mut self, clock: &Clock, now_ns: u64) -> (Vec<UsageReport>, bool) {
        let mut whys = BTreeMap::new();
        for (&id, account) in &mut self.accounts {
            let why = self.contents.urrs().get(&id).and_then(|urr| account.look(urr, clock, now_ns));
            whys.extend(why.map(|why| (id, why)));
        }
        add_linked(&self.contents, &mut whys);
        let inactive = whys.get(&ACTIVITY).is_some_and(|why| why.contains(UsageReportTrigger::STOPT));
        let mut usage = vec![];
        for (id, account) in &mut self.accounts {
            if let (Some(&why), Some(urr)) = (whys.get(id), self.contents.urrs().get(id)) {
                let reports = account.report(urr, why, clock, now_ns);
                usage.extend(reports.into_iter().filter(|_| *id != ACTIVITY));
            }
        }
        (usage, inactive)
    }

    /// The session has become `contents`, with accounts `new`, by `request`: what there is to report of that.
    pub(super) fn settle_accounts(
        &mut self,
        request: &Modification,
        contents: &Contents,
        new: BTreeMap<u32, Account>,
        clock: Clock,
        now: Instant,
    ) -> Vec<UsageReport> {
        let now_ns = clock.ns(now);
        let mut reports = vec![];
        let stays = |id: &u32| contents.urrs().contains_key(id) && !new.contains_key(id);
        for (id, mut account) in self.accounts.extract_if(.., |id, _| !stays(id)) {
            // Workers have let go of it.
            let urr = self.contents.urrs().get(&id);
            let report = urr.map(|urr| account.report(urr, UsageReportTrigger::TERMR, &clock, now_ns));
            reports.extend(report.filter(|_| id != ACTIVITY));
        }
        self.accounts.extend(new);
        let all = request.flags & Modification::QAURR != 0;
        for (id, account) in &mut self.accounts {
            let Some(urr) = contents.urrs().get(id) else { continue };
            if all && *id != ACTIVITY || request.query_urrs.contains(id) {
                reports.push(account.report(urr, UsageReportTrigger::IMMER, &clock, now_ns));
            }
            if let Some(update) = request.update_urrs.iter().find(|update| update.id == *id) {
                let before = self.contents.urrs().get(id).unwrap_or(urr);
                account.change(before, urr, &update.terms, &clock, now_ns);
            }
        }
        reports.into_iter().flatten().collect()
    }
}

/// Packets of a session that wait, as far as the session manager is to know.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Paging {
    /// PDRs that it was told of.
    told: BTreeSet<u16>,
    /// PDRs that it will be told of.
    untold: BTreeSet<u16>,
    /// When.
    due_ns: Option<u64>,
}

impl Paging {
    /// Packets that this PDR has matched wait; that is to be told at `at_ns`, unless it was told.
    fn add(&mut self, pdr: u16, at_ns: u64) {
        if !self.told.contains(&pdr) && self.untold.insert(pdr) {
            self.due_ns = Some(self.due_ns.map_or(at_ns, |due_ns| due_ns.min(at_ns)));
        }
    }

    /// What is to be told at `now_ns`, if anything.
    fn take(&mut self, now_ns: u64) -> Option<Vec<u16>> {
        self.due_ns.take_if(|due_ns| *due_ns <= now_ns)?;
        let pdrs = std::mem::take(&mut self.untold);
        self.told.extend(&pdrs);
        Some(pdrs.into_iter().collect())
    }
}

/// Rules that are to be reported whenever others are.
fn add_linked(contents: &Contents, whys: &mut BTreeMap<u32, UsageReportTrigger>) {
    let reported: Vec<_> = whys.keys().copied().collect();
    for (&id, urr) in contents.urrs() {
        if reported.iter().any(|&other| other != id && urr.is_linked_to(other)) {
            let why = whys.entry(id).or_default();
            *why = why.and(UsageReportTrigger::LIUSA);
        }
    }
}
