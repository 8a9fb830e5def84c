//! What is to be done to turn one slice into another: which containers and links go, and which are made.

use std::collections::{BTreeMap, BTreeSet};

use slice::{End, FunctionChange, Link, PortRef, Slice};
use vport::broker::LinkKind;

use crate::link;

/// The steps from one description to another.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// Keys of links that go, or are made anew.
    pub(crate) links_down: Vec<String>,
    /// Links that are told other words than ends and addresses.
    pub(crate) links_renamed: Vec<Link>,
    /// Replicas that go while others of their pool stay: what they serve is theirs to give away first.
    pub(crate) leave: Vec<String>,
    /// Containers that end.
    pub(crate) stop: BTreeSet<String>,
    /// Containers that end for good.
    pub(crate) remove: Vec<String>,
    /// Containers that are made.
    pub(crate) start: Vec<String>,
    /// Links that are made.
    pub(crate) links_up: Vec<Link>,
    /// Containers and links concerned.
    pub(crate) count: usize,
}

impl Plan {
    /// `there`: the containers that exist, and of each whether it was not started, or was stopped by an attempt that failed.
    pub(crate) fn new(actual: &Slice, target: &Slice, there: &BTreeMap<String, bool>) -> Self {
        let changes = slice::diff(actual, target);
        let mut plan = Self::default();
        let mut wanted = BTreeSet::new();
        for function in &target.spec.functions {
            let change = changes.functions_changed.iter().find(|change| change.name == function.name);
            let anew = change.is_some_and(FunctionChange::is_anew);
            for container in function.containers() {
                let is_there = there.contains_key(&container);
                if is_there && anew {
                    plan.stop.insert(container.clone());
                }
                if anew || there.get(&container).is_none_or(|idle| *idle) {
                    plan.start.push(container.clone());
                }
                wanted.insert(container);
            }
            if !anew && function.pool.is_some() {
                plan.leave.extend(function.members().into_iter().filter(|name| !wanted.contains(name)));
            }
        }
        plan.remove = there.keys().filter(|name| !wanted.contains(*name)).cloned().collect();
        plan.leave.retain(|name| there.contains_key(name));
        plan.stop.extend(plan.remove.iter().cloned());
        plan.count = plan.stop.union(&plan.start.iter().cloned().collect()).count()
            + changes.links_added.len()
            + changes.links_changed.len()
            + changes.links_removed.len();

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
            let moved = wanted.is_none_or(|wanted| wire(actual, link) != wire(target, wanted));
            if moved || link.between.iter().filter_map(End::port).any(touched) {
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

/// What of a link's description says how it is carried.
fn wire(slice: &Slice, link: &Link) -> ([End; 2], LinkKind, u64) {
    let mut ends = link.between.clone();
    ends.sort();
    (ends, link::kind(&slice.metadata.name, slice, link), link::ring_bytes(link))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(actual: &Slice, target: &Slice) -> Plan {
        Plan::new(actual, target, &there(actual, ""))
    }

    fn there(actual: &Slice, idle: &str) -> BTreeMap<String, bool> {
        let containers = actual.spec.functions.iter().flat_map(slice::Function::containers);
        containers.map(|name| (name.clone(), name == idle)).collect()
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
        assert_eq!(Plan::new(&one, &one, &there(&one, "b")).start, ["b"]);
        assert!(Plan::new(&one, &slice(&function("a", ""), ""), &there(&one, "b")).start.is_empty());
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
    fn a_link_whose_rings_shall_be_others_is_made_anew() {
        let with = |more: &str| slice(&two(""), &format!(r#"{{"between": ["a/p", "b/p"]{more}}}"#));
        let default = with("");
        for other in [r#", "ringSize": "2MiB""#, r#", "kind": "shared-records""#] {
            let plan = plan(&default, &with(other));
            assert_eq!((plan.links_down.len(), plan.links_up.len(), plan.stop.len()), (1, 1, 0), "{other}");
        }
        for same in [r#", "ringSize": "1MiB""#, r#", "kind": "direct""#, r#", "maxLatency": "1ms""#] {
            let plan = plan(&default, &with(same));
            assert_eq!((plan.links_down.len(), plan.links_renamed.len()), (0, 1), "{same}");
        }
    }

    fn pool(replicas: u16, more: &str) -> Slice {
        let pool = format!(r#", "pool": {{"max": 4, "replicas": {replicas}}}{more}"#);
        slice(&format!("{}, {}", function("a", &pool), function("b", "")), r#"{"between": ["a/p", "b/p"]}"#)
    }

    #[test]
    fn replicas_come_and_go_and_neither_the_others_nor_links_are_touched() {
        let up = plan(&pool(1, ""), &pool(3, ""));
        assert_eq!((&up.start[..], up.stop.len(), up.count), (&["a-2".to_owned(), "a-3".to_owned()][..], 0, 2));
        let down = plan(&pool(3, ""), &pool(2, ""));
        assert_eq!((&down.remove, &down.leave), (&vec!["a-3".to_owned()], &vec!["a-3".to_owned()]));
        assert_eq!((down.stop, down.start), (["a-3".to_owned()].into(), Vec::new()));
        for plan in [up, plan(&pool(3, ""), &pool(3, ""))] {
            assert!(plan.links_down.is_empty() && plan.links_up.is_empty());
        }
        assert!(plan(&pool(3, ""), &pool(3, "")).is_empty());
    }

    #[test]
    fn an_edited_pool_restarts_all_that_stay() {
        let plan = plan(&pool(3, ""), &pool(2, r#", "args": ["x"]"#));
        assert_eq!(
            (plan.start, plan.remove, plan.leave),
            (vec!["a-1".into(), "a-2".into()], vec!["a-3".into()], vec![])
        );
        assert_eq!((plan.stop.len(), plan.count), (3, 3));
    }

    #[test]
    fn a_replica_that_a_failed_attempt_did_not_make_is_made() {
        let mut there = there(&pool(3, ""), "");
        there.remove("a-2");
        let plan = Plan::new(&pool(3, ""), &pool(3, ""), &there);
        assert_eq!((plan.start, plan.count), (vec!["a-2".to_owned()], 1));
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
