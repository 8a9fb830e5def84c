//! Who has which processor cores: exclusive ones belong to one function, the others to everybody else.

use std::collections::{BTreeMap, BTreeSet};

/// The cores of the host and their owners.
#[derive(Debug)]
pub(crate) struct Cores {
    online: BTreeSet<usize>,
    owned: BTreeMap<String, Vec<usize>>,
}

impl Cores {
    /// All shared.
    pub(crate) fn new(online: impl IntoIterator<Item = usize>) -> Self {
        Self { online: online.into_iter().collect(), owned: BTreeMap::new() }
    }

    /// The host has these by now. What is owned stays so, though it may be of no use at present.
    pub(crate) fn follow(&mut self, online: impl IntoIterator<Item = usize>) {
        self.online = online.into_iter().collect();
    }

    /// Gives `count` cores to `owner` alone, the highest-numbered free ones, since interrupts and system services favour
    /// the low ones. Asking again with the same count changes nothing. One core at least stays shared; where that is
    /// impossible, says how many there were to give.
    pub(crate) fn take(&mut self, owner: &str, count: usize) -> Result<Vec<usize>, usize> {
        let own = self.owned.get(owner).into_iter().flatten().copied().filter(|core| self.online.contains(core));
        let own: Vec<usize> = own.collect();
        if self.owned.get(owner).is_some_and(|cores| cores.len() == count && own.len() == count) {
            return Ok(own);
        }
        let mut free = self.free();
        free.extend(own);
        free.sort_unstable();
        if count >= free.len() {
            return Err(free.len().saturating_sub(1));
        }
        let cores = free.split_off(free.len() - count);
        self.owned.insert(owner.to_owned(), cores.clone());
        Ok(cores)
    }

    /// Lets `owner` go on with those of its cores that are free, as long as one at least stays shared.
    pub(crate) fn keep(&mut self, owner: &str, cores: &[usize]) {
        let free = self.free();
        let left: Vec<usize> = cores.iter().copied().filter(|core| free.contains(core)).collect();
        if !left.is_empty() && left.len() < free.len() {
            self.owned.insert(owner.to_owned(), left);
        }
    }

    /// What `owner` has for itself, if anything.
    pub(crate) fn of(&self, owner: &str) -> Option<&[usize]> {
        self.owned.get(owner).map(Vec::as_slice)
    }

    /// Takes back what `owner` had; false if it had nothing.
    pub(crate) fn give_back(&mut self, owner: &str) -> bool {
        self.owned.remove(owner).is_some()
    }

    /// Cores that nobody has for itself; never none: where the host has lost them all, they are what it has.
    pub(crate) fn shared(&self) -> Vec<usize> {
        let free = self.free();
        if free.is_empty() { self.online.iter().copied().collect() } else { free }
    }

    fn free(&self) -> Vec<usize> {
        let taken: BTreeSet<usize> = self.owned.values().flatten().copied().collect();
        self.online.difference(&taken).copied().collect()
    }

    /// How many cores there are, and how many of them belong to functions whose name does not start with `prefix`.
    pub(crate) fn counts(&self, prefix: &str) -> (usize, usize) {
        let elsewhere = self.owned.iter().filter(|(owner, _)| !owner.starts_with(prefix)).map(|(_, cores)| cores.len());
        (self.online.len(), elsewhere.sum())
    }
}

/// Cores as the kernel writes them: `0-3,6`.
pub(crate) fn list(cores: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &core in cores {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => ranges.push((core, core)),
        }
    }
    let texts: Vec<String> =
        ranges.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusive_cores_come_from_the_top_and_one_stays_shared() {
        let mut cores = Cores::new(0..4);
        assert_eq!(cores.take("s/a", 2), Ok(vec![2, 3]));
        assert_eq!(cores.take("s/b", 2), Err(1));
        assert_eq!(cores.take("s/b", 1), Ok(vec![1]));
        assert_eq!(cores.shared(), [0]);
        assert_eq!(cores.counts("t/"), (4, 3));
        assert!(cores.give_back("s/a"));
        assert!(!cores.give_back("s/a"));
        assert_eq!(cores.shared(), [0, 2, 3]);
    }

    #[test]
    fn asking_again_keeps_the_cores_and_asking_for_more_may_include_them() {
        let mut cores = Cores::new(0..4);
        assert_eq!(cores.take("s/a", 1), Ok(vec![3]));
        assert_eq!(cores.take("s/a", 1), Ok(vec![3]));
        assert_eq!(cores.take("s/a", 3), Ok(vec![1, 2, 3]));
    }

    #[test]
    fn cores_that_the_host_gets_or_loses_count_from_then_on() {
        let mut cores = Cores::new(0..2);
        assert_eq!(cores.take("s/a", 1), Ok(vec![1]));
        cores.follow(0..4);
        assert_eq!(cores.take("s/b", 2), Ok(vec![2, 3]));
        cores.follow([0, 2, 3]);
        assert_eq!(cores.take("s/a", 1), Err(0));
        assert!(cores.give_back("s/b"));
        assert_eq!(cores.take("s/a", 1), Ok(vec![3]));
        cores.follow([3]);
        assert_eq!(cores.shared(), [3], "there is no other");
    }

    #[test]
    fn owners_go_on_with_the_cores_that_they_have_whoever_is_found_first() {
        let mut cores = Cores::new(0..4);
        for (owner, had) in [("s/ran", [2]), ("s/upf", [3])] {
            cores.keep(owner, &had);
            assert_eq!(cores.take(owner, 1), Ok(had.to_vec()));
        }
        cores.keep("s/more", &[1, 2, 9]);
        assert_eq!(cores.of("s/more"), Some(&[1][..]), "what is left of them");
        assert!(cores.give_back("s/more"));
        for (why, had) in [("another's", &[3][..]), ("not there", &[7]), ("all that are shared", &[0, 1])] {
            cores.keep("s/late", had);
            assert_eq!(cores.shared(), [0, 1], "{why}");
        }
        assert_eq!(cores.take("s/late", 1), Ok(vec![1]));
    }

    #[test]
    fn lists_are_written_as_the_kernel_does() {
        assert_eq!(list(&[0, 1, 2, 3, 6]), "0-3,6");
        assert_eq!(list(&[]), "");
    }
}
