//! Uid ranges: every sandbox has 65536 host uids and gids that no other has.
//!
//! The ranges lie from 0x7000_0000 up, which systemd, `/etc/subuid` and directory services leave unused. A function keeps
//! its range until it is released, so that its state directory stays its own across `down` and `up`.

use crate::{FunctionId, Layout, Result};

/// Host ids `first .. first + 65536`, seen inside as `0 .. 65536`; the same for uids and gids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// The host id that is 0 inside.
    pub first: u32,
}

impl IdRange {
    /// How many ids a sandbox has.
    pub const SIZE: u32 = 65536;
}

/// The ranges given to functions, remembered in `<state>/id-ranges.json`.
#[derive(Debug)]
pub struct IdRanges;

impl IdRanges {
    /// The function's range, the same every time until it is released.
    pub fn allocate(_layout: &Layout, _id: &FunctionId) -> Result<IdRange> {
        todo!()
    }

    /// Forgets the function's range. Call it only when nothing of the function is left, its state directory included.
    pub fn release(_layout: &Layout, _id: &FunctionId) -> Result<()> {
        todo!()
    }
}
