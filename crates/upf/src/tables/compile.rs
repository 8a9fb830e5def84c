//! From a session as N4 states it to rules as workers use them.

use std::net::{IpAddr, Ipv6Addr};

use gtpu::{Direction, PduSession};
use hashbrown::HashSet;
use serde::{Deserialize, Serialize};
use vport::steering::teid_bucket;

use super::filter;
use super::policers::Policer;
use super::rule::{Action, AddressesV4, AddressesV6, Draft, Limit, Net, SLOTS_MOST};
use super::version::UeKey;
use super::{ApplyError, Bucket, home_bucket};
use crate::buffers::Waiting;
use crate::drops::DropReason;
use crate::path::{Form, PathKey, Relay, Tunnel};
use crate::rules::{Buffering, FTeid, Far, FarAction, Forwarding, Interface, Pdr, Qer, Session};
use crate::side::{self, PortId, Sides};
use crate::usage::Usage;

/// What has a policer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct MeterKey {
    /// QER ID or, where there is one, QER correlation ID.
    pub id: u32,
    /// Whether QERs of all sessions of the session manager share it.
    pub correlated: bool,
    pub uplink: bool,
}

impl MeterKey {
    fn of(qer: &Qer, uplink: bool) -> Self {
        Self { id: qer.correlation_id.unwrap_or(qer.id), correlated: qer.correlation_id.is_some(), uplink }
    }
}

/// What compiling needs from its surroundings.
pub(super) trait Context {
    /// The policer that the session shares with others.
    fn share(&mut self, key: MeterKey) -> Policer;
    /// The number of a path, to which a route leads.
    fn path(&mut self, key: PathKey) -> u32;
}

/// A compiled session: one list of rules for each TEID, one for all UE addresses in a data network.
pub(super) struct Compiled {
    pub home: Bucket,
    pub tunnelled: Vec<(u32, Vec<Draft>)>,
    pub downlinks: Vec<Downlink>,
    /// End markers for the tunnels that are left.
    pub end_markers: Vec<Tunnel>,
}

/// Rules for what comes from a data network.
pub(super) struct Downlink {
    pub port: PortId,
    pub ues: Vec<UeKey>,
    pub rules: Vec<Draft>,
}

/// Compiles `session`. Its rules must name only each other, see [`check`].
pub(super) fn compile(session: &Session, sides: &Sides, context: &mut dyn Context) -> Compiled {
    let mut compiled = Compiled {
        home: home_of(session),
        tunnelled: vec![],
        downlinks: downlinks(session, sides),
        end_markers: vec![],
    };
    for peer in &session.parting.end_markers {
        compiled.end_markers.extend(Compiler { session, sides, context }.end_marker(peer));
    }
    for pdr in &session.pdrs {
        let rule = Compiler { session, sides, context }.rule(pdr);
        match (pdr.pdi.source_interface, pdr.pdi.f_teid) {
            (Interface::SgiLan, _) => {
                let port = port_of(pdr, sides);
                if let Some(to) = compiled.downlinks.iter_mut().find(|downlink| Some(downlink.port) == port) {
                    to.rules.push(rule);
                }
            }
            (_, Some(FTeid { teid, .. })) => match compiled.tunnelled.iter_mut().find(|(other, _)| *other == teid) {
                Some((_, rules)) => rules.push(rule),
                None => compiled.tunnelled.push((teid, vec![rule])),
            },
            // Nothing can lead to it.
            (_, None) => {}
        }
    }
    compiled
}

/// Whether every rule that the session's PDRs name is there, and there are not too many policers.
pub(super) fn check(session: &Session) -> Result<(), ApplyError> {
    let complete = |pdr: &&Pdr| {
        far(session, pdr).is_some()
            && pdr.qer_ids.iter().all(|id| session.qers.iter().any(|qer| qer.id == *id))
            && pdr.urr_ids.iter().all(|id| session.urrs.iter().any(|urr| urr.id == *id))
    };
    if let Some(pdr) = session.pdrs.iter().find(|pdr| !complete(pdr)) {
        return Err(ApplyError::DanglingRule { pdr: pdr.id });
    }
    let rates = session.pdrs.iter().flat_map(|pdr| rates(qers_of(session, pdr), is_uplink(pdr)));
    let policers: HashSet<_> = rates.map(|(key, _)| key).collect();
    if policers.len() > SLOTS_MOST { Err(ApplyError::TooLarge) } else { Ok(()) }
}

