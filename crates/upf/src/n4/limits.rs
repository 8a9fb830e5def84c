//! Bounds on everything that a peer can make the UPF hold. What goes beyond is refused with cause *No resources available*.

use std::time::Duration;

/// The bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Associations.
    pub associations: usize,
    /// Sessions of all associations.
    pub sessions: usize,
    /// PDRs of a session.
    pub pdrs: usize,
    /// FARs of a session.
    pub fars: usize,
    /// QERs of a session.
    pub qers: usize,
    /// URRs of a session.
    pub urrs: usize,
    /// QERs and URRs that a PDR names, SDF filters and QFIs that it matches; each.
    pub per_pdr: usize,
    /// Applications that are described.
    pub applications: usize,
    /// Descriptions of an application.
    pub pfds: usize,
    /// Reports that wait for a response. Further ones are made later.
    pub reports: usize,
    /// Answers kept for requests that are sent again.
    pub answers: usize,
    /// Octets of these answers.
    pub answer_octets: usize,
    /// How long an answer is kept; longer than any peer sends a request again.
    pub answer_age: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            associations: 64,
            sessions: 1 << 17,
            pdrs: 64,
            fars: 64,
            qers: 64,
            urrs: 64,
            per_pdr: 64,
            applications: 1_024,
            pfds: 64,
            reports: 1 << 14,
            answers: 1 << 14,
            answer_octets: 8 << 20,
            answer_age: Duration::from_secs(30),
        }
    }
}
