//! Pools: what a function must be to have replicas.

use super::{Rules, join};
use crate::{
    descriptor::{End, Function, Link, LinkKind, Outside, Pool, Port, Steering},
    places::{Step, steps},
};

impl Rules<'_> {
    pub(super) fn pool(&mut self, function: &Function, at: &[Step]) {
        let Some(pool) = function.pool.filter(|_| self.places.is_sound(&join(at, steps!["pool"]))) else { return };
        let max = join(at, steps!["pool", "max"]);
        if pool.replicas() > pool.max && self.places.is_sound(&max) {
            let at = self.at(&join(at, steps!["pool", "replicas"]));
            let reason = format!("{} replicas are more than the {} that there can be", pool.replicas(), pool.max);
            self.report.error(at, reason, "raise max, or lower replicas");
        }
        self.members(function, at);
        for (index, port) in function.ports.iter().enumerate() {
            self.pooled_port(function, port, &join(at, steps!["ports", index]));
        }
        let each = function.ports.iter().map(|port| port.queues).max().unwrap_or(1);
        let all = pool.max.saturating_mul(each);
        if all > Pool::QUEUES_MAX && self.places.is_sound(&max) {
            let reason = format!("{} replicas with {each} queues each have {all} queues of one port", pool.max);
            let remedy = format!("{} are possible: lower max, or queues", Pool::QUEUES_MAX);
            self.report.error(self.at(&max), reason, remedy);
        }
    }

    /// Reports functions that are called like a replica.
    fn members(&mut self, function: &Function, at: &[Step]) {
        let members = function.members();
        let others = self.slice.spec.functions.iter().enumerate();
        let taken: Vec<usize> =
            others.filter(|(_, other)| members.contains(&other.name)).map(|(index, _)| index).collect();
        for index in taken {
            let first = self.at(at).line;
            let at = self.at(&steps!["spec", "functions", index, "name"]);
            let name = &self.slice.spec.functions[index].name;
            let reason = format!("a replica of {} is called {name:?}", function.name);
            self.report.error(at, reason, format!("choose another name; the pool is on line {first}"));
        }
    }

    fn pooled_port(&mut self, function: &Function, port: &Port, at: &[Step]) {
        if port.is_kernel() {
            let at = self.at(&join(at, steps!["interface"]));
            let reason = format!("{} is a pool, whose replicas share no kernel interface", function.name);
            self.report.error(at, reason, "take interface away (for a port by shared memory), or pool");
            return;
        }
        if port.steering == Steering::None && self.places.is_sound(&join(at, steps!["steering"])) {
            let place = self.at(&join(at, steps!["name"]));
            let reason = format!("without steering all packets come to the first replica of {}", function.name);
            self.report.error(place, reason, "add steering: teid, ue-address or five-tuple");
        }
        let first = function.ports.iter().find(|first| !first.is_kernel());
        if let Some(first) = first.filter(|first| first.queues != port.queues) {
            let place = self.at(&join(at, steps!["queues"]));
            let reason =
                format!("port {} of the pool has {} queues, and this one {}", first.name, first.queues, port.queues);
            self.report.error(place, reason, "give all ports of a pool the same number of queues");
        }
    }

    /// What the links of pools cannot be.
    pub(super) fn pooled(&mut self, link: &Link, at: &[Step]) {
        let ends = [0, 1].map(|end| join(at, steps!["between", end]));
        let is_pool = |end: &End| {
            let function = end.port().and_then(|port| self.slice.function(&port.function));
            function.is_some_and(|function| function.pool.is_some())
        };
        let pools = link.between.each_ref().map(is_pool);
        if !ends.iter().all(|at| self.places.is_sound(at)) || pools == [false; 2] {
            return;
        }
        let place = self.at(&ends[1]);
        if pools == [true; 2] {
            let remedy = "put a function without replicas between them";
            self.report.error(place, "both ends of the link are pools", remedy);
        }
        if let Some(End::Outside { host: Outside::Interface(name) }) =
            link.between.iter().find(|end| matches!(end, End::Outside { host: Outside::Interface(_) }))
        {
            let reason = format!("a pool cannot have the host's interface {name}, which is one container's");
            self.report.error(place, reason, "put a function between them, or link the pool to {host: {veth: NAME}}");
        }
        let kind = join(at, steps!["kind"]);
        if link.kind == LinkKind::ZeroCopy && self.places.is_sound(&kind) {
            let at = self.at(&kind);
            self.report.error(at, "frames of pools are copied", "write direct, or take kind away");
        }
        if link.kind == LinkKind::SharedRecords && self.places.is_sound(&kind) {
            let reason = "what is sent to a pool lies together, and no replica may write what is another's";
            self.report.error(self.at(&kind), reason, "write direct, or take kind away");
        }
    }
}
