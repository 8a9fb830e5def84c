//! Addresses in the whole slice.

use super::Rules;
use crate::{
    address::Cidr,
    descriptor::Outside,
    places::{Path, steps},
    report::Position,
};
use std::{collections::HashMap, net::IpAddr};

/// Whose an address is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner<'a> {
    Function(&'a str),
    Host,
}

impl<'a> Rules<'a> {
    pub(super) fn addresses(&mut self) {
        let mut first: HashMap<IpAddr, (Position, Owner<'a>)> = HashMap::new();
        for (address, at, owner) in self.all_addresses() {
            let at = self.at(&at);
            if let Some(why) = unusable(address) {
                self.report.error(at, format!("{address} is {why}"), "give an address that a host can have");
                continue;
            }
            match first.get(&address.address) {
                None => {
                    first.insert(address.address, (at, owner));
                }
                Some((before, other)) => {
                    let reason = format!("{} is given twice", address.address);
                    let remedy = format!("change one; the first is on line {}", before.line);
                    // Two functions on separate links may have one address; one function could not tell its ports apart.
                    if *other == owner {
                        self.report.error(at, reason, remedy);
                    } else {
                        self.report.warning(at, reason, remedy);
                    }
                }
            }
        }
    }

    /// Every address in the slice, with the path of it and whose it is.
    fn all_addresses(&self) -> Vec<(Cidr, Path, Owner<'a>)> {
        let mut all = Vec::new();
        for (f, function) in self.slice.spec.functions.iter().enumerate() {
            for (p, port) in function.ports.iter().enumerate() {
                for (index, address) in port.addresses.iter().enumerate() {
                    let at = steps!["spec", "functions", f, "ports", p, "addresses", index];
                    all.push((*address, at, Owner::Function(&function.name)));
                }
            }
        }
        for (l, link) in self.slice.spec.links.iter().enumerate() {
            for (e, end) in link.between.iter().enumerate() {
                if let Some(Outside::Veth { addresses, .. }) = end.outside() {
                    for (index, address) in addresses.iter().enumerate() {
                        let at = steps!["spec", "links", l, "between", e, "host", "addresses", index];
                        all.push((*address, at, Owner::Host));
                    }
                }
            }
        }
        all.retain(|(_, at, _)| self.places.is_sound(at));
        all
    }
}

/// Why no host can have an address.
fn unusable(address: Cidr) -> Option<&'static str> {
    let ip = address.address;
    if ip.is_unspecified() {
        return Some("the address of nobody");
    }
    if ip.is_multicast() {
        return Some("a multicast address");
    }
    if ip.is_loopback() {
        return Some("a loopback address");
    }
    let IpAddr::V4(v4) = ip else { return None };
    let host_bits = u32::MAX.checked_shr(address.prefix.into()).unwrap_or(0);
    if v4.is_broadcast() || (address.prefix < 31 && v4.to_bits() & host_bits == host_bits) {
        return Some("the broadcast address of its network");
    }
    (address.prefix < 31 && v4.to_bits() & host_bits == 0).then_some("the address of the network itself")
}
