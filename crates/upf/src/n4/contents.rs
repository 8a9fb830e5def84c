//! The rules of a session, and what a request makes of them. Nothing here has an effect on anything else.

mod check;
mod draft;
mod far;
mod pdr;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use pfcp::rule::{self as wire, ApplyAction, BufferingDuration};
use pfcp::session::Modification;
use serde::{Deserialize, Serialize};

use super::Config;
use super::activity;
use super::addresses::UeAddress;
use super::endpoints::{self, Chooser, Endpoints};
use super::particulars::Exchange;
use super::translate::{self, Filters};
use super::urr::Urr;
use crate::rules::{
    self, Buffering, CpFSeid, FTeid, Far, FarAction, Forwarding, Interface, Parting, Pdi, Pdr, Qer, Session, UeIp,
};
use crate::usage::{ACTIVITY, Usage};

pub(super) use self::draft::{Draft, Surroundings};
use self::far::{Bar, HeldFar};

/// All rules of a session, by ID.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Contents {
    pub(super) pdrs: BTreeMap<u16, Pdr>,
    fars: BTreeMap<u32, HeldFar>,
    qers: BTreeMap<u32, Qer>,
    /// With the UPF's own, [`ACTIVITY`].
    urrs: BTreeMap<u32, Urr>,
    bars: BTreeMap<u8, Bar>,
    endpoints: Endpoints,
    /// PDRs that detect an application, with its ID.
    pub(super) applications: BTreeMap<u16, String>,
    /// PDRs for which predefined rules are active, with their names.
    pub(super) predefined: BTreeMap<u16, Vec<String>>,
    /// For how long packets wait by BARs for which that is said. It is kept beside the rest.
    #[serde(skip)]
    pub(super) durations: BTreeMap<u8, BufferingDuration>,
}

impl Contents {
    /// How long N4 waits before it tells of packets that wait by this PDR; none if it does not tell.
    pub fn notification_delay(&self, pdr: u16) -> Option<Duration> {
        let far = self.fars.get(&self.pdrs.get(&pdr)?.far_id)?;
        let tells = far.buffers() && far.action.contains(ApplyAction::NOCP);
        let units = self.bar(far).notification_delay;
        tells.then(|| Duration::from_millis(50) * u32::from(units))
    }

    /// Whether `request` says what is to become of packets: by an apply action, or by another FAR for a PDR.
    pub fn is_told_to_act(&self, request: &Modification) -> bool {
        let far_of = |pdr: u16| self.pdrs.get(&pdr).map(|pdr| pdr.far_id);
        request.update_fars.iter().any(|update| update.apply_action.is_some())
            || !request.create_fars.is_empty()
            || !request.create_pdrs.is_empty()
            || request.update_pdrs.iter().any(|update| update.far_id.is_some() && update.far_id != far_of(update.id))
    }

    fn bar(&self, far: &HeldFar) -> Bar {
        far.bar.and_then(|id| self.bars.get(&id)).copied().unwrap_or_default()
    }

    /// Tunnels to peers, by address and TEID, whether or not packets go into them at present.
    pub fn tunnels(&self) -> BTreeSet<(IpAddr, u32)> {
        let all = self.fars.values().flat_map(|far| far.forwarding.iter().chain(&far.copies));
        let tunnels = all.filter_map(|forwarding| forwarding.outer_header_creation);
        tunnels.map(|tunnel| (tunnel.address, tunnel.teid)).collect()
    }

    /// Tunnels that `after` leaves, of the FARs that `request` wants end markers for.
    pub fn left_tunnels(&self, after: &Self, request: &Modification) -> Vec<Forwarding> {
        let way = |id: u32| self.fars.get(&id).filter(|far| far.forwards()).and_then(|far| far.forwarding.clone());
        let tunnel = |contents: &Self, id: u32| {
            let far = contents.fars.get(&id).filter(|far| far.forwards());
            far.and_then(|far| far.forwarding.as_ref()?.outer_header_creation)
        };
        let marked = request.update_fars.iter().filter(|update| {
            update.forwarding_parameters.as_ref().is_some_and(|parameters| parameters.send_end_marker)
        });
        marked
            .filter(|update| tunnel(self, update.id).is_some_and(|left| tunnel(after, update.id) != Some(left)))
            .filter_map(|update| way(update.id))
            .collect()
    }

