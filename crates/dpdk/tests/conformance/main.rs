//! The conformance suite of the port trait, as it stands in `crates/port/tests/conformance`, over DPDK's drivers.
//!
//! DPDK starts once, and devices come and go with the tests: each on a thread of its own, those over network interfaces in a
//! network namespace of its own.

#[path = "../../../port/tests/conformance/backend.rs"]
mod backend;
#[path = "../../../port/tests/conformance/flow.rs"]
mod flow;
#[path = "../../../port/tests/conformance/frames.rs"]
mod frames;
#[path = "../../../port/tests/conformance/held.rs"]
mod held;
#[path = "../../../port/tests/namespace/mod.rs"]
mod namespace;
#[path = "../../../port/tests/conformance/rig.rs"]
mod rig;
#[path = "../../../port/tests/conformance/steering.rs"]
mod steering;
#[macro_use]
#[path = "../../../port/tests/conformance/suite.rs"]
mod suite;
#[path = "../../../port/tests/conformance/waiting.rs"]
mod waiting;

mod backends;
mod cards;

use backend::table;
use backends::BACKENDS;

conformance! { over { vhost virtio_user memif af_packet af_xdp } }

#[test]
fn the_documentation_shows_what_is_declared() {
    let documentation = include_str!("../../../../docs/dpdk.md");
    assert!(documentation.contains(&table(BACKENDS)), "docs/dpdk.md should say\n{}", table(BACKENDS));
}
