//! What packets change of the sessions that a worker owns. Nobody else writes it, but for policers that sessions of several workers
//! share.

use crate::alarms::Alarms;
use crate::buffers::Buffers;
use crate::policer::Policers;

/// The state.
#[derive(Debug)]
pub struct State {
    /// Policers of maximum bit rates.
    pub policers: Policers,
    /// Packets that wait for their UE.
    pub buffers: Buffers,
    /// Tells N4 what it has to know.
    pub alarms: Alarms,
}
