//! What packets change of the sessions that a worker owns. Nobody else writes it.

use crate::policer::Policers;
use crate::usage::Alarms;

/// The state.
#[derive(Debug)]
pub struct State {
    /// Policers of maximum bit rates.
    pub policers: Policers,
    /// Tells N4 which counters of usage to look at.
    pub alarms: Alarms,
}