    /// Gives all PDRs what they have from their traffic endpoints.
    fn fill(&mut self) {
        self.pdrs.values_mut().for_each(|pdr| endpoints::fill(&mut pdr.pdi, &self.endpoints));
    }

    /// SDF filters that have IDs: those in force, and those that `stated` adds. What is wrong with one is told by whoever
    /// states it.
    fn filters<'p>(&self, stated: impl Iterator<Item = &'p wire::Pdi>) -> Filters {
        let held = self.pdrs.values().flat_map(|pdr| &pdr.pdi.sdf_filters).cloned();
        let new = stated.flat_map(|pdi| &pdi.sdf_filters);
        let new = new.filter_map(|filter| translate::sdf_filter(filter, &Filters::new()).ok());
        held.chain(new).filter_map(|filter| Some((filter.id?, filter))).collect()
    }

    /// The PDI that tells where packets come from for which something is chosen: a traffic endpoint leaves that to its PDRs.
    pub fn place(&self, chooser: Chooser) -> Option<&Pdi> {
        match chooser {
            Chooser::Pdr(id) => self.pdrs.get(&id).map(|pdr| &pdr.pdi),
            Chooser::Endpoint(id) => {
                let mut pdis = self.pdrs.values().map(|pdr| &pdr.pdi);
                pdis.find(|pdi| pdi.traffic_endpoint == Some(id)).or(self.endpoints.get(&id))
            }
        }
    }

    fn pdi_of(&mut self, chooser: Chooser) -> Option<&mut Pdi> {
        match chooser {
            Chooser::Pdr(id) => self.pdrs.get_mut(&id).map(|pdr| &mut pdr.pdi),
            Chooser::Endpoint(id) => self.endpoints.get_mut(&id),
        }
    }

    /// Sets what was chosen.
    pub fn set_f_teid(&mut self, chooser: Chooser, f_teid: FTeid) {
        if let Some(pdi) = self.pdi_of(chooser) {
            pdi.f_teid = Some(f_teid);
            self.fill();
        }
    }

    /// Sets an address that was chosen, beside those that are there.
    pub fn set_ue_address(&mut self, chooser: Chooser, address: UeAddress) {
        if let Some(ue_ip) = self.pdi_of(chooser).and_then(|pdi| pdi.ue_ip.as_mut()) {
            match address {
                UeAddress::V4(v4) => ue_ip.v4 = Some(v4),
                UeAddress::V6(net, length) => ue_ip.v6 = Some((net, length)),
            }
            self.fill();
        }
    }

    /// The PDIs of PDRs and of traffic endpoints.
    fn pdis(&self) -> impl Iterator<Item = &Pdi> {
        self.pdrs.values().map(|pdr| &pdr.pdi).chain(self.endpoints.values())
    }

    /// Whether a network with this address is behind the UE.
    pub fn has_framed_route(&self, network: IpAddr) -> bool {
        self.find_pdr(|pdi| pdi.framed_routes.iter().any(|&(net, _)| net == network)).is_some()
    }

    /// All UE addresses that the rules name.
    pub fn ue_addresses(&self) -> BTreeSet<UeAddress> {
        self.pdis().filter_map(|pdi| pdi.ue_ip).flat_map(|ue_ip| UeAddress::of(&ue_ip)).collect()
    }

    /// The address that decides about the session's home: the UE's as downlink rules state it, or else uplink rules.
    pub fn ue_ip(&self) -> Option<UeIp> {
        let of = |interface| {
            self.pdrs.values().filter(move |pdr| pdr.pdi.source_interface == interface).find_map(|pdr| pdr.pdi.ue_ip)
        };
        of(Interface::SgiLan).or_else(|| of(Interface::Access)).or_else(|| of(Interface::Core))
    }

    /// What sessions with otherwise the same rules do not have in common.
    pub fn exchange(&mut self, with: &mut Exchange) {
        self.pdrs.values_mut().for_each(|pdr| with.pdi(&mut pdr.pdi));
        for far in self.fars.values_mut() {
            far.forwarding.iter_mut().chain(&mut far.copies).for_each(|forwarding| with.forwarding(forwarding));
        }
        for urr in self.urrs.values_mut() {
            urr.terms.monitoring_time.iter_mut().for_each(|at| with.word(at));
        }
        self.endpoints.values_mut().for_each(|pdi| with.pdi(pdi));
    }

    /// Whether any PDR or traffic endpoint has this TEID.
    pub fn uses_teid(&self, teid: u32) -> bool {
        self.pdis().any(|pdi| pdi.f_teid.is_some_and(|f_teid| f_teid.teid == teid))
    }

    /// The first PDR that `is_meant` says is meant.
    pub fn find_pdr(&self, is_meant: impl Fn(&Pdi) -> bool) -> Option<u16> {
        self.pdrs.values().find(|pdr| is_meant(&pdr.pdi)).map(|pdr| pdr.id)
    }

    /// Whether the session manager has made such a usage reporting rule.
    fn has_urr(&self, id: u32) -> bool {
        id != ACTIVITY && self.urrs.contains_key(&id)
    }

    /// Watches whether packets come, from now on, if that is asked for.
    fn watch(&mut self, timer_s: Option<u32>) {
        match timer_s {
            None => {}
            Some(0) => drop(self.urrs.remove(&ACTIVITY)),
            Some(timer_s) => drop(self.urrs.insert(ACTIVITY, activity::rule(timer_s))),
        }
    }

    /// The usage reporting rules, by ID, with the UPF's own.
    pub fn urrs(&self) -> &BTreeMap<u32, Urr> {
        &self.urrs
    }

    /// The session in the form that the tables take. `usage` has the counters of the URRs. `config` says how many packets
    /// wait where no BAR suggests a number, and what predefined rules are.
    pub fn session(&self, up_seid: u64, cp_f_seid: CpFSeid, config: &Config, usage: impl Fn(u32) -> Usage) -> Session {
        let max_packets = config.max_buffered_packets;
        let mut pdrs: Vec<_> = self.pdrs.values().cloned().collect();
        pdrs.sort_by_key(|pdr| pdr.precedence);
        let action = |far: &HeldFar| match &far.forwarding {
            Some(forwarding) if far.forwards() => FarAction::Forward(forwarding.clone()),
            _ if far.buffers() => FarAction::Buffer(Buffering {
                notify: far.action.contains(ApplyAction::NOCP),
                max_packets: self.bar(far).suggested_packets.map_or(max_packets, u16::from),
                duration: far.bar.and_then(|id| self.durations.get(&id)).copied().unwrap_or_default(),
            }),
            _ => FarAction::Drop,
        };
        let copies = |far: &HeldFar| if far.duplicates() { far.copies.clone() } else { vec![] };
        let fars = self.fars.iter().map(|(&id, far)| Far { id, action: action(far), copies: copies(far) }).collect();
        let urr = |(&id, urr): (&u32, &Urr)| {
            let quota_far_id = urr.terms.quota_action_far_id;
            rules::Urr { id, measures: urr.measures(), usage: usage(id), quota_far_id }
        };
        let qers = self.qers.values().copied().collect();
        let activity = self.urrs.contains_key(&ACTIVITY).then(|| usage(ACTIVITY));
        let urrs = self.urrs.range(..ACTIVITY).map(urr).collect();
        let mut session = Session { up_seid, cp_f_seid, pdrs, fars, qers, urrs, activity, parting: Parting::default() };
        self.expand(&mut session, &config.predefined_rules);
        session
    }
}
