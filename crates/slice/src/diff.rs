//! What differs between two versions of a slice, in terms of what must be done about it.

use crate::descriptor::{End, Function, Link, Pool, Port, Slice};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What must be done to turn the old version of a slice into the new one. Names are sorted as the new version has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Changes {
    /// Functions that only the new version has.
    pub functions_added: Vec<String>,
    /// Functions that only the old version has.
    pub functions_removed: Vec<String>,
    /// Functions that both have, and that differ.
    pub functions_changed: Vec<FunctionChange>,
    /// Links that only the new version has.
    pub links_added: Vec<Link>,
    /// Links that only the old version has.
    pub links_removed: Vec<Link>,
    /// Links between the same two ends that differ otherwise, as the new version has them.
    pub links_changed: Vec<Link>,
}

/// How a function differs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FunctionChange {
    /// Name of the function.
    pub name: String,
    /// Fields that differ, other than `ports` and the number of replicas: its containers must be made anew.
    pub fields: Vec<String>,
    /// How many replicas there were and are to be, where that differs and only containers come or go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<(u16, u16)>,
    /// Ports that only the new version has.
    pub ports_added: Vec<String>,
    /// Ports that only the old version has.
    pub ports_removed: Vec<String>,
    /// Ports that both have, and that differ.
    pub ports_changed: Vec<String>,
}

impl FunctionChange {
    /// Whether its containers must be made anew; else some come or go.
    pub fn is_anew(&self) -> bool {
        Self { replicas: None, ..self.clone() } != Self { name: self.name.clone(), ..Self::default() }
    }
}

impl Changes {
    /// Whether the two versions are the same.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What differs between two versions of a slice. The order of functions, ports, links and ends means nothing.
pub fn diff(old: &Slice, new: &Slice) -> Changes {
    let mut changes = Changes::default();
    for function in &new.spec.functions {
        match old.function(&function.name) {
            None => changes.functions_added.push(function.name.clone()),
            Some(before) => changes.functions_changed.extend(function_change(before, function)),
        }
    }
    let gone = old.spec.functions.iter().filter(|f| new.function(&f.name).is_none());
    changes.functions_removed = gone.map(|f| f.name.clone()).collect();

    for link in &new.spec.links {
        match find_link(old, link) {
            None => changes.links_added.push(link.clone()),
            Some(before) if !same_link(before, link) || old.trust_group(before) != new.trust_group(link) => {
                changes.links_changed.push(link.clone())
            }
            Some(_) => {}
        }
    }
    let gone = old.spec.links.iter().filter(|l| find_link(new, l).is_none());
    changes.links_removed = gone.cloned().collect();
    changes
}

fn function_change(old: &Function, new: &Function) -> Option<FunctionChange> {
    let find = |ports: &[Port], name: &str| ports.iter().find(|p| p.name == name).cloned();
    let most = |function: &Function| function.pool.map(|pool| pool.max);
    let count = |function: &Function| function.pool.map(|pool| pool.replicas());
    let mut change =
        FunctionChange { name: new.name.clone(), fields: fields_changed(old, new), ..FunctionChange::default() };
    change.replicas = count(old).zip(count(new)).filter(|(old, new)| old != new);
    if most(old) != most(new) {
        // Each of its ports has as many queues as the most replicas have together.
        let there = |port: &&Port| find(&old.ports, &port.name).is_some();
        change.ports_changed = new.ports.iter().filter(there).map(|port| port.name.clone()).collect();
    }
    for port in &new.ports {
        match find(&old.ports, &port.name) {
            None => change.ports_added.push(port.name.clone()),
            Some(before) if before != *port && !change.ports_changed.contains(&port.name) => {
                change.ports_changed.push(port.name.clone());
            }
            Some(_) => {}
        }
    }
    let gone = old.ports.iter().filter(|p| find(&new.ports, &p.name).is_none());
    change.ports_removed = gone.map(|p| p.name.clone()).collect();
    let unchanged = FunctionChange { name: new.name.clone(), ..FunctionChange::default() };
    (change != unchanged).then_some(change)
}

/// Names of the fields that differ, as the descriptor writes them, other than `ports`.
fn fields_changed(old: &Function, new: &Function) -> Vec<String> {
    let Function { name: _, image, command, args, env, working_directory, files, .. } = new;
    let Function { cores, memory, restart, trust_group, state_directory, pool, ports: _, .. } = new;
    let most = |pool: &Option<Pool>| pool.map(|pool| pool.max);
    let differs = [
        ("image", *image != old.image),
        ("command", *command != old.command),
        ("args", *args != old.args),
        ("env", *env != old.env),
        ("workingDirectory", *working_directory != old.working_directory),
        ("files", *files != old.files),
        ("cores", *cores != old.cores),
        ("memory", *memory != old.memory),
        ("restart", *restart != old.restart),
        ("trustGroup", *trust_group != old.trust_group),
        ("stateDirectory", *state_directory != old.state_directory),
        ("pool", most(pool) != most(&old.pool)),
    ];
    differs.iter().filter(|(_, differs)| *differs).map(|(name, _)| (*name).into()).collect()
}

/// What makes a link the same link: its two ends, without the addresses of the host's.
fn ends(link: &Link) -> [String; 2] {
    let mut ends = link.between.each_ref().map(End::to_string);
    ends.sort();
    ends
}

fn find_link<'a>(slice: &'a Slice, link: &Link) -> Option<&'a Link> {
    slice.spec.links.iter().find(|l| ends(l) == ends(link))
}

fn same_link(a: &Link, b: &Link) -> bool {
    let sorted = |link: &Link| {
        let mut link = link.clone();
        link.between.sort();
        link
    };
    sorted(a) == sorted(b)
}

/// A line for each change: `+ function upf`, `- link n3`, `~ function dn: cores, port n6`.
impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines: Vec<String> = Vec::new();
        lines.extend(self.functions_added.iter().map(|n| format!("+ function {n}")));
        lines.extend(self.functions_changed.iter().map(FunctionChange::to_string));
        lines.extend(self.functions_removed.iter().map(|n| format!("- function {n}")));
        lines.extend(self.links_added.iter().map(|l| format!("+ link {}", l.label())));
        lines.extend(self.links_changed.iter().map(|l| format!("~ link {}", l.label())));
        lines.extend(self.links_removed.iter().map(|l| format!("- link {}", l.label())));
        f.write_str(&lines.join("\n"))
    }
}

impl fmt::Display for FunctionChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut what = self.fields.clone();
        what.extend(self.replicas.map(|(old, new)| format!("replicas {old} -> {new}")));
        what.extend(self.ports_added.iter().map(|p| format!("+port {p}")));
        what.extend(self.ports_changed.iter().map(|p| format!("port {p}")));
        what.extend(self.ports_removed.iter().map(|p| format!("-port {p}")));
        write!(f, "~ function {}: {}", self.name, what.join(", "))
    }
}
