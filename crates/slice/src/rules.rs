//! Checks of sense: what each field says may be right, and still not go together, or not on this host.

use crate::{
    address::{Cidr, Mac},
    descriptor::{Cores, End, Function, Image, Link, Outside, Port, PortRef, Slice, Steering},
    host::{HostFacts, Mechanism},
    quantity::Latency,
    report::{Position, Report},
    shape::{Path, Places, Step, check_absolute, nearest, steps},
    tree::excerpt,
};
use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    net::IpAddr,
    path::Path as FilePath,
};

/// Least memory in which a container starts at all.
const LEAST_MEMORY: u64 = 4 << 20;
/// Longest slice and function name together, so that `SLICE-FUNCTION` can be the name of a host and of a pod.
const LONGEST_NAMES: usize = 62;
/// What the platform itself puts into every container.
const PLATFORM_PATHS: [&str; 4] = ["/proc", "/sys", "/dev", "/run/kaista"];

/// Everything that a rule may look at.
struct Rules<'a> {
    slice: &'a Slice,
    places: &'a Places,
    host: &'a HostFacts,
    report: &'a mut Report,
}

/// Checks a slice that has the right shape. `directory` is where its images are relative to, if they are to be looked for.
pub fn check(slice: &Slice, places: &Places, host: &HostFacts, directory: Option<&FilePath>, report: &mut Report) {
    let mut rules = Rules { slice, places, host, report };
    rules.names();
    for (index, function) in slice.spec.functions.iter().enumerate() {
        let at = steps!["spec", "functions", index];
        rules.container(function, &at);
        rules.image(&function.image, &at, directory);
        rules.interfaces(function, &at);
        for (index, port) in function.ports.iter().enumerate() {
            let at = join(&at, steps!["ports", index]);
            rules.port(port, &at);
            rules.routes(port, &at);
        }
        rules.kernel_routes(function, &at);
    }
    rules.addresses();
    rules.links();
    rules.unlinked_ports();
    rules.cores();
}

fn join(at: &[Step], rest: Path) -> Path {
    at.iter().cloned().chain(rest).collect()
}

/// Positions of what was seen before, to find what is there twice.
struct Seen<K>(HashMap<K, Position>);

impl<K: Hash + Eq> Seen<K> {
    fn new() -> Self {
        Self(HashMap::new())
    }

    /// Notes a value; gives the position of the first that equals it.
    fn before(&mut self, value: K, at: Position) -> Option<Position> {
        match self.0.entry(value) {
            Entry::Occupied(first) => Some(*first.get()),
            Entry::Vacant(free) => {
                free.insert(at);
                None
            }
        }
    }
}