/// TEIDs by which the session is found.
pub(super) fn teids(session: &Session) -> Vec<u32> {
    let tunnelled = session.pdrs.iter().filter(|pdr| pdr.pdi.source_interface != Interface::SgiLan);
    let mut teids: Vec<_> = tunnelled.filter_map(|pdr| pdr.pdi.f_teid).map(|f_teid| f_teid.teid).collect();
    teids.sort_unstable();
    teids.dedup();
    teids
}

/// UE addresses by which the session is found, each in its data network.
pub(super) fn ues(session: &Session, sides: &Sides) -> Vec<(PortId, UeKey)> {
    let of = |downlink: Downlink| downlink.ues.into_iter().map(move |ue| (downlink.port, ue));
    downlinks(session, sides).into_iter().flat_map(of).collect()
}

/// The data networks that the session is found from, as yet without rules.
fn downlinks(session: &Session, sides: &Sides) -> Vec<Downlink> {
    let mut downlinks: Vec<Downlink> = Vec::new();
    for pdr in session.pdrs.iter().filter(|pdr| pdr.pdi.source_interface == Interface::SgiLan) {
        let Some(port) = port_of(pdr, sides) else { continue };
        let at = downlinks.iter().position(|downlink| downlink.port == port).unwrap_or_else(|| {
            downlinks.push(Downlink { port, ues: vec![], rules: vec![] });
            downlinks.len() - 1
        });
        let known = &mut downlinks[at].ues;
        let pdi = &pdr.pdi;
        let v4 = pdi.ue_ip.and_then(|ue| ue.v4).map(|address| UeKey::V4(address.to_bits()));
        let v6 = pdi.ue_ip.and_then(|ue| ue.v6).map(|(net, len)| v6_key(net, len));
        let framed = pdi.framed_routes.iter().map(|&route| framed_key(route));
        for key in v4.into_iter().chain(v6).chain(framed) {
            if !known.contains(&key) {
                known.push(key);
            }
        }
    }
    downlinks
}

/// The port that packets of the PDR come in on.
fn port_of(pdr: &Pdr, sides: &Sides) -> Option<PortId> {
    sides.network(pdr.pdi.source_interface, pdr.pdi.network_instance.as_deref())
}

fn v6_key(net: Ipv6Addr, len: u8) -> UeKey {
    UeKey::V6(net.to_bits() & side::mask(true, len), len)
}

/// A route to one address is as good as the address.
fn framed_key(route: (IpAddr, u8)) -> UeKey {
    match route {
        (IpAddr::V4(address), 32) => UeKey::V4(address.to_bits()),
        (IpAddr::V4(net), len) => UeKey::V4Net(net.to_bits() & side::mask(false, len) as u32, len),
        (IpAddr::V6(net), len) => v6_key(net, len),
    }
}

/// Policers that the session shares with others, both ways.
pub(super) fn shared(session: &Session) -> Vec<MeterKey> {
    let rates = [true, false].into_iter().flat_map(|uplink| rates(session.qers.iter(), uplink));
    rates.map(|(key, _)| key).filter(|key| key.correlated).collect()
}

/// The session's bucket: that of its UE address, or of its first TEID.
pub(super) fn home_of(session: &Session) -> Bucket {
    let ue = |interface| {
        session.pdrs.iter().filter(move |pdr| pdr.pdi.source_interface == interface).find_map(|pdr| pdr.pdi.ue_ip)
    };
    match ue(Interface::SgiLan).or_else(|| ue(Interface::Access)).or_else(|| ue(Interface::Core)) {
        Some(ue) => home_bucket(&ue),
        None => teids(session).first().map_or(0, |&teid| teid_bucket(teid)),
    }
}

fn far<'s>(session: &'s Session, pdr: &Pdr) -> Option<&'s Far> {
    session.fars.iter().find(|far| far.id == pdr.far_id)
}

fn is_uplink(pdr: &Pdr) -> bool {
    pdr.pdi.source_interface == Interface::Access
}

fn qers_of<'s>(session: &'s Session, pdr: &'s Pdr) -> impl Iterator<Item = &'s Qer> {
    session.qers.iter().filter(|qer| pdr.qer_ids.contains(&qer.id))
}

