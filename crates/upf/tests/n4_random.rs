//! Random sequences of messages, right and wrong: after each, the node and the tables agree, nothing is reserved in vain,
//! and what was refused has changed nothing.

mod n4_support;

use n4_support::drive::drive;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_is_done_as_a_whole_or_not_at_all(octets in proptest::collection::vec(any::<u8>(), 0..3_000)) {
        drive(&octets);
    }
}
