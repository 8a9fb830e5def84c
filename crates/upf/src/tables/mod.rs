//! The compiled session tables, and the handle by which N4 and the slow path change them.

mod teid;

use std::sync::{Arc, Mutex};

pub use teid::TeidsExhausted;
use teid::TeidAllocator;

use crate::rules::{Session, UeIp};

/// A share of the sessions (0..[`BUCKETS`]), which one worker owns.
pub type Bucket = u8;

/// Number of buckets.
pub const BUCKETS: usize = 128;

/// What to do with one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionUpdate {
    /// Put in force; replaces the session of the same UP SEID as a whole, and keeps the state of its unchanged policers.
    Put(Session),
    /// Take out of force. Unknown SEIDs are ignored.
    Remove(u64),
}

/// Why updates were not put into force. Nothing was changed then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Another session has this local TEID.
    #[error("TEID {0:#x} belongs to another session")]
    TeidInUse(u32),
    /// Another session has this UE address.
    #[error("UE address {0} belongs to another session")]
    UeAddressInUse(std::net::IpAddr),
    /// A PDR names a FAR or QER that the session lacks.
    #[error("PDR {pdr} names a rule that the session lacks")]
    DanglingRule {
        /// The PDR's ID.
        pdr: u16,
    },
    /// The configured number of sessions is reached, or the number of policers that goes with it.
    #[error("no room for another session")]
    Full,
    /// The workers have ended.
    #[error("the workers have ended")]
    Stopped,
}

/// The tables as seen from outside the workers. Clones are the same tables.
#[derive(Clone)]
pub struct Tables {
    shared: Arc<Shared>,
}

struct Shared {
    teids: Mutex<TeidAllocator>,
}

impl Tables {
    /// The home bucket of the session with this UE address: that of its IPv4 address, or of its IPv6 prefix where it
    /// has no IPv4 address.
    pub fn home_bucket(&self, ue: &UeIp) -> Bucket {
        let _ = ue;
        0
    }

    /// Reserves a TEID that steers to `bucket`. It stays reserved until [`Tables::release_teid`], whatever sessions do.
    pub fn reserve_teid(&self, bucket: Bucket) -> Result<u32, TeidsExhausted> {
        self.shared.teids.lock().unwrap_or_else(|e| e.into_inner()).reserve(bucket)
    }

    /// Gives a reserved TEID back. It is not chosen again soon.
    pub fn release_teid(&self, teid: u32) {
        self.shared.teids.lock().unwrap_or_else(|e| e.into_inner()).release(teid)
    }

    /// Puts all updates into force at once, or none. Returns when every worker forwards by them.
    pub fn apply(&self, updates: Vec<SessionUpdate>) -> Result<(), ApplyError> {
        let _ = updates;
        Ok(())
    }
}
