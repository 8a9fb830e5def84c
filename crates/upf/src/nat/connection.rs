//! What a NAT has to know of a TCP connection: whether it is established, and whether it has ended (RFC 5382, 5; RFC 7857, 2).

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// A connection between a UE's port and a peer's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// The peer has sent something.
    answered: bool,
    ended_by_ue: bool,
    ended_by_peer: bool,
    /// Somebody has reset it, and the UE has sent nothing since.
    reset: bool,
}

/// How long a connection is kept from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// As one that is established.
    Long,
    /// As one that begins or ends.
    Short,
    /// As long as before.
    Unchanged,
}

impl Connection {
    /// A segment with these flags passes. What comes behind the end of both sides, or from the peer behind a reset, keeps nothing.
    pub fn pass(&mut self, flags: u8, from_ue: bool) -> Keep {
        let begins = from_ue && flags & (SYN | ACK) == SYN;
        if begins && (self.ended_by_ue || self.ended_by_peer || self.reset) {
            *self = Self::default();
        }
        let was_over = self.ended_by_ue && self.ended_by_peer;
        self.answered |= !from_ue;
        let ended = if from_ue { &mut self.ended_by_ue } else { &mut self.ended_by_peer };
        *ended |= flags & FIN != 0;
        match () {
            () if was_over => Keep::Unchanged,
            () if flags & RST != 0 => {
                self.reset = true;
                Keep::Short
            }
            () if self.reset && !from_ue => Keep::Unchanged,
            () => {
                self.reset = false;
                let is_over = self.ended_by_ue && self.ended_by_peer;
                if self.answered && !is_over { Keep::Long } else { Keep::Short }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UE: bool = true;
    const PEER: bool = false;

    fn keeps(segments: &[(bool, u8)]) -> Vec<Keep> {
        let mut connection = Connection::default();
        segments.iter().map(|&(from_ue, flags)| connection.pass(flags, from_ue)).collect()
    }

    #[test]
    fn a_connection_is_kept_long_between_the_first_answer_and_both_ends() {
        use Keep::{Long, Short, Unchanged};
        let all = [(UE, SYN), (UE, SYN), (PEER, SYN | ACK), (UE, ACK), (PEER, FIN | ACK), (UE, ACK), (UE, FIN | ACK)];
        assert_eq!(keeps(&all), [Short, Short, Long, Long, Long, Long, Short]);
        let after = [&all[..], &[(PEER, ACK), (UE, ACK), (UE, SYN), (PEER, SYN | ACK)]].concat();
        assert_eq!(keeps(&after)[7..], [Unchanged, Unchanged, Short, Long]);
    }

    #[test]
    fn a_reset_ends_it_unless_the_ue_goes_on() {
        use Keep::{Long, Short, Unchanged};
        let begin = [(UE, SYN), (PEER, SYN | ACK)];
        let ended_by_ue = [&begin[..], &[(UE, RST), (PEER, ACK), (PEER, RST), (PEER, ACK)]].concat();
        assert_eq!(keeps(&ended_by_ue)[2..], [Short, Unchanged, Short, Unchanged]);
        let forged = [&begin[..], &[(PEER, RST), (UE, ACK), (PEER, ACK)]].concat();
        assert_eq!(keeps(&forged)[2..], [Short, Long, Long]);
    }

    #[test]
    fn what_nobody_answers_is_not_kept_long() {
        assert_eq!(keeps(&[(UE, ACK), (UE, ACK), (PEER, ACK)]), [Keep::Short, Keep::Short, Keep::Long]);
    }
}
