//! What every backend of the port trait does alike: one suite, a test for each property, run unchanged over all of them.
//!
//! A backend is a value that declares what it can do ([`backend`]). A property that needs what a backend declares not to
//! have says `not applicable`; a backend that cannot be made here is `SKIPPED`.

#[path = "../bench/mod.rs"]
mod bench;
#[path = "../namespace/mod.rs"]
mod namespace;

mod backend;
mod backends;
mod flow;
mod frames;
mod held;
mod rig;
mod steering;
#[macro_use]
mod suite;
mod waiting;

use backend::table;
use backends::BACKENDS;

conformance! { over { direct zero_copy tap packet synthetic } }

#[test]
fn the_documentation_shows_what_is_declared() {
    let documentation = include_str!("../../../../docs/ports.md");
    assert!(documentation.contains(&table(BACKENDS)), "docs/ports.md should say\n{}", table(BACKENDS));
}