/// Maximum bit rates that packets of these QERs count towards.
fn rates<'s>(qers: impl Iterator<Item = &'s Qer>, uplink: bool) -> Vec<(MeterKey, u64)> {
    let rate = |qer: &Qer| if uplink { qer.uplink_mbr_bps } else { qer.downlink_mbr_bps };
    let mut rates = vec![];
    for (key, rate) in qers.filter_map(|qer| Some((MeterKey::of(qer, uplink), rate(qer)?))) {
        // A packet counts once towards a rate that several QERs share.
        if rates.iter().all(|(other, _)| *other != key) {
            rates.push((key, rate));
        }
    }
    rates
}

struct Compiler<'c> {
    session: &'c Session,
    sides: &'c Sides,
    context: &'c mut dyn Context,
}

impl Compiler<'_> {
    fn rule(&mut self, pdr: &Pdr) -> Draft {
        let uplink = is_uplink(pdr);
        let qers: Vec<_> = qers_of(self.session, pdr).copied().collect();
        let action = self.action(pdr, pdr.far_id, &qers);
        let mut rule = Draft {
            qfis: pdr.pdi.qfis.iter().fold(0, |bits, qfi| bits | 1 << (qfi & 63)),
            any_ue: pdr.pdi.ue_ip.is_none() && pdr.pdi.framed_routes.is_empty(),
            v4: addresses_v4(pdr),
            v6: addresses_v6(pdr),
            framed: pdr.pdi.framed_routes.iter().map(|&route| network(route)).collect(),
            filters: pdr.pdi.sdf_filters.iter().map(|filter| filter::Draft::new(filter, uplink)).collect(),
            // Which header came is the F-TEID's to say: some session managers go by the PDU session's type.
            removes_header: pdr.outer_header_removal.is_some(),
            open: qers.iter().all(|qer| if uplink { qer.uplink_gate_open } else { qer.downlink_gate_open }),
            limits: self.limits(&qers, uplink),
            uplink,
            usages: counting(self.session, pdr).map(|(usage, _)| usage.place().0).collect(),
            translated: self.is_translated(&action),
            action,
            copies: self.copies(pdr.far_id),
            substitutes: vec![],
            pdr: pdr.id,
        };
        // What waits is not copied, uses up no quota, and keeps the header that it came with.
        if matches!(rule.action, Action::Buffer(_)) {
            rule.copies.clear();
            rule.removes_header = false;
        } else {
            rule.substitutes = self.substitutes(pdr, &rule, &qers);
        }
        rule
    }

    /// What stands in for `rule` where a quota is used up whose usage reporting rule says so. It counts for those without
    /// such a FAR. What it matches was found out before.
    fn substitutes(&mut self, pdr: &Pdr, rule: &Draft, qers: &[Qer]) -> Vec<(usize, Draft)> {
        let fars: Vec<_> = counting(self.session, pdr).map(|(_, quota_far_id)| quota_far_id).collect();
        if fars.iter().all(Option::is_none) {
            return vec![];
        }
        let unbound = counting(self.session, pdr).filter(|(_, quota_far_id)| quota_far_id.is_none());
        let usages: Vec<_> = unbound.map(|(usage, _)| usage.place().0).collect();
        let substitute = |(at, far_id): (usize, Option<u32>)| {
            let (action, copies) = (self.action(pdr, far_id?, qers), self.copies(far_id?));
            let (usages, v6, framed, filters) = (usages.clone(), AddressesV6::default(), vec![], vec![]);
            let translated = self.is_translated(&action);
            Some((at, Draft { action, translated, copies, usages, v6, framed, filters, ..rule.clone() }))
        };
        fars.into_iter().enumerate().filter_map(substitute).collect()
    }

    fn limits(&mut self, qers: &[Qer], uplink: bool) -> Vec<Limit> {
        let mut shared = |key: MeterKey| key.correlated.then(|| self.context.share(key));
        rates(qers.iter(), uplink).into_iter().map(|(key, rate)| Limit { key, rate, shared: shared(key) }).collect()
    }

    /// Tunnels for copies of packets.
    fn copies(&mut self, far_id: u32) -> Vec<Result<Tunnel, DropReason>> {
        let far = self.session.fars.iter().find(|far| far.id == far_id);
        far.into_iter().flat_map(|far| &far.copies).map(|copy| self.copy(copy)).collect()
    }

    fn copy(&mut self, forwarding: &Forwarding) -> Result<Tunnel, DropReason> {
        let ends = self.ends(forwarding)?;
        Ok(self.tunnel_to(&ends, Form::Bare, forwarding.marking.octet()))
    }

    /// What the FAR does with packets of the PDR.
    fn action(&mut self, pdr: &Pdr, far_id: u32, qers: &[Qer]) -> Action {
        let far = self.session.fars.iter().find(|far| far.id == far_id);
        let forwarding = match far.map(|far| &far.action) {
            Some(FarAction::Forward(forwarding)) => forwarding,
            Some(FarAction::Buffer(buffering)) => {
                let Buffering { notify, max_packets, duration } = *buffering;
                let up_seid = self.session.up_seid;
                return Action::Buffer(Waiting { up_seid, pdr: pdr.id, max_packets, notify, duration });
            }
            Some(FarAction::Drop) | None => return Action::Drop(DropReason::FarDrop),
        };
        let to = forwarding.destination_interface;
        let network_instance = forwarding.network_instance.as_deref();
        match (pdr.pdi.source_interface, to) {
            (Interface::Access | Interface::Core, Interface::SgiLan) if forwarding.outer_header_creation.is_none() => {
                match self.sides.network(to, network_instance) {
                    None => Action::Drop(DropReason::UnsupportedPath),
                    Some(port) if forwarding.marking.is_none() => Action::Route(port),
                    Some(port) => Action::RouteMarked(port, forwarding.marking),
                }
            }
            (Interface::SgiLan, Interface::Access | Interface::Core) => {
                self.tunnel(forwarding, qers).unwrap_or_else(Action::Drop)
            }
            (Interface::Access | Interface::Core, Interface::Access | Interface::Core) => {
                self.relay(pdr, forwarding, qers).unwrap_or_else(Action::Drop)
            }
            _ => Action::Drop(DropReason::UnsupportedPath),
        }
    }

    /// Whether packets go into a data network with source NAT.
    fn is_translated(&self, action: &Action) -> bool {
        match *action {
            Action::Route(port) | Action::RouteMarked(port, _) => self.sides.get(port).has_nat(),
            _ => false,
        }
    }

    fn tunnel(&mut self, forwarding: &Forwarding, qers: &[Qer]) -> Result<Action, DropReason> {
        let (ends, tos) = (self.ends(forwarding)?, forwarding.marking.octet());
        Ok(Action::Tunnel(match flow(Direction::Downlink, qers) {
            None => self.tunnel_to(&ends, Form::Bare, tos),
            Some(flow) => Tunnel { flow, ..self.tunnel_to(&ends, Form::Downlink, tos) },
        }))
    }

    /// From N3 or N9 to N3 or N9.
    fn relay(&mut self, pdr: &Pdr, forwarding: &Forwarding, qers: &[Qer]) -> Result<Action, DropReason> {
        let (ends, tos) = (self.ends(forwarding)?, forwarding.marking.octet());
        // What a gNB sends back after its UE has left is on its way to the UE, too (TS 23.502, 4.9.1.3.2).
        let downlink =
            (pdr.pdi.source_interface, forwarding.destination_interface) != (Interface::Access, Interface::Core);
        let direction = if downlink { Direction::Downlink } else { Direction::Uplink };
        Ok(Action::Relay(Relay {
            bare: self.tunnel_to(&ends, Form::Bare, tos).path,
            marked: self.tunnel_to(&ends, Form::marked(direction), tos).path,
            marker: self.tunnel_to(&ends, Form::EndMarker, 0).path,
            teid: ends.teid,
            flow: flow(direction, qers),
            downlink,
        }))
    }

    fn ends(&self, forwarding: &Forwarding) -> Result<Ends, DropReason> {
        let &Forwarding { destination_interface: to, outer_header_creation, .. } = forwarding;
        let ports: Vec<_> = self.sides.candidates(to, forwarding.network_instance.as_deref()).collect();
        if ports.is_empty() {
            return Err(DropReason::UnsupportedPath);
        }
        let peer = outer_header_creation.ok_or(DropReason::NoTunnel)?;
        let leads = |port: &PortId| self.sides.get(*port).next_hop(peer.address).is_some();
        let port = ports.into_iter().find(leads).ok_or(DropReason::NoRoute)?;
        let source = self.source(to, port, peer.address).ok_or(DropReason::NoRoute)?;
        Ok(Ends { port, source, peer: peer.address, teid: peer.teid })
    }

    fn tunnel_to(&mut self, ends: &Ends, form: Form, tos: u8) -> Tunnel {
        let &Ends { port, source, peer, teid } = ends;
        Tunnel { path: self.context.path(PathKey { port, source, peer, tos, form }), teid, flow: 0 }
    }

    /// The end marker of a tunnel; none if the tunnel cannot have been in use.
    fn end_marker(&mut self, forwarding: &Forwarding) -> Option<Tunnel> {
        let ends = self.ends(forwarding).ok()?;
        Some(self.tunnel_to(&ends, Form::EndMarker, 0))
    }

    /// The address at which the session hears of the interface, so that both directions of a tunnel have the same two ends;
    /// or else the port's address to send to `peer` from.
    fn source(&self, interface: Interface, port: PortId, peer: IpAddr) -> Option<IpAddr> {
        let side = self.sides.get(port);
        let heard = self.session.pdrs.iter().filter(|pdr| pdr.pdi.source_interface == interface);
        let mut heard = heard.filter_map(|pdr| pdr.pdi.f_teid).filter_map(|local| match peer.is_ipv4() {
            true => local.v4.map(IpAddr::V4),
            false => local.v6.map(IpAddr::V6),
        });
        let own = |&address: &IpAddr| side.addresses.iter().any(|(own, _)| *own == address);
        heard.find(own).or_else(|| side.source_for(peer))
    }
}

