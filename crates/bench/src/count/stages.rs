//! The stages of a packet's way through the UPF's worker, and what each of them costs.
//!
//! Stages are inlined into each other, so a function as the program has it is of many. An instruction belongs to the innermost
//! function, of those inlined where it is, that is of a stage: what the standard library, the tables and the headers' parsers do
//! counts for whoever has it done. So does what is called out of line and is of no stage, such as copying memory.

use std::collections::BTreeMap;

use super::callgrind::Profile;
use super::frames::Frame;

/// A stage, in the order of a packet's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// The port's receiving half.
    Receive,
    /// Lines of a burst's sessions are asked for.
    Ahead,
    /// Headers are parsed, and the session is found.
    Classify,
    /// The rule that matches, its gate, and where the packet goes by it.
    Decide,
    /// Maximum bit rates.
    Police,
    /// Usage is counted.
    Count,
    /// Headers are taken off and put on.
    Rewrite,
    /// The port's sending half.
    Send,
    /// The worker's round around all of these.
    Worker,
}

impl Stage {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Receive,
        Self::Ahead,
        Self::Classify,
        Self::Decide,
        Self::Police,
        Self::Count,
        Self::Rewrite,
        Self::Send,
        Self::Worker,
    ];

    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::Ahead => "ahead",
            Self::Classify => "classify",
            Self::Decide => "decide",
            Self::Police => "police",
            Self::Count => "count",
            Self::Rewrite => "rewrite",
            Self::Send => "send",
            Self::Worker => "worker",
        }
    }

    /// The stage of an instruction with these frames, innermost first. None where it is of none.
    fn of(frames: &[Frame]) -> Option<Self> {
        frames.iter().find_map(|frame| {
            let is_of = |(file, function, _): &&(&str, &str, Self)| {
                frame.file.contains(file) && frame.function.contains(function)
            };
            FUNCTIONS.iter().find(is_of).map(|(_, _, stage)| *stage)
        })
    }
}

/// Which functions are of a stage: part of the file's path, and of the function's name. The first that suits counts.
const FUNCTIONS: [(&str, &str, Stage); 21] = [
    ("port/src/synthetic.rs", "recv", Stage::Receive),
    ("vport/src/local.rs", "recv", Stage::Receive),
    ("vport/src/local.rs", "receive", Stage::Receive),
    ("upf/src/packet/ahead.rs", "", Stage::Ahead),
    ("upf/src/packet/classify.rs", "", Stage::Classify),
    ("upf/src/packet/usual.rs", "gpdu", Stage::Classify),
    ("upf/src/packet/usual.rs", "plain", Stage::Classify),
    ("upf/src/packet/usual.rs", "ip_len", Stage::Classify),
    ("upf/src/packet/usual.rs", "", Stage::Decide),
    ("upf/src/packet/decide.rs", "count", Stage::Count),
    ("upf/src/packet/decide.rs", "", Stage::Decide),
    ("upf/src/policer.rs", "", Stage::Police),
    ("upf/src/usage.rs", "", Stage::Count),
    ("upf/src/packet/mod.rs", "write", Stage::Rewrite),
    ("upf/src/path.rs", "write", Stage::Rewrite),
    ("upf/src/worker.rs", "rewrite", Stage::Rewrite),
    ("port/src/synthetic.rs", "send", Stage::Send),
    ("vport/src/local.rs", "send", Stage::Send),
    ("port/src/lib.rs", "send_burst", Stage::Send),
    ("bench/src/rig.rs", "send", Stage::Send),
    ("upf/src/worker", "", Stage::Worker),
];

/// Instructions of each stage in a whole run.
pub(super) fn costs(profile: &Profile, frames: &BTreeMap<u64, Vec<Frame>>) -> BTreeMap<Stage, u64> {
    let stage = |address: &u64| frames.get(address).and_then(|frames| Stage::of(frames));
    let has_stage =
        |name: &String| profile.functions.get(name).is_some_and(|of| of.own.keys().any(|at| stage(at).is_some()));
    let mut costs: BTreeMap<Stage, u64> = Stage::ALL.map(|stage| (stage, 0)).into();
    for function in profile.functions.values() {
        let own = function.own.iter();
        let called = function.calls.iter().filter(|((_, name), _)| !has_stage(name)).map(|((at, _), cost)| (at, cost));
        for (at, cost) in own.chain(called) {
            if let Some(stage) = stage(at) {
                *costs.entry(stage).or_default() += cost;
            }
        }
    }
    costs
}

#[cfg(test)]
mod tests {
    use super::super::callgrind::Function;
    use super::*;

    fn frame(function: &str, file: &str) -> Frame {
        Frame { function: function.into(), file: file.into() }
    }

    #[test]
    fn an_instruction_belongs_to_the_innermost_function_of_a_stage() {
        let std = frame("core::slice::get", "library/core/src/slice/mod.rs");
        let tables = frame("upf::tables::version::Version::by_teid", "crates/upf/src/tables/version.rs");
        let classify = frame("upf::packet::classify::classify_any", "crates/upf/src/packet/classify.rs");
        let serve = frame("upf::worker::Hands::serve", "crates/upf/src/worker.rs");
        assert_eq!(Stage::of(&[std.clone(), tables, classify, serve.clone()]), Some(Stage::Classify));
        assert_eq!(Stage::of(&[std.clone(), serve]), Some(Stage::Worker));
        let rewrite = frame("upf::worker::Hands::rewrite", "crates/upf/src/worker.rs");
        assert_eq!(Stage::of(&[std.clone(), rewrite]), Some(Stage::Rewrite));
        assert_eq!(Stage::of(&[std]), None);
    }

    #[test]
    fn what_is_called_counts_for_the_stage_unless_it_has_one_itself() {
        let function = |own: &[(u64, u64)], calls: &[(u64, &str, u64)]| Function {
            own: own.iter().copied().collect(),
            calls: calls.iter().map(|(at, name, cost)| ((*at, (*name).to_owned()), *cost)).collect(),
        };
        let functions = BTreeMap::from([
            ("serve".to_owned(), function(&[(1, 10), (2, 5)], &[(1, "recv", 80), (2, "memcpy", 30)])),
            ("recv".to_owned(), function(&[(3, 50)], &[(3, "memcpy", 30)])),
            ("memcpy".to_owned(), function(&[(4, 60)], &[])),
        ]);
        let serve = vec![frame("serve", "crates/upf/src/worker.rs")];
        let frames = BTreeMap::from([
            (1, serve.clone()),
            (2, vec![frame("rewrite", "crates/upf/src/worker.rs")]),
            (3, vec![frame("recv", "crates/vport/src/local.rs")]),
            (4, vec![frame("memcpy", "??")]),
        ]);
        let costs = costs(&Profile { functions }, &frames);
        assert_eq!((costs[&Stage::Worker], costs[&Stage::Rewrite], costs[&Stage::Receive]), (10, 35, 80));
    }
}
