//! Lines of the log about ports and links, whose functions decide how often there is something to say.

use std::collections::BTreeMap;

use vport::allowance::Allowance;

/// Lines about one of them at once; and afterwards so many a second.
const AT_ONCE: u32 = 100;
const PER_SECOND: u32 = 1;

/// What was said of whom.
#[derive(Default)]
pub(crate) struct Lines(BTreeMap<String, Said>);

struct Said {
    allowance: Allowance,
    /// Lines that were left out since the last one.
    unsaid: u64,
}

impl Lines {
    /// Says something about a port or a link, unless there was too much already.
    pub(crate) fn say(&mut self, whom: String, what: &str) {
        match self.allows(&whom) {
            Some(0) => tracing::info!("{whom}: {what}"),
            Some(unsaid) => tracing::info!("{whom}: {what}; {unsaid} lines before this were left out"),
            None => {}
        }
    }

    /// How many lines were left out, if there may be another one.
    fn allows(&mut self, whom: &str) -> Option<u64> {
        let new = || Said { allowance: Allowance::new(PER_SECOND, AT_ONCE), unsaid: 0 };
        let said = self.0.entry(whom.to_owned()).or_insert_with(new);
        if said.allowance.take() {
            return Some(std::mem::take(&mut said.unsaid));
        }
        said.unsaid += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn whoever_gives_cause_for_too_many_lines_has_the_rest_counted_and_takes_none_from_others() {
        let mut lines = Lines::default();
        let said = (0..250).filter(|_| lines.allows("a/p").is_some()).count();
        assert_eq!(said, AT_ONCE as usize);
        assert_eq!(lines.allows("b/p"), Some(0));
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(lines.allows("a/p"), Some(150));
    }
}
