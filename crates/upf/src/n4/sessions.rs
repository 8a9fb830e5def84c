//! Sessions on N4: validated, planned, committed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use pfcp::report::{UsageReport, UsageReportTrigger};
use pfcp::rule::{CreatedPdr, CreatedTrafficEndpoint, FTeid as WireFTeid, UeIp as WireUeIp};
use pfcp::session::{Established, Establishment, FSeid, Modification, Modified};
use pfcp::{Cause, Fault, IeType, RuleId};

use super::account::Account;
use super::address_choice::choose_addresses;
use super::addresses::UeAddress;
use super::contents::{Contents, Draft, Surroundings};
use super::endpoints::Chooser;
use super::held::{Held, Open, Owner};
use super::outbox::About;
use super::reports::Paging;
use super::translate::Choice;
use super::{Node, RuleTables};
use crate::log::Hex;
use crate::rules::{CpFSeid, FTeid, Interface, Parting, Pdi, Session, UeIp};
use crate::tables::{ApplyError, BUCKETS, Bucket, SessionUpdate};
use crate::usage::{ACTIVITY, UsageId};

/// So many usage reports fit into one message: a datagram of 65,507 octets, and 125 for a report with everything in it.
const REPORTS_IN_MESSAGE: usize = 512;

/// What is planned for a session: everything is decided, and nothing is changed but for reserved TEIDs.
#[derive(Default)]
struct Plan {
    contents: Contents,
    /// TEIDs reserved for this plan.
    reserved: BTreeSet<u32>,
    /// UE addresses given out for this plan.
    allocated: Vec<UeAddress>,
    created: Vec<CreatedPdr>,
    created_endpoints: Vec<CreatedTrafficEndpoint>,
    /// Of new usage reporting rules.
    accounts: BTreeMap<u32, Account>,
}