impl Rules<'_> {
    fn at(&self, path: &[Step]) -> Position {
        self.places.value(path)
    }

    /// Reports a name that something of the same kind has already.
    fn unique<'n>(&mut self, seen: &mut Seen<&'n str>, name: &'n str, path: &[Step], what: &str) {
        if !self.places.is_sound(path) {
            return;
        }
        let at = self.at(path);
        if let Some(first) = seen.before(name, at) {
            let reason = format!("{what} is called {name:?} already");
            self.report.error(at, reason, format!("choose another name; the first is on line {}", first.line));
        }
    }

    fn names(&mut self) {
        let slice = self.slice;
        let mut functions = Seen::new();
        for (index, function) in slice.spec.functions.iter().enumerate() {
            let at = steps!["spec", "functions", index, "name"];
            self.unique(&mut functions, &function.name, &at, "another function");
            let length = slice.name().len() + function.name.len();
            if length > LONGEST_NAMES && function.name.len() <= 63 && slice.name().len() <= 63 {
                let reason = format!("the names of slice and function have {length} characters together");
                self.report.error(self.at(&at), reason, format!("shorten one; {LONGEST_NAMES} are allowed"));
            }
            let mut ports = Seen::new();
            for (port_index, port) in function.ports.iter().enumerate() {
                let at = steps!["spec", "functions", index, "ports", port_index, "name"];
                self.unique(&mut ports, &port.name, &at, "another port of the function");
            }
        }
        let mut links = Seen::new();
        for (index, link) in slice.spec.links.iter().enumerate() {
            if let Some(name) = &link.name {
                self.unique(&mut links, name, &steps!["spec", "links", index, "name"], "another link");
            }
        }
    }

    fn container(&mut self, function: &Function, at: &[Step]) {
        if let Some(first) = function.command.as_ref().and_then(|c| c.first())
            && first.is_empty()
        {
            let at = self.at(&join(at, steps!["command", 0]));
            self.report.error(at, "the command is empty", "name a program, for example /usr/bin/kaista-upf");
        }
        if let Some(memory) = function.memory
            && memory.0 < LEAST_MEMORY
            && self.places.is_sound(&join(at, steps!["memory"]))
        {
            let at = self.at(&join(at, steps!["memory"]));
            self.report.error(at, format!("no container starts with {memory}"), "give at least 4MiB");
        }
        self.environment(function, at);
        self.files(function, at);
        if let Some(directory) = &function.state_directory {
            let at = self.at(&join(at, steps!["stateDirectory"]));
            self.platform_path(directory, at, "the state directory");
        }
    }

    fn environment(&mut self, function: &Function, at: &[Step]) {
        for name in function.env.keys() {
            let at = self.places.key(&join(at, steps!["env", name.as_str()]));
            if name.is_empty() || name.contains(['=', '\0']) {
                let reason = format!("{:?} cannot be the name of a variable", excerpt(name));
                self.report.error(at, reason, "use letters, digits and underscores");
            } else if name == "KAISTA_PORTS" {
                self.report.error(at, "KAISTA_PORTS is set by the platform", "take it away");
            }
        }
    }

    fn files(&mut self, function: &Function, at: &[Step]) {
        for name in function.files.keys() {
            let at = self.places.key(&join(at, steps!["files", name.as_str()]));
            if name.contains('\0') {
                self.report.error(at, "a path cannot hold a zero byte", "take the \\0 away");
                continue;
            }
            if let Err(error) = check_absolute(name) {
                self.report.error(at, error.reason, error.remedy);
                continue;
            }
            self.platform_path(name, at, "a file");
            let outer = function.files.keys().find(|other| is_below(name, other));
            if let Some(outer) = outer {
                let reason =
                    format!("{:?} would have to be a directory, and is a file of this function", excerpt(outer));
                self.report.error(at, reason, "choose another path for one of them");
            }
        }
    }

    /// Reports a path that belongs to the platform.
    fn platform_path(&mut self, path: &str, at: Position, what: &str) {
        let taken = PLATFORM_PATHS.iter().find(|p| path == **p || is_below(path, p) || is_below(p, path));
        if path == "/" {
            self.report.error(at, format!("{what} cannot take the place of the whole image"), "choose a path below /");
        } else if let Some(taken) = taken {
            let reason = format!("{what} cannot be at {path:?}: {taken} belongs to the platform");
            self.report.error(at, reason, "choose a path elsewhere, for example below /var/lib or /etc");
        }
    }

    fn image(&mut self, image: &Image, at: &[Step], directory: Option<&FilePath>) {
        let place = join(at, steps!["image"]);
        let field = match image {
            Image::Rootfs(_) => "rootfs",
            Image::OciLayout { .. } => "ociLayout",
            Image::Archive { .. } => "archive",
        };
        let at = join(&place, steps![field]);
        if !self.places.is_sound(&at) {
            return;
        }
        let at = self.at(&at);
        if image.path().as_os_str().is_empty() {
            self.report.error(at, format!("{field} names nothing"), "give a path, relative to this file");
            return;
        }
        let Some(directory) = directory else { return };
        let path = directory.join(image.path());
        let (fits, wanted) = match image {
            Image::Rootfs(_) => (path.is_dir(), "directory"),
            Image::OciLayout { .. } => (path.join("oci-layout").is_file(), "OCI image layout"),
            Image::Archive { .. } => (path.is_file(), "file"),
        };
        if !fits {
            let reason = format!("there is no {wanted} at {}", path.display());
            self.report.warning(at, reason, "build or fetch the image before the slice is started");
        }
    }

    fn interfaces(&mut self, function: &Function, at: &[Step]) {
        let mut seen = Seen::new();
        for (index, port) in function.ports.iter().enumerate() {
            if let Some(interface) = &port.interface {
                let at = join(at, steps!["ports", index, "interface"]);
                self.unique(&mut seen, interface, &at, "another interface of the function");
            }
        }
    }

    fn port(&mut self, port: &Port, at: &[Step]) {
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

    fn routes(&mut self, port: &Port, at: &[Step]) {
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
    fn kernel_routes(&mut self, function: &Function, at: &[Step]) {
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

    /// Every address in the slice, with the path of it and whose it is.
    fn all_addresses(&self) -> Vec<(Cidr, Path, Owner<'_>)> {
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

    fn addresses(&mut self) {
        let slice = self.slice;
        let rules = Rules { slice, places: self.places, host: self.host, report: &mut Report::default() };
        let mut first: HashMap<IpAddr, (Position, Owner<'_>)> = HashMap::new();
        for (address, at, owner) in rules.all_addresses() {
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

    fn links(&mut self) {
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

    fn unlinked_ports(&mut self) {
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
        for (f, function) in self.slice.spec.functions.iter().enumerate() {
            for (p, port) in function.ports.iter().enumerate() {
                let at = steps!["spec", "functions", f, "ports", p, "name"];
                let port = PortRef { function: function.name.clone(), port: port.name.clone() };
                if self.places.is_sound(&at) && self.slice.link_of(&port).is_none() {
                    let remedy = "add a link, or take the port away";
                    self.report.warning(self.at(&at), format!("port {port} is not linked to anything"), remedy);
                }
            }
        }
    }

    fn cores(&mut self) {
        let Some(cores) = self.host.cores else { return };
        let free = cores.saturating_sub(self.host.exclusive_elsewhere);
        let mut wanted = 0u32;
        for (index, function) in self.slice.spec.functions.iter().enumerate() {
            let at = steps!["spec", "functions", index, "cores"];
            let Cores::Exclusive(count) = function.cores else { continue };
            wanted = wanted.saturating_add(count);
            if wanted < free {
                continue;
            }
            let elsewhere = match self.host.exclusive_elsewhere {
                0 => String::new(),
                count => format!(", of which other slices have {count} for themselves"),
            };
            let reason = format!(
                "up to here the functions want {wanted} cores for themselves; the host has {cores}{elsewhere}, and one must stay shared"
            );
            let remedy = match free.saturating_sub(1) {
                0 => "write cores: shared".into(),
                most => format!("let at most {most} be exclusive in all, and the others shared"),
            };
            self.report.error(self.at(&at), reason, remedy);
            return;
        }
    }
}

/// Whose an address is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner<'a> {
    Function(&'a str),
    Host,
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

/// Whether a path is within the directory `outer`.
fn is_below(path: &str, outer: &str) -> bool {
    path.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
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
