//! Where a session's policers are in its block: in the line of the rule that has one to itself, which so costs packets no line of
//! its own. Those that several rules use, or that are among several of one rule, come before all rules.

use hashbrown::HashMap;
use vport::tally::LINE_WORDS;

use super::super::compile::MeterKey;
use super::super::image::Image;
use super::super::policers::Policer;
use super::draft::Draft;
use super::words::*;
use crate::policer::FULL;

/// Policers of a session at most: each has a bit in the lines of its rules.
pub(in super::super) const SLOTS_MOST: usize = 64 * POLICERS_WORDS;

/// A maximum bit rate that packets of a rule count towards.
#[derive(Clone, Debug)]
pub(in super::super) struct Limit {
    pub key: MeterKey,
    /// Bit/s.
    pub rate: u64,
    /// The policer that sessions share, where it is such a one.
    pub shared: Option<Policer>,
}

/// The policers of a session while its rules are written.
pub(in super::super) struct Policing {
    /// Numbers of the slots of those that are in no rule's line.
    slots: HashMap<MeterKey, usize>,
    /// At which words of the body the tokens of the session's own are.
    own: Vec<(MeterKey, u32)>,
}

impl Policing {
    /// Writes those that are in no rule's line to the beginning of `image`, which has nothing yet.
    pub fn write<'d>(rules: impl Iterator<Item = &'d Draft> + Clone, image: &mut Image) -> Self {
        let (mut uses, mut slots) = (HashMap::<_, usize>::new(), HashMap::new());
        let (mut own, mut words) = (vec![], vec![]);
        let rules = rules.flat_map(Draft::with_substitutes);
        rules.clone().flat_map(|rule| &rule.limits).for_each(|limit| *uses.entry(limit.key).or_default() += 1);
        for (rule, limit) in rules.flat_map(|rule| rule.limits.iter().map(move |limit| (rule, limit))) {
            let Limit { key, rate, shared } = *limit;
            let is_in_line = shared.is_none() && rule.limits.len() == 1 && uses[&key] == 1;
            if is_in_line || slots.contains_key(&key) {
                continue;
            }
            slots.insert(key, words.len() / slot::WORDS);
            match shared {
                Some(policer) => words.extend([rate, 0, 0, policer.word()]),
                None => {
                    own.push((key, (words.len() + slot::TOKENS) as u32));
                    words.extend([rate, FULL[0], FULL[1], 0]);
                }
            }
        }
        image.append(words.into_iter());
        Self { slots, own }
    }

    /// Writes what packets of the rule at `at` are policed by, and returns how they are.
    pub(super) fn write_rule(&mut self, at: usize, limits: &[Limit], image: &mut Image) -> usize {
        let line = &mut image[at];
        match limits {
            [] => policed::NONE,
            [Limit { key, rate, .. }] if !self.slots.contains_key(key) => {
                line[POLICERS..][..POLICERS_WORDS].copy_from_slice(&[*rate, FULL[0], FULL[1]]);
                self.own.push((*key, (at * LINE_WORDS + POLICERS + slot::TOKENS) as u32));
                policed::OWN
            }
            several => {
                let words = &mut line[POLICERS..][..POLICERS_WORDS];
                several
                    .iter()
                    .map(|limit| self.slots[&limit.key])
                    .for_each(|slot| words[slot / 64] |= 1 << (slot % 64));
                policed::SLOTS
            }
        }
    }

    /// The session's own, and at which words of the body their tokens are.
    pub fn into_own(self) -> Vec<(MeterKey, u32)> {
        self.own
    }
}
