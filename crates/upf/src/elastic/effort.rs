//! What a worker's rounds cost: a part for each round, and a part for each packet in it.
//!
//! A worker that keeps up finds few packets in a round and spends much of its time on rounds themselves. With full bursts it would do
//! the same in less time, and it will as soon as more comes. So for how long it is busy says too much; what that is to be divided by
//! comes from a straight line through the costs of rounds, by least squares.

use port::BURST_MAX;

/// Sums over rounds that found packets and were timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timed {
    /// Rounds.
    pub rounds: u64,
    /// Packets in them.
    pub packets: u64,
    /// The squares of packets in a round.
    pub squares: u64,
    /// How long they took, in nanoseconds.
    pub ns: u64,
    /// Packets in a round times how long it took.
    pub packets_ns: u64,
}

/// A round that took longer was interrupted.
const ROUND_MAX_NS: u64 = 50_000;

impl Timed {
    /// Adds a round with so many packets, if that is what it spent its time on.
    pub fn add(&mut self, packets: u64, ns: u64) {
        if packets == 0 || ns > ROUND_MAX_NS {
            return;
        }
        self.rounds += 1;
        self.packets += packets;
        self.squares += packets * packets;
        self.ns += ns;
        self.packets_ns += packets * ns;
    }
}

/// The line through the costs of a worker's latest rounds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effort {
    rounds: f64,
    packets: f64,
    squares: f64,
    ns: f64,
    packets_ns: f64,
}

/// What is left of an earlier round's weight at each look that sees new ones.
const FADING: f64 = 0.95;
/// Fewest rounds that make a line.
const ROUNDS_MIN: f64 = 32.0;
/// Rounds have to differ by so much, as the variance of packets in them.
const VARIANCE_MIN: f64 = 0.25;

impl Effort {
    /// Takes in the rounds that were timed between two looks.
    pub fn take(&mut self, before: &Timed, now: &Timed) {
        let since = |of: fn(&Timed) -> u64| of(now).saturating_sub(of(before)) as f64;
        if since(|timed| timed.rounds) == 0.0 {
            return;
        }
        self.rounds = FADING * self.rounds + since(|timed| timed.rounds);
        self.packets = FADING * self.packets + since(|timed| timed.packets);
        self.squares = FADING * self.squares + since(|timed| timed.squares);
        self.ns = FADING * self.ns + since(|timed| timed.ns);
        self.packets_ns = FADING * self.packets_ns + since(|timed| timed.packets_ns);
    }

    /// What packets would cost in full bursts, by what they cost with so many in a round: from 0 to 1; 1 where that is not known.
    pub fn in_full_bursts(&self, packets_in_round: f64) -> f64 {
        let Some((of_round_ns, of_packet_ns)) = self.line() else { return 1.0 };
        let of_each = |packets: f64| of_packet_ns + of_round_ns / packets;
        (of_each(BURST_MAX as f64) / of_each(packets_in_round.max(1.0))).min(1.0)
    }

    /// Nanoseconds of a round, and of each packet in it.
    fn line(&self) -> Option<(f64, f64)> {
        let Self { rounds, packets, squares, ns, packets_ns } = *self;
        let spread = rounds * squares - packets * packets;
        if rounds < ROUNDS_MIN || spread < VARIANCE_MIN * rounds * rounds {
            return None;
        }
        let of_packet_ns = (rounds * packets_ns - packets * ns) / spread;
        let of_round_ns = (ns - of_packet_ns * packets) / rounds;
        (of_packet_ns > 0.0 && of_round_ns > 0.0).then_some((of_round_ns, of_packet_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After rounds with so many packets each that cost 100 ns and 40 ns a packet.
    fn after(rounds: &[u64]) -> Effort {
        let (mut timed, mut effort) = (Timed::default(), Effort::default());
        rounds.iter().for_each(|&packets| timed.add(packets, 100 + 40 * packets));
        effort.take(&Timed::default(), &timed);
        effort
    }

    #[test]
    fn a_packet_alone_costs_what_a_round_does_and_its_own_part() {
        let effort = after(&[1, 2, 3, 8].repeat(16));
        let full = 40.0 + 100.0 / BURST_MAX as f64;
        assert!((effort.in_full_bursts(1.0) - full / 140.0).abs() < 1e-9);
        assert!((effort.in_full_bursts(4.0) - full / 65.0).abs() < 1e-9);
        assert_eq!(effort.in_full_bursts(BURST_MAX as f64), 1.0);
        assert_eq!(effort.in_full_bursts(64.0), 1.0, "a burst from each of two ports");
    }

    #[test]
    fn rounds_that_are_all_alike_or_few_tell_nothing() {
        for rounds in [vec![1; 1_000], vec![1, 2, 3, 8], vec![]] {
            assert_eq!(after(&rounds).in_full_bursts(1.0), 1.0, "{}", rounds.len());
        }
    }

    #[test]
    fn empty_and_interrupted_rounds_do_not_count() {
        let mut timed = Timed::default();
        timed.add(0, 30);
        timed.add(3, ROUND_MAX_NS + 1);
        assert_eq!(timed, Timed::default());
    }

    #[test]
    fn what_is_long_ago_fades() {
        let mut effort = after(&[1, 2, 3, 8].repeat(16));
        let (mut before, mut now) = (Timed::default(), Timed::default());
        for _ in 0..200 {
            [1, 2, 3, 8].repeat(16).iter().for_each(|&packets| now.add(packets, 50 * packets + 10));
            effort.take(&before, &now);
            before = now;
        }
        assert!((effort.in_full_bursts(1.0) - (50.0 + 10.0 / BURST_MAX as f64) / 60.0).abs() < 1e-3);
    }
}
