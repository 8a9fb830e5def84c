//! Links: what their ends name, and what the two ends must agree on.

use super::{Rules, Seen, join};
use crate::{
    address::{Cidr, Mac},
    descriptor::{End, Link, LinkKind, Outside, Port, PortRef},
    host::Mechanism,
    places::{Path, Step, steps},
    quantity::{ByteSize, Latency},
    report::Position,
    tree::excerpt,
    wording::nearest,
};
use std::{collections::HashSet, net::IpAddr, ops::RangeInclusive};

/// Rings that there are, in bytes.
const RING_SIZES: RangeInclusive<u64> = 128 << 10..=64 << 20;

impl Rules<'_> {
    pub(super) fn links(&mut self) {
        let slice = self.slice;
        let mut linked = Seen::new();
        let mut veths = Seen::new();
        for (index, link) in slice.spec.links.iter().enumerate() {
            let at = steps!["spec", "links", index];
            for (end_index, end) in link.between.iter().enumerate() {
                let at = join(&at, steps!["between", end_index]);
                let host = join(&at, steps!["host"]);
                if !self.places.is_sound(&at) || !self.places.is_sound(&host) {
                    continue;
                }
                match end {
                    End::Port(port) => self.linked_port(port, &at, &mut linked),
                    End::Outside { host: Outside::Veth { name, .. } } => {
                        let at = join(&host, steps!["veth"]);
                        self.unique(&mut veths, name, &at, "another interface to the host");
                    }
                    End::Outside { host: Outside::Interface(name) } => {
                        self.host_interface(name, &join(&host, steps!["interface"]))
                    }
                }
            }
            self.whole_link(link, &at);
            self.zero_copy(link, &at);
            self.shared_records(link, &at);
            self.ring_size(link, &at);
            self.pooled(link, &at);
            self.latency(link, &at);
            if let Some(rate) = link.min_bandwidth
                && rate.0 == 0
            {
                let at = self.at(&join(&at, steps!["minBandwidth"]));
                self.report.error(at, "a bandwidth of nothing is no demand", "give a rate, or take minBandwidth away");
            }
        }
    }

    fn linked_port<'p>(&mut self, port: &'p PortRef, at: &[Step], linked: &mut Seen<&'p PortRef>) {
        let slice = self.slice;
        let place = self.at(at);
        let functions = slice.spec.functions.iter().map(|f| f.name.as_str());
        let functions_sound = self.all_sound(steps!["spec", "functions"], slice.spec.functions.len());
        let Some(index) = slice.spec.functions.iter().position(|f| f.name == port.function) else {
            if functions_sound {
                let remedy = suggest(&port.function, functions, "function");
                self.report.error(place, format!("there is no function {:?}", excerpt(&port.function)), remedy);
            }
            return;
        };
        let function = &slice.spec.functions[index];
        let ports = steps!["spec", "functions", index, "ports"];
        if slice.port(port).is_none() {
            if self.places.is_sound(&ports) && self.all_sound(ports, function.ports.len()) {
                let reason = format!("function {:?} has no port {:?}", function.name, excerpt(&port.port));
                let remedy = suggest(&port.port, function.ports.iter().map(|p| p.name.as_str()), "port");
                self.report.error(place, reason, remedy);
            }
            return;
        }
        if let Some(first) = linked.before(port, place) {
            let remedy = format!("give each link a port of its own; the first link is on line {}", first.line);
            self.report.error(place, format!("port {port} is linked twice"), remedy);
        }
    }

    /// Whether all items of a list, and their names, are as the text has them.
    fn all_sound(&self, list: Path, items: usize) -> bool {
        (0..items).all(|index| self.places.is_sound(&join(&list, steps![index, "name"])))
    }

    fn host_interface(&mut self, name: &str, at: &[Step]) {
        let Some(interfaces) = &self.host.interfaces else { return };
        if !interfaces.iter().any(|i| i == name) {
            let at = self.at(at);
            let remedy = suggest(name, interfaces.iter().map(String::as_str), "interface");
            self.report.error(at, format!("this host has no interface {name:?}"), remedy);
        }
    }

    /// What the two ends of a link must agree on.
    fn whole_link(&mut self, link: &Link, at: &[Step]) {
        let between = join(at, steps!["between"]);
        let [first, second] = [0, 1].map(|end| join(&between, steps![end]));
        if !self.places.is_sound(&first) || !self.places.is_sound(&second) {
            return;
        }
        let place = self.at(&second);
        let [a, b] = link.between.each_ref().map(|end| end.port().and_then(|port| self.slice.port(port)));
        match (a, b) {
            (Some(a), Some(b)) if a.mtu != b.mtu => {
                let reason = format!("the two ends differ in mtu: {} and {}", a.mtu, b.mtu);
                self.report.error(place, reason, "give both ports the same mtu");
            }
            (Some(Port { mac: Some(a), .. }), Some(Port { mac: Some(b), .. })) if a == b => {
                self.same_mac(*a, place);
            }
            _ if link.between.iter().all(|end| end.outside().is_some()) => {
                let remedy = "let one end be FUNCTION/PORT";
                self.report.error(place, "both ends of the link are the host's", remedy);
            }
            _ => {}
        }
        self.common_network(link, place);
    }

    /// Frames may stay where they are between shared-memory ports of functions that say that they trust each other.
    fn zero_copy(&mut self, link: &Link, at: &[Step]) {
        let kind = join(at, steps!["kind"]);
        let ends = [0, 1].map(|end| join(at, steps!["between", end]));
        if link.kind != LinkKind::ZeroCopy || !ends.iter().chain([&kind]).all(|at| self.places.is_sound(at)) {
            return;
        }
        let place = self.at(&kind);
        let mut groups = Vec::new();
        for end in &link.between {
            let Some(port) = end.port() else {
                let reason = "a zero-copy link cannot lead out of the slice";
                return self.report.error(place, reason, "write direct, or take kind away");
            };
            let functions = &self.slice.spec.functions;
            let function = functions.iter().enumerate().find(|(_, function)| function.name == port.function);
            // Reported already, where it is not there or not sound.
            let (Some((index, function)), Some(its)) = (function, self.slice.port(port)) else { return };
            if !self.places.is_sound(&steps!["spec", "functions", index, "trustGroup"]) {
                return;
            }
            if its.is_kernel() {
                let reason = format!("port {port} is a kernel interface, to which every frame is copied");
                return self.report.error(place, reason, "write direct, or take kind away");
            }
            groups.push((&port.function, &function.trust_group));
        }
        let [(a, first), (b, second)] = &groups[..] else { return };
        if first.is_none() || first != second {
            let reason =
                format!("a zero-copy link needs two functions of one trust group, which {a} and {b} do not declare");
            let remedy =
                format!("give both {a} and {b} the same trustGroup, if they trust each other, or write direct");
            self.report.error(place, reason, remedy);
        }
    }

    /// Between shared-memory ports of functions; a process of the node's, which pumps, keeps to what it is given.
    fn shared_records(&mut self, link: &Link, at: &[Step]) {
        let kind = join(at, steps!["kind"]);
        if link.kind != LinkKind::SharedRecords || !self.places.is_sound(&kind) {
            return;
        }
        let is_other =
            |end: &End| end.port().is_none_or(|port| self.slice.port(port).is_some_and(|port| port.is_kernel()));
        if let Some(end) = link.between.iter().find(|end| is_other(end)) {
            let reason = format!("{end} is no shared-memory port of a function, and has no records that it reads");
            self.report.error(self.at(&kind), reason, "write direct, or take kind away");
        }
    }

    fn ring_size(&mut self, link: &Link, at: &[Step]) {
        let at = join(at, steps!["ringSize"]);
        let Some(size) = link.ring_size.filter(|_| self.places.is_sound(&at)) else { return };
        let place = self.at(&at);
        if !size.0.is_power_of_two() || !RING_SIZES.contains(&size.0) {
            let [least, most] = [*RING_SIZES.start(), *RING_SIZES.end()].map(ByteSize);
            let fitting = ByteSize(size.0.clamp(least.0, most.0).next_power_of_two());
            let remedy = format!("give a power of two from {least} to {most}, such as {fitting}");
            return self.report.error(place, format!("no ring has a size of {size}"), remedy);
        }
        if let Some(Mechanism::Veth | Mechanism::Macvlan) = Mechanism::of(self.slice, link) {
            let remedy = "take ringSize away, or make a port of it shared memory (no interface)";
            self.report.error(place, "the kernel carries this link, without rings", remedy);
        }
    }

    fn same_mac(&mut self, mac: Mac, at: Position) {
        self.report.error(at, format!("both ends have the MAC address {mac}"), "change one, or leave both out");
    }

    /// Warns of two ends that have addresses of one family, and no network in common.
    fn common_network(&mut self, link: &Link, at: Position) {
        let addresses = |end: &End| -> Vec<Cidr> {
            match end {
                End::Port(port) => self.slice.port(port).map(|p| p.addresses.clone()).unwrap_or_default(),
                End::Outside { host: Outside::Veth { addresses, .. } } => addresses.clone(),
                End::Outside { .. } => Vec::new(),
            }
        };
        let [a, b] = link.between.each_ref().map(addresses);
        for family in [IpAddr::is_ipv4, IpAddr::is_ipv6] {
            let of_family = |all: &[Cidr]| all.iter().copied().filter(|c| family(&c.address)).collect::<Vec<_>>();
            let (a, b) = (of_family(&a), of_family(&b));
            let common = a.iter().any(|a| b.iter().any(|b| a.contains(b.address) || b.contains(a.address)));
            let (Some(one), Some(other)) = (a.first(), b.first()) else { continue };
            if !common {
                let reason = format!("the two ends have no network in common: {one} and {other}");
                self.report.warning(at, reason, "give both addresses of one network, or routes");
            }
        }
    }

    fn latency(&mut self, link: &Link, at: &[Step]) {
        let at = join(at, steps!["maxLatency"]);
        let Some(wanted) = link.max_latency.filter(|_| self.places.is_sound(&at)) else { return };
        let place = self.at(&at);
        if wanted.0 == 0 {
            self.report.error(place, "no link has a latency of nothing", "give a latency such as 100us");
            return;
        }
        let Some(mechanism) = Mechanism::of(self.slice, link) else { return };
        let Some(&floor) = self.host.latency_floor_ns.get(&mechanism) else { return };
        if wanted.0 < floor {
            let floor = Latency(round_up(floor));
            let reason = format!("{wanted} is less than a {} reaches on this host", mechanism.phrase());
            let faster = match mechanism {
                Mechanism::SharedMemory => "",
                _ => ", or make its ports shared memory (no interface)",
            };
            self.report.error(place, reason, format!("give at least {floor}{faster}"));
        }
    }

    pub(super) fn unlinked_ports(&mut self) {
        // A link whose ends are wrong may be the one that a port seems to lack.
        let slice = self.slice;
        let links = steps!["spec", "links"];
        let is_right = |(index, link): (usize, &Link)| {
            (0..2).all(|end| self.places.is_sound(&join(&links, steps![index, "between", end])))
                && link.between.iter().filter_map(End::port).all(|port| slice.port(port).is_some())
        };
        if !self.places.is_sound(&links) || !slice.spec.links.iter().enumerate().all(is_right) {
            return;
        }
        let ends = slice.spec.links.iter().flat_map(|link| &link.between);
        let linked: HashSet<_> = ends.filter_map(End::port).collect();
        for (f, function) in slice.spec.functions.iter().enumerate() {
            for (p, port) in function.ports.iter().enumerate() {
                let at = steps!["spec", "functions", f, "ports", p, "name"];
                let port = PortRef { function: function.name.clone(), port: port.name.clone() };
                if self.places.is_sound(&at) && !linked.contains(&port) {
                    let remedy = "add a link, or take the port away";
                    self.report.warning(self.at(&at), format!("port {port} is not linked to anything"), remedy);
                }
            }
        }
    }
}

fn suggest<'n>(name: &str, known: impl Iterator<Item = &'n str> + Clone, what: &str) -> String {
    if let Some(near) = nearest(name, known.clone()) {
        return format!("did you mean {near}?");
    }
    let known: Vec<_> = known.take(12).collect();
    if known.is_empty() {
        format!("there is no {what} at all; add one")
    } else {
        format!("known: {}", known.join(", "))
    }
}

/// Two significant digits, upwards: a floor that a remedy can name.
fn round_up(nanoseconds: u64) -> u64 {
    let mut step = 1;
    while nanoseconds / step >= 100 {
        step *= 10;
    }
    nanoseconds.div_ceil(step).saturating_mul(step)
}
