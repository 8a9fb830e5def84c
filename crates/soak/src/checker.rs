//! Judges the packets that arrive: every number of every flow once, in order.

use std::collections::HashSet;

use crate::frames::Stamp;
use crate::outcome::Tally;

/// What is known of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// The sender's incarnation that came last.
    pub incarnation: u32,
    /// The number that comes next.
    pub next: u64,
    /// Whether that is only the least that may come: what was sent before belonged to a process that is dead.
    pub joins: bool,
}

/// The flows of one sender. Its numbers go round the flows, `stride` of them, or each flow has numbers of its own (1).
#[derive(Debug)]
pub struct Checker {
    flows: Vec<Flow>,
    stride: u64,
    /// Numbers that were passed over: lost, if they never come.
    missing: HashSet<(u16, u32, u64)>,
    beyond: u64,
    found: Tally,
}

/// More than these are lost for good.
const MISSING_MAX: usize = 1 << 20;

impl Checker {
    /// Of so many flows, from their beginnings.
    pub fn new(flows: usize, stride: u64) -> Self {
        let flows = (0..flows).map(|flow| Flow { next: first(flow as u16, stride), ..Flow::default() }).collect();
        Self { flows, stride, missing: HashSet::new(), beyond: 0, found: Tally::default() }
    }

    /// As somebody before left it, who is dead: what was on its way to it may be missing, also of a flow it had nothing of.
    pub fn after(flows: Vec<Flow>, stride: u64) -> Self {
        let flows = flows.into_iter().map(|flow| Flow { joins: true, ..flow }).collect();
        Self { flows, stride, missing: HashSet::new(), beyond: 0, found: Tally::default() }
    }

    /// Takes a packet; what its flow was before, if it is the first since then.
    pub fn take(&mut self, stamp: Stamp) -> Option<Flow> {
        let Some(&flow) = self.flows.get(usize::from(stamp.flow)) else {
            self.found.corrupted += 1;
            return None;
        };
        if stamp.incarnation < flow.incarnation {
            self.found.reordered += 1;
            return None;
        }
        let expected = if stamp.incarnation > flow.incarnation { first(stamp.flow, self.stride) } else { flow.next };
        if stamp.number < expected {
            let late = self.missing.remove(&(stamp.flow, stamp.incarnation, stamp.number));
            *(if late { &mut self.found.reordered } else { &mut self.found.duplicated }) += 1;
            return None;
        }
        if !flow.joins {
            self.pass_over(stamp, expected);
        }
        self.flows[usize::from(stamp.flow)] =
            Flow { incarnation: stamp.incarnation, next: stamp.number + self.stride, joins: false };
        (flow.joins || flow.incarnation != stamp.incarnation).then_some(flow)
    }

    fn pass_over(&mut self, stamp: Stamp, expected: u64) {
        let mut number = expected;
        while number < stamp.number {
            if self.missing.len() < MISSING_MAX {
                self.missing.insert((stamp.flow, stamp.incarnation, number));
            } else {
                self.beyond += 1;
            }
            number += self.stride;
        }
    }

    /// Takes the numbers `from..to` of a flow for not lost, if they have not come. Returns how many these were.
    pub fn excuse(&mut self, flow: u16, from: u64, to: u64) -> u64 {
        let incarnation = self.flow(flow).incarnation;
        (from..to).filter(|number| self.missing.remove(&(flow, incarnation, *number))).count() as u64
    }

    /// Notes a frame that is not as sent.
    pub fn corrupted(&mut self) {
        self.found.corrupted += 1;
    }

    /// A flow as it is now.
    pub fn flow(&self, flow: u16) -> Flow {
        self.flows[usize::from(flow)]
    }

    /// What went wrong so far; what is missing now is lost, unless it comes yet.
    pub fn tally(&self) -> Tally {
        Tally { lost: self.missing.len() as u64 + self.beyond, ..self.found }
    }
}

/// The first number of a flow.
pub fn first(flow: u16, stride: u64) -> u64 {
    u64::from(flow) % stride
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(flow: u16, incarnation: u32, number: u64) -> Stamp {
        Stamp { flow, incarnation, number }
    }

    fn after(stamps: &[Stamp]) -> Tally {
        let mut checker = Checker::new(4, 1);
        for stamp in stamps {
            checker.take(*stamp);
        }
        checker.tally()
    }

    #[test]
    fn packets_in_order_are_fine_also_of_a_new_incarnation() {
        let stamps: Vec<Stamp> = [(0, 0, 0), (1, 0, 0), (0, 0, 1), (0, 2, 0), (1, 0, 1), (0, 2, 1)]
            .map(|(flow, incarnation, number)| stamp(flow, incarnation, number))
            .into();
        assert_eq!(after(&stamps), Tally::default());
    }

    #[test]
    fn a_gap_is_lost_a_late_packet_reordered_and_one_that_comes_again_duplicated() {
        assert_eq!(after(&[stamp(0, 0, 0), stamp(0, 0, 3)]).lost, 2);
        let late = after(&[stamp(0, 0, 1), stamp(0, 0, 0)]);
        assert_eq!((late.lost, late.reordered, late.duplicated), (0, 1, 0));
        let again = after(&[stamp(0, 0, 0), stamp(0, 0, 0)]);
        assert_eq!((again.lost, again.reordered, again.duplicated), (0, 0, 1));
    }

    #[test]
    fn what_is_excused_is_not_lost() {
        let mut checker = Checker::new(1, 1);
        for number in [0, 5] {
            checker.take(stamp(0, 0, number));
        }
        assert_eq!((checker.excuse(0, 2, 9), checker.tally().lost), (3, 1));
    }

    #[test]
    fn a_new_incarnation_begins_at_its_first_number_and_nothing_older_follows() {
        assert_eq!(after(&[stamp(0, 1, 0), stamp(0, 2, 1)]).lost, 1);
        assert_eq!(after(&[stamp(0, 2, 0), stamp(0, 1, 0)]).reordered, 1);
        assert_eq!(after(&[stamp(9, 0, 0)]).corrupted, 1);
    }

    #[test]
    fn who_comes_after_somebody_dead_begins_where_the_first_packet_says_but_not_before() {
        let left = vec![Flow { incarnation: 1, next: 7, joins: false }, Flow::default()];
        let mut checker = Checker::after(left.clone(), 1);
        assert_eq!(checker.take(stamp(0, 1, 12)), Some(Flow { joins: true, ..left[0] }));
        assert_eq!(checker.take(stamp(0, 1, 13)), None);
        assert_eq!(checker.tally(), Tally::default());
        let mut checker = Checker::after(left.clone(), 1);
        checker.take(stamp(0, 2, 3));
        assert_eq!(checker.tally(), Tally::default(), "it was the dead one who had what came before");
        let mut checker = Checker::after(left.clone(), 1);
        checker.take(stamp(1, 1, 5));
        assert_eq!(checker.tally(), Tally::default(), "also of a flow of which it had nothing");
        let mut checker = Checker::after(left, 1);
        checker.take(stamp(0, 1, 6));
        assert_eq!(checker.tally().duplicated, 1);
    }

    #[test]
    fn numbers_go_round_the_flows() {
        let mut checker = Checker::new(2, 2);
        for number in [0, 1, 3, 2, 4] {
            checker.take(stamp((number % 2) as u16, 1, number));
        }
        assert_eq!(checker.tally(), Tally::default());
        checker.take(stamp(1, 1, 7));
        assert_eq!(checker.tally().lost, 1);
    }
}