/// The element that `is_it` finds, or else a new one.
fn entry<T>(all: &mut Vec<T>, is_it: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> &mut T {
    let at = all.iter().position(is_it).unwrap_or_else(|| {
        all.push(new());
        all.len() - 1
    });
    &mut all[at]
}

impl Plan {
    /// What is told of a choice: the F-TEID and the UE address.
    fn told(&mut self, chooser: Chooser) -> (&mut Option<WireFTeid>, &mut Option<WireUeIp>) {
        match chooser {
            Chooser::Pdr(id) => {
                let new = || CreatedPdr { id, ..CreatedPdr::default() };
                let told = entry(&mut self.created, |created| created.id == id, new);
                (&mut told.f_teid, &mut told.ue_ip)
            }
            Chooser::Endpoint(id) => {
                let new = || CreatedTrafficEndpoint { id, ..CreatedTrafficEndpoint::default() };
                let told = entry(&mut self.created_endpoints, |created| created.id == id, new);
                (&mut told.f_teid, &mut told.ue_ip)
            }
        }
    }
}

impl<T: RuleTables> Node<T> {
    pub(super) fn establish(&mut self, request: &Establishment, now: Instant) -> Result<Established, Fault> {
        let association = self.association_of(&request.node_id)?;
        let draft = Draft::establish(request, self.surroundings())?;
        if self.leaving || self.sessions.len() >= self.config.limits.sessions {
            return Err(Fault::new(Cause::NoResourcesAvailable));
        }
        let up_seid = self.last_seid + 1;
        let new: Vec<_> = draft.contents.urrs().keys().copied().collect();
        let plan = self.plan(draft, up_seid, &new, now)?;
        let cp_f_seid =
            CpFSeid { seid: request.cp_f_seid.seid, address: request.cp_f_seid.address_beside(self.config.address) };
        let plan = self.put(up_seid, cp_f_seid, plan, &BTreeMap::new(), Parting::default())?;
        self.last_seid = up_seid;
        self.settle_addresses(&BTreeSet::new(), &plan.contents, &plan.allocated);
        self.journal.teids(&plan.reserved);
        self.journal.session(up_seid);
        let teids = self.still_used(&plan.contents, plan.reserved);
        let accounts = plan.accounts;
        let due_ns = accounts.values().filter_map(Account::due_ns).min();
        self.list(up_seid, &plan.contents);
        let open = Open {
            owner: Owner { association, cp_f_seid },
            contents: plan.contents,
            teids,
            accounts,
            paging: Paging::default(),
        };
        let held = Held::new(open, &mut self.patterns);
        self.sessions.insert(up_seid, held);
        self.set_timer(up_seid, due_ns);
        Ok(Established {
            up_f_seid: FSeid::new(up_seid, self.config.address),
            created_pdrs: plan.created,
            created_endpoints: plan.created_endpoints,
        })
    }

    pub(super) fn modify(&mut self, up_seid: u64, request: &Modification, now: Instant) -> Result<Modified, Fault> {
        let held = self.sessions.get(&up_seid).ok_or(Fault::new(Cause::SessionContextNotFound))?;
        let mut open = held.open();
        let draft = Draft::modify(&open.contents, request, self.surroundings())?;
        let here = self.config.address;
        let changed =
            request.cp_f_seid.map(|f_seid| CpFSeid { seid: f_seid.seid, address: f_seid.address_beside(here) });
        let cp_f_seid = changed.unwrap_or(open.owner.cp_f_seid);
        let watched = request.inactivity_timer_s.map(|_| ACTIVITY);
        let new: Vec<_> = request.create_urrs.iter().map(|create| create.id).chain(watched).collect();
        let plan = self.plan(draft, up_seid, &new, now)?;
        let end_markers = open.contents.left_tunnels(&plan.contents, request);
        let drop_buffered = request.flags & Modification::DROBU != 0;
        let parting = Parting { end_markers, drop_buffered };
        let plan = self.put(up_seid, cp_f_seid, plan, &open.accounts, parting)?;
        let usage = open.settle_accounts(request, &plan.contents, plan.accounts, self.clock, now);
        self.unlist(up_seid, &open.contents);
        self.list(up_seid, &plan.contents);
        self.journal.teids(&plan.reserved);
        open.teids = self.still_used(&plan.contents, &open.teids | &plan.reserved);
        self.settle_addresses(&open.contents.ue_addresses(), &plan.contents, &plan.allocated);
        if cp_f_seid != open.owner.cp_f_seid {
            let to = SocketAddr::new(cp_f_seid.address, self.config.peer_port);
            self.outbox.redirect(up_seid, cp_f_seid.seid, to, now);
        }
        open.owner.cp_f_seid = cp_f_seid;
        if drop_buffered || open.contents.is_told_to_act(request) {
            // What waits from now on is news again.
            open.paging = Paging::default();
        }
        open.contents = plan.contents;
        self.put_back(up_seid, open);
        Ok(Modified { created_pdrs: plan.created, created_endpoints: plan.created_endpoints, usage })
    }

    pub(super) fn delete(&mut self, up_seid: u64, now: Instant) -> Result<Vec<UsageReport>, Fault> {
        let held = self.sessions.get(&up_seid).ok_or(Fault::new(Cause::SessionContextNotFound))?;
        let mut open = held.open();
        self.tables.apply(vec![SessionUpdate::Remove(up_seid)]).map_err(|error| fault_of(&error, None))?;
        // Workers have let go of the session: what they have counted is all that there will be.
        let now_ns = self.clock.ns(now);
        let mut last = vec![];
        for (id, urr) in open.contents.urrs().range(..ACTIVITY) {
            let account = open.accounts.get_mut(id);
            last.extend(account.map(|a| a.report(urr, UsageReportTrigger::TERMR, &self.clock, now_ns)));
        }
        let last: Vec<_> = last.into_iter().flatten().collect();
        // A session manager that has received some of it already knows it by its UR-SEQN (8.2.71).
        let mut usage = self.outbox.end(up_seid, REPORTS_IN_MESSAGE.saturating_sub(last.len()), now);
        usage.extend(last);
        self.forget(up_seid);
        Ok(usage)
    }

    /// Puts a session back that was opened, and has it looked at when it is due.
    pub(super) fn put_back(&mut self, up_seid: u64, open: Open) {
        let due_ns = open.due_ns();
        let Some(held) = self.sessions.get_mut(&up_seid) else { return };
        if held.put_back(open, &mut self.patterns) {
            self.journal.session(up_seid);
        }
        self.set_timer(up_seid, due_ns);
    }

    /// Forgets a session that is not in force any more, and gives back what it had.
    pub(super) fn forget(&mut self, up_seid: u64) {
        let Some(held) = self.sessions.remove(&up_seid) else { return };
        self.journal.session(up_seid);
        let open = held.open();
        self.unlist(up_seid, &open.contents);
        open.teids.iter().for_each(|&teid| self.tables.release_teid(teid));
        let addresses = self.addresses.get_mut();
        open.contents.ue_addresses().into_iter().for_each(|address| addresses.give_back(address));
        if let Some(at_ns) = held.timer_ns() {
            self.timers.remove(&(at_ns, up_seid));
        }
        self.outbox.forget(About::Session(up_seid));
    }

    /// Lists the session under what concerns several: peers of tunnels, applications.
    pub(super) fn list(&mut self, up_seid: u64, contents: &Contents) {
        self.applications.list(up_seid, contents);
        let tunnels = contents.tunnels();
        self.tunnels.list(up_seid, &tunnels);
        tunnels.iter().for_each(|&(address, _)| self.paths.want(address));
    }

    fn unlist(&mut self, up_seid: u64, contents: &Contents) {
        self.applications.unlist(up_seid, contents);
        self.tunnels.unlist(up_seid, &contents.tunnels());
    }

    pub(super) fn surroundings(&self) -> Surroundings<'_> {
        let (config, local, applications) = (&self.config, &self.local[..], &self.applications);
        Surroundings { config, local, filters: const { &BTreeMap::new() }, applications }
    }

    /// Reserves what is to be chosen, all of it or nothing, and opens accounts for the usage reporting rules `new`.
    fn plan(&mut self, draft: Draft, up_seid: u64, new: &[u32], now: Instant) -> Result<Plan, Fault> {
        let accounts = self.open_accounts(&draft.contents, up_seid, new, now)?;
        let mut plan = Plan { contents: draft.contents, accounts, ..Plan::default() };
        let chosen = choose_addresses(&self.addresses, draft.address_choices, &mut plan.contents, &mut plan.allocated);
        match chosen {
            Ok(chosen) => chosen.into_iter().for_each(|(chooser, ue_ip)| *plan.told(chooser).1 = Some(ue_ip)),
            Err(fault) => {
                self.give_back(&plan);
                return Err(fault);
            }
        }
        // A session that no address tells of is spread by its number.
        let spread = (up_seid % BUCKETS as u64) as Bucket;
        let home = plan.contents.ue_ip().map_or(spread, |ue_ip| self.tables.home_bucket(&ue_ip));
        let mut shared: BTreeMap<u8, (Choice, FTeid)> = BTreeMap::new();
        for (chooser, choice) in draft.choices {
            let known = choice.id.and_then(|id| shared.get(&id)).copied();
            let chosen = match known {
                Some((first, f_teid)) if first == choice => Ok(f_teid),
                // One CHOOSE ID, but different addresses.
                Some(_) => Err(Fault::of(Cause::InvalidFteidAllocationOption, IeType::Fteid)),
                None => self.choose(plan.contents.place(chooser), choice, home, &mut plan.reserved),
            };
            let f_teid = match chosen {
                Ok(f_teid) => f_teid,
                Err(fault) => {
                    self.give_back(&plan);
                    return Err(fault);
                }
            };
            if let Some(id) = choice.id {
                shared.insert(id, (choice, f_teid));
            }
            plan.contents.set_f_teid(chooser, f_teid);
            let FTeid { teid, v4, v6 } = f_teid;
            *plan.told(chooser).0 = Some(WireFTeid::Given { teid, v4, v6 });
        }
        Ok(plan)
    }

    /// The session that had the addresses `had` has those of `contents` now, of which `allocated` are given out to it. Of a
    /// session that comes back from a store it had none.
    pub(super) fn settle_addresses(&self, had: &BTreeSet<UeAddress>, contents: &Contents, allocated: &[UeAddress]) {
        let mut addresses = self.addresses.borrow_mut();
        let has = contents.ue_addresses();
        let new = has.difference(had).filter(|address| !allocated.contains(address));
        new.for_each(|&address| addresses.take(address));
        had.difference(&has).for_each(|&address| addresses.give_back(address));
    }

    fn open_accounts(
        &mut self,
        contents: &Contents,
        up_seid: u64,
        new: &[u32],
        now: Instant,
    ) -> Result<BTreeMap<u32, Account>, Fault> {
        let now_ns = self.clock.ns(now);
        let mut accounts = BTreeMap::new();
        for &urr in new {
            let Some(rule) = contents.urrs().get(&urr) else { continue };
            let place = self.counters.open(self.journal.durable()).map_err(|error| {
                tracing::warn!(up_seid = %Hex(up_seid), %error, "no counters for a usage reporting rule");
                Fault::of(Cause::NoResourcesAvailable, IeType::CreateUrr)
            })?;
            accounts.insert(urr, Account::new(UsageId { up_seid, urr }, rule, place, &self.clock, now_ns));
        }
        Ok(accounts)
    }

    fn choose(
        &self,
        place: Option<&Pdi>,
        choice: Choice,
        home: Bucket,
        reserved: &mut BTreeSet<u32>,
    ) -> Result<FTeid, Fault> {
        let no_resources = Fault::of(Cause::NoResourcesAvailable, IeType::Fteid);
        let pdi = place.ok_or(no_resources)?;
        let local = self.tables.addresses_for(pdi.source_interface, pdi.network_instance.as_deref());
        let mut v4 = local.iter().filter_map(|address| if let IpAddr::V4(v4) = address { Some(*v4) } else { None });
        let mut v6 = local.iter().filter_map(|address| if let IpAddr::V6(v6) = address { Some(*v6) } else { None });
        let (v4, v6) = (v4.next().filter(|_| choice.v4), v6.next().filter(|_| choice.v6));
        // Who lets the UPF choose leaves the version to it, too: of both, one will do (8.2.3).
        if v4.is_none() && v6.is_none() {
            return Err(no_resources);
        }
        let teid = self.tables.reserve_teid(home).map_err(|_| no_resources)?;
        reserved.insert(teid);
        Ok(FTeid { teid, v4, v6 })
    }

    fn give_back(&self, plan: &Plan) {
        plan.reserved.iter().for_each(|&teid| self.tables.release_teid(teid));
        let mut addresses = self.addresses.borrow_mut();
        plan.allocated.iter().for_each(|&address| addresses.undo(address));
    }

    /// Puts `plan` into force as the session `up_seid`, which has `accounts` already. From the tables' consent on nothing
    /// can fail.
    fn put(
        &self,
        up_seid: u64,
        cp_f_seid: CpFSeid,
        plan: Plan,
        accounts: &BTreeMap<u32, Account>,
        parting: Parting,
    ) -> Result<Plan, Fault> {
        let usage = |id: u32| {
            let account = plan.accounts.get(&id).or_else(|| accounts.get(&id));
            account.expect("a usage reporting rule has an account").usage().clone()
        };
        let session = Session { parting, ..plan.contents.session(up_seid, cp_f_seid, &self.config, usage) };
        if let Err(error) = self.tables.apply(vec![SessionUpdate::Put(session)]) {
            tracing::debug!(up_seid = %Hex(up_seid), %error, "the tables refuse a session");
            self.give_back(&plan);
            return Err(fault_of(&error, Some(&plan.contents)));
        }
        Ok(plan)
    }

    /// Of the TEIDs `reserved` those that `contents` uses. The others are given back.
    fn still_used(&self, contents: &Contents, reserved: BTreeSet<u32>) -> BTreeSet<u32> {
        let (used, unused): (_, BTreeSet<u32>) = reserved.into_iter().partition(|&teid| contents.uses_teid(teid));
        unused.iter().for_each(|&teid| self.tables.release_teid(teid));
        used
    }
}