/// A tunnel, whose addresses are of one version.
struct Ends {
    port: PortId,
    source: IpAddr,
    peer: IpAddr,
    teid: u32,
}

/// The QoS flow that the QERs give, and whether UEs are to treat their uplink packets as these are treated (TS 23.501, 5.7.5).
fn flow(direction: Direction, qers: &[Qer]) -> Option<u8> {
    let mut qfis = qers.iter().filter_map(|qer| qer.qfi);
    // 0 is no flow's (TS 24.501, 9.11.4.12): a QER that is for several, as the session's AMBR, may have it beside the flow's own.
    let qfi = qfis.clone().find(|&qfi| qfi != 0).or_else(|| qfis.next())?;
    Some(PduSession { direction, qfi, rqi: qers.iter().any(|qer| qer.reflective) }.flow())
}

/// What the session's rules that the PDR names count by, and what sees that there are packets; with the FARs for used quotas.
fn counting<'s>(session: &'s Session, pdr: &Pdr) -> impl Iterator<Item = (&'s Usage, Option<u32>)> {
    let named = session.urrs.iter().filter(|urr| pdr.urr_ids.contains(&urr.id));
    let usages = named.filter(|urr| urr.measures).map(|urr| (&urr.usage, urr.quota_far_id));
    session.activity.iter().map(|usage| (usage, None)).chain(usages)
}

fn addresses_v4(pdr: &Pdr) -> AddressesV4 {
    AddressesV4 {
        ue: pdr.pdi.ue_ip.and_then(|ue| ue.v4).map(|address| address.to_bits()),
        local: pdr.pdi.f_teid.and_then(|f_teid| f_teid.v4).map(|address| address.to_bits()),
    }
}

fn addresses_v6(pdr: &Pdr) -> AddressesV6 {
    let ue = pdr.pdi.ue_ip.and_then(|ue| ue.v6).map(|(net, len)| {
        let mask = side::mask(true, len);
        (net.to_bits() & mask, mask)
    });
    AddressesV6 { ue, local: pdr.pdi.f_teid.and_then(|f_teid| f_teid.v6).map(|address| address.to_bits()) }
}

fn network(prefix: (IpAddr, u8)) -> Net {
    match prefix {
        (IpAddr::V4(net), len) => {
            let mask = side::mask(false, len) as u32;
            Net::V4 { net: net.to_bits() & mask, mask }
        }
        (IpAddr::V6(net), len) => {
            let mask = side::mask(true, len);
            Net::V6 { net: net.to_bits() & mask, mask }
        }
    }
}
