//! What callgrind writes: for each function, the cost of each of its instructions, by their addresses in the program's
//! file, and of what each of its calls led to.
//! The format is in valgrind's manual, "Callgrind Format Specification"; here with neither positions nor names compressed.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, ensure};

/// Arguments with which valgrind's tool counts what is done within [`super::forward`], and writes what [`Profile::parse`] reads.
pub(super) const ARGUMENTS: [&str; 5] = [
    "--tool=callgrind",
    "--toggle-collect=bench::count::forward*",
    "--dump-instr=yes",
    "--compress-pos=no",
    "--compress-strings=no",
];

/// One function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Function {
    /// Instructions executed at each address, of its own.
    pub own: BTreeMap<u64, u64>,
    /// Instructions that calls from an address have led to, by the function that was called.
    pub calls: BTreeMap<(u64, String), u64>,
}

/// A run: functions by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Profile {
    pub functions: BTreeMap<String, Function>,
}

impl Profile {
    /// Reads a profile.
    ///
    /// # Errors
    /// The text is of another kind.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        ensure!(text.contains("\npositions: instr line\n"), "callgrind wrote no instructions");
        let mut profile = Self::default();
        let (mut function, mut called, mut is_call) = (String::new(), String::new(), false);
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("fn=") {
                name.clone_into(&mut function);
            } else if let Some(name) = line.strip_prefix("cfn=") {
                name.clone_into(&mut called);
            } else if line.starts_with("calls=") {
                is_call = true;
            } else if line.starts_with("0x") {
                let (address, cost) = cost(line).with_context(|| format!("callgrind wrote `{line}`"))?;
                let of = profile.functions.entry(function.clone()).or_default();
                match std::mem::take(&mut is_call) {
                    true => *of.calls.entry((address, called.clone())).or_default() += cost,
                    false => *of.own.entry(address).or_default() += cost,
                }
            }
        }
        Ok(profile)
    }

    /// Every address at which something was executed.
    pub fn addresses(&self) -> BTreeSet<u64> {
        self.functions.values().flat_map(|function| function.own.keys().copied()).collect()
    }
}

/// `0xADDRESS LINE COST`; without a cost there was none.
fn cost(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split(' ');
    let address = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    let _line = words.next()?;
    Some((address, words.next().map_or(Some(0), |cost| cost.parse().ok())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# callgrind format\nversion: 1\npositions: instr line\nevents: Ir\nsummary: 60\n\n\
        ob=/bin/x\nfl=a.rs\nfn=work\n0x1000 10 5\nfi=b.rs\n0x1004 3 7\nfe=a.rs\ncfi=c.c\ncfn=memcpy\ncalls=2 0x2000 1\n\
        0x1008 11 40\n0x1008 11 2\n\nfl=c.c\nfn=memcpy\n0x2000 1 40\n\nfn=work\n0x1000 10 6\ntotals: 60\n";

    #[test]
    fn own_costs_and_those_of_calls_are_told_apart() {
        let profile = Profile::parse(TEXT).expect("a profile");
        let work = &profile.functions["work"];
        assert_eq!(work.own, BTreeMap::from([(0x1000, 11), (0x1004, 7), (0x1008, 2)]));
        assert_eq!(work.calls, BTreeMap::from([((0x1008, "memcpy".to_owned()), 40)]));
        assert_eq!(profile.functions["memcpy"].own, BTreeMap::from([(0x2000, 40)]));
        assert_eq!(profile.addresses().len(), 4);
    }

    #[test]
    fn a_text_of_another_kind_is_an_error() {
        assert!(Profile::parse("nothing").is_err());
        assert!(Profile::parse("\npositions: instr line\nfn=x\n0xg 1 2\n").is_err());
    }
}
