//! What packets change of the sessions that a worker owns, beside the policers and counters of their rules. Nobody else writes it.

use crate::alarms::Alarms;
use crate::buffers::Buffers;

/// The state.
#[derive(Debug)]
pub struct State {
    /// Packets that wait for their UE.
    pub buffers: Buffers,
    /// Tells N4 what it has to know.
    pub alarms: Alarms,
}
