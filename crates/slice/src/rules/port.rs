//! The ports of a function and their routes.

use super::{Rules, Seen, join};
use crate::{
    address::Cidr,
    descriptor::{Function, Port, Steering},
    places::{Step, steps},
};
use std::net::IpAddr;

impl Rules<'_> {
    pub(super) fn interfaces(&mut self, function: &Function, at: &[Step]) {
        let mut seen = Seen::new();
        for (index, port) in function.ports.iter().enumerate() {
            if let Some(interface) = &port.interface {
                let at = join(at, steps!["ports", index, "interface"]);
                self.unique(&mut seen, interface, &at, "another interface of the function");
            }
        }
    }

    pub(super) fn port(&mut self, port: &Port, at: &[Step]) {
        let is_known = self.places.is_sound(&join(at, steps!["interface"]));
        if port.is_kernel() {
            for field in ["queues", "steering"] {
                let at = join(at, steps![field]);
                if self.places.is_given(&at) {
                    let reason = format!("a kernel interface has no {field}");
                    let remedy = format!("take {field} away, or interface (for a port by shared memory)");
                    self.report.error(self.places.key(&at), reason, remedy);
                }
            }
        } else if is_known && port.queues > 1 && port.steering == Steering::None {
            let reason = format!("{} queues, and steering none brings every packet to the first", port.queues);
            let remedy = "add steering: teid, ue-address or five-tuple";
            self.report.warning(self.at(&join(at, steps!["queues"])), reason, remedy);
        }
        if let Some(mac) = port.mac
            && !mac.is_usable()
        {
            let reason = format!("{mac} is the address of a group or of nobody");
            self.report.error(self.at(&join(at, steps!["mac"])), reason, "give an even first octet, for example 02");
        }
        if port.addresses.iter().any(|a| a.address.is_ipv6()) && port.mtu < 1280 {
            let place = self.at(&join(at, steps!["mtu"]));
            self.report.error(place, format!("IPv6 needs an mtu of 1280, not {}", port.mtu), "raise it");
        }
    }

    pub(super) fn routes(&mut self, port: &Port, at: &[Step]) {
        for (index, route) in port.routes.iter().enumerate() {
            let at = join(at, steps!["routes", index]);
            if !self.places.is_sound(&join(&at, steps!["to"])) || !self.places.is_sound(&join(&at, steps!["via"])) {
                continue;
            }
            let (to, via) = (self.at(&join(&at, steps!["to"])), self.at(&join(&at, steps!["via"])));
            if route.to.network() != route.to.address {
                let network = Cidr { address: route.to.network(), ..route.to };
                self.report.error(to, format!("{} has bits beyond its prefix", route.to), format!("write {network}"));
            }
            if route.to.address.is_ipv4() != route.via.is_ipv4() {
                let remedy = "give a next hop of the same family";
                self.report.error(via, format!("{} and {} are of two families", route.to, route.via), remedy);
                continue;
            }
            let local = matches!(route.via, IpAddr::V6(a) if a.is_unicast_link_local());
            let on_link = port.addresses.iter().any(|a| a.contains(route.via));
            if port.addresses.iter().any(|a| a.address == route.via) {
                let remedy = "name the address of the other end";
                self.report.error(via, format!("{} is the port's own address", route.via), remedy);
            } else if !on_link && !local && self.addresses_sound(port, &at[..at.len() - 2]) {
                let reason = format!("the port has no address in the network of {}", route.via);
                let remedy = "name a next hop that the port reaches directly, or widen the prefix of an address";
                self.report.error(via, reason, remedy);
            }
        }
    }

    fn addresses_sound(&self, port: &Port, at: &[Step]) -> bool {
        let list = join(at, steps!["addresses"]);
        let items = (0..port.addresses.len()).map(|index| join(&list, steps![index]));
        self.places.is_sound(&list) && items.into_iter().all(|item| self.places.is_sound(&item))
    }

    /// The kernel holds one route to a destination; functions with ports of their own may hold more.
    pub(super) fn kernel_routes(&mut self, function: &Function, at: &[Step]) {
        let mut seen = Seen::new();
        for (port_index, port) in function.ports.iter().enumerate().filter(|(_, p)| p.is_kernel()) {
            for (index, route) in port.routes.iter().enumerate() {
                let at = join(at, steps!["ports", port_index, "routes", index, "to"]);
                if !self.places.is_sound(&at) {
                    continue;
                }
                let place = self.at(&at);
                if let Some(first) = seen.before(route.to, place) {
                    let reason = format!("the function has a route to {} already", route.to);
                    self.report.error(place, reason, format!("take one away; the first is on line {}", first.line));
                }
            }
        }
    }
}
