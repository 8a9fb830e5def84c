//! What is to be done to turn one slice into another: which containers and links go, and which are made.

use std::collections::BTreeSet;

use slice::{Changes, Link, PortRef, Slice};

use crate::link;

/// The steps from one description to another.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// Keys of links that go, or are made anew.
    pub(crate) links_down: Vec<String>,
    /// Links that are told other words than ends and addresses.
    pub(crate) links_renamed: Vec<Link>,
    /// Functions whose containers end.
    pub(crate) stop: BTreeSet<String>,
    /// Functions that go.
    pub(crate) remove: Vec<String>,
    /// Functions whose containers are made.
    pub(crate) start: Vec<String>,
    /// Links that are made.
    pub(crate) links_up: Vec<Link>,
    /// Functions and links concerned.
    pub(crate) count: usize,
}

impl Plan {
    /// `idle` functions exist and were not started, or were stopped by an attempt that failed.
    pub(crate) fn new<'a>(actual: &Slice, target: &Slice, idle: impl Iterator<Item = &'a str>) -> Self {
        let changes = slice::diff(actual, target);
        let mut plan = Self { count: count(&changes), ..Self::default() };
        plan.remove = changes.functions_removed.clone();
        plan.stop = changes.functions_removed.iter().cloned().collect();
        plan.stop.extend(changes.functions_changed.iter().map(|change| change.name.clone()));
        plan.start = changes.functions_added.clone();
        plan.start.extend(changes.functions_changed.iter().map(|change| change.name.clone()));
        for name in idle {
            if target.function(name).is_some() && !plan.start.iter().any(|start| start == name) {
                plan.start.push(name.to_owned());
                plan.count += 1;
            }
        }

        let touched = |at: &PortRef| {
            changes.functions_removed.contains(&at.function)
                || changes.functions_changed.iter().filter(|change| change.name == at.function).any(|change| {
                    [&change.ports_added, &change.ports_changed, &change.ports_removed]
                        .iter()
                        .any(|p| p.contains(&at.port))
                })
        };
        for link in &actual.spec.links {
            let wanted = target.spec.links.iter().find(|wanted| link::key(wanted) == link::key(link));
            let trust = |wanted: &Link| actual.trust_group(link) == target.trust_group(wanted);
            let moved = wanted.is_none_or(|wanted| !same_wire(link, wanted) || !trust(wanted));
            if moved || link.between.iter().filter_map(slice::End::port).any(touched) {
                plan.links_down.push(link::key(link));
            } else if let Some(wanted) = wanted.filter(|wanted| *wanted != link) {
                plan.links_renamed.push(wanted.clone());
            }
        }
        let stays = |link: &Link| {
            let key = link::key(link);
            actual.spec.links.iter().any(|link| link::key(link) == key) && !plan.links_down.contains(&key)
        };
        plan.links_up = target.spec.links.iter().filter(|link| !stays(link)).cloned().collect();
        plan
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Whether two descriptions of a link between the same ends are carried out the same way.
fn same_wire(a: &Link, b: &Link) -> bool {
    let ends = |link: &Link| {
        let mut ends = link.between.clone();
        ends.sort();
        ends
    };
    ends(a) == ends(b)
}

fn count(changes: &Changes) -> usize {
    changes.functions_added.len()
        + changes.functions_changed.len()
        + changes.functions_removed.len()
        + changes.links_added.len()
        + changes.links_changed.len()
        + changes.links_removed.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(actual: &Slice, target: &Slice) -> Plan {
        Plan::new(actual, target, std::iter::empty())
    }

    fn slice(functions: &str, links: &str) -> Slice {
        let text = format!(
            r#"{{"apiVersion": "kaista.dev/v1alpha1", "kind": "Slice", "metadata": {{"name": "s"}},
                "spec": {{"functions": [{functions}], "links": [{links}]}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn function(name: &str, more: &str) -> String {
        format!(
            r#"{{"name": "{name}", "image": {{"rootfs": "/"}}, "ports": [{{"name": "p"}}, {{"name": "q"}}]{more}}}"#
        )
    }

    fn two(more: &str) -> String {
        format!("{}, {}", function("a", more), function("b", ""))
    }

    #[test]
    fn the_same_description_again_is_nothing_to_do() {
        let one = slice(&two(""), r#"{"between": ["a/p", "b/p"]}"#);
        let same = slice(&two(""), r#"{"between": ["b/p", "a/p"]}"#);
        assert!(plan(&one, &one).is_empty());
        assert!(plan(&one, &same).is_empty());
    }

    #[test]
    fn an_edited_function_restarts_alone_and_its_links_stay() {
        let old = slice(&two(""), r#"{"between": ["a/p", "b/p"]}"#);
        let new = slice(&two(r#", "args": ["x"]"#), r#"{"between": ["a/p", "b/p"]}"#);
        let plan = plan(&old, &new);
        assert_eq!(plan.start, ["a"]);
        assert_eq!(plan.stop, ["a".to_owned()].into());
        assert!(plan.links_down.is_empty() && plan.links_up.is_empty());
        assert_eq!(plan.count, 1);
    }

    #[test]
    fn a_function_that_a_failed_attempt_stopped_is_started_again() {
        let one = slice(&two(""), "");
        assert_eq!(Plan::new(&one, &one, ["b"].into_iter()).start, ["b"]);
        assert!(Plan::new(&one, &slice(&function("a", ""), ""), ["b"].into_iter()).start.is_empty());
    }

    #[test]
    fn a_function_that_goes_takes_its_links_with_it() {
        let links = r#"{"between": ["a/p", "b/p"]}, {"between": ["a/q", {"host": {"veth": "v0"}}]}"#;
        let plan = plan(&slice(&two(""), links), &slice(&function("b", ""), ""));
        assert_eq!(plan.remove, ["a"]);
        assert_eq!(plan.links_down, ["a/p--b/p", "a/q--host:v0"]);
        assert!(plan.start.is_empty());
    }

    #[test]
    fn a_changed_port_makes_its_link_anew_and_no_other() {
        let links = r#"{"between": ["a/p", "b/p"]}, {"between": ["a/q", "b/q"]}"#;
        let mut new = slice(&two(""), links);
        new.spec.functions[0].ports[1].mtu = 9000;
        let plan = plan(&slice(&two(""), links), &new);
        assert_eq!(plan.links_down, ["a/q--b/q"]);
        assert_eq!(plan.links_up.len(), 1);
        assert_eq!(plan.start, ["a"]);
    }

    #[test]
    fn a_link_whose_frames_shall_stay_where_they_are_is_made_anew() {
        let trusting = ["a", "b"].map(|name| function(name, r#", "trustGroup": "g""#)).join(", ");
        let direct = slice(&trusting, r#"{"between": ["a/p", "b/p"], "kind": "direct"}"#);
        let zero_copy = slice(&trusting, r#"{"between": ["a/p", "b/p"], "kind": "zero-copy"}"#);
        for (old, new) in [(&direct, &zero_copy), (&zero_copy, &direct)] {
            let plan = plan(old, new);
            assert_eq!((plan.links_down.len(), plan.links_up.len(), plan.stop.len()), (1, 1, 0));
        }
    }

    #[test]
    fn a_renamed_link_is_not_touched() {
        let old = slice(&two(""), r#"{"between": ["a/p", "b/p"]}"#);
        let new = slice(&two(""), r#"{"name": "n", "between": ["b/p", "a/p"], "maxLatency": "1ms"}"#);
        let plan = plan(&old, &new);
        assert!(plan.links_down.is_empty() && plan.links_up.is_empty() && plan.stop.is_empty());
        assert_eq!((plan.links_renamed.len(), plan.count), (1, 1));
    }
}
