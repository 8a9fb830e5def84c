//! Lines of the log about ports and links, whose functions decide how often there is something to say.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Lines about one of them at once; and one more each time so long has passed.
const AT_ONCE: u32 = 100;
const EVERY: Duration = Duration::from_secs(1);

/// What was said of whom.
#[derive(Default)]
pub(crate) struct Lines(BTreeMap<String, Said>);

struct Said {
    left: u32,
    filled: Instant,
    unsaid: u64,
}

impl Lines {
    /// Says something about a port or a link, unless there was too much already.
    pub(crate) fn say(&mut self, whom: String, what: &str) {
        match self.allows(&whom, Instant::now()) {
            Some(0) => tracing::info!("{whom}: {what}"),
            Some(unsaid) => tracing::info!("{whom}: {what}; {unsaid} lines before this were left out"),
            None => {}
        }
    }

    /// How many lines were left out, if there may be another one.
    fn allows(&mut self, whom: &str, now: Instant) -> Option<u64> {
        let new = || Said { left: AT_ONCE, filled: now, unsaid: 0 };
        let said = self.0.entry(whom.to_owned()).or_insert_with(new);
        let earned = now.saturating_duration_since(said.filled).as_secs() / EVERY.as_secs();
        if earned > 0 {
            let left = u64::from(said.left) + earned;
            (said.left, said.filled) = (left.min(u64::from(AT_ONCE)) as u32, now);
        }
        match said.left.checked_sub(1) {
            Some(left) => {
                said.left = left;
                Some(std::mem::take(&mut said.unsaid))
            }
            None => {
                said.unsaid += 1;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_gives_cause_for_too_many_lines_has_the_rest_counted_and_takes_none_from_others() {
        let (mut lines, start) = (Lines::default(), Instant::now());
        let said = (0..250).filter(|_| lines.allows("a/p", start).is_some()).count();
        assert_eq!(said, AT_ONCE as usize);
        assert_eq!(lines.allows("b/p", start), Some(0));
        assert_eq!(lines.allows("a/p", start + EVERY), Some(150));
        assert_eq!(lines.allows("a/p", start + EVERY), None);
        let later = start + EVERY * 10_000;
        assert_eq!((0..250).filter(|_| lines.allows("a/p", later).is_some()).count(), AT_ONCE as usize);
    }
}
