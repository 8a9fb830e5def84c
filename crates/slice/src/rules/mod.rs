//! Checks of sense: what each field says may be right, and still not go together, or not on this host.

mod address;
mod container;
mod link;
mod pool;
mod port;

use crate::{
    descriptor::{Cores, Slice},
    host::HostFacts,
    places::{Path, Places, Step, steps},
    report::{Position, Report},
};
use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    path::Path as FilePath,
};

/// Longest slice and function name together, so that `SLICE-FUNCTION` can be the name of a host and of a pod.
const LONGEST_NAMES: usize = 62;

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
        rules.pool(function, &at);
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
            let longest = function.members().iter().map(String::len).max().unwrap_or_default();
            let length = slice.name().len() + longest;
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

    fn cores(&mut self) {
        let Some(cores) = self.host.cores else { return };
        let free = cores.saturating_sub(self.host.exclusive_elsewhere);
        let mut wanted = 0u32;
        for (index, function) in self.slice.spec.functions.iter().enumerate() {
            let at = steps!["spec", "functions", index, "cores"];
            let Cores::Exclusive(count) = function.cores else { continue };
            wanted = wanted.saturating_add(count.saturating_mul(function.containers().len() as u32));
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