/// What to tell a peer of the tables' refusal of `contents`.
fn fault_of(error: &ApplyError, contents: Option<&Contents>) -> Fault {
    let blame = |kind: IeType, is_meant: &dyn Fn(&Pdi) -> bool| {
        let pdr = contents.and_then(|contents| contents.find_pdr(is_meant)).unwrap_or(0);
        Fault { offending_ie: Some(kind as u16), ..Fault::rule(RuleId::Pdr(pdr)) }
    };
    match *error {
        ApplyError::TeidInUse(teid) => {
            blame(IeType::Fteid, &|pdi| pdi.f_teid.is_some_and(|f_teid| f_teid.teid == teid))
        }
        ApplyError::UeAddressInUse(address) if contents.is_some_and(|contents| contents.has_framed_route(address)) => {
            let kind = if address.is_ipv4() { IeType::FramedRoute } else { IeType::FramedIpv6Route };
            blame(kind, &|pdi| pdi.framed_routes.iter().any(|&(net, _)| net == address))
        }
        ApplyError::UeAddressInUse(address) => blame(IeType::UeIpAddress, &|pdi| {
            let is_it =
                |ue: UeIp| if address.is_ipv4() { ue.v4.map(IpAddr::V4) == Some(address) } else { ue.v6.is_some() };
            pdi.source_interface == Interface::SgiLan && pdi.ue_ip.is_some_and(is_it)
        }),
        ApplyError::DanglingRule { pdr } => Fault::rule(RuleId::Pdr(pdr)),
        ApplyError::Full | ApplyError::TooLarge => Fault::new(Cause::NoResourcesAvailable),
        ApplyError::Stopped => Fault::new(Cause::SystemFailure),
    }
}
