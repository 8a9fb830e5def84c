//! PFCP, the protocol of N4 (3GPP TS 29.244): parse and build, and nothing else.
//!
//! Values of information elements are encoded and decoded by the `rs-pfcp` crate. Message header and framing of the
//! elements are checked here first, element by element in the order of the standard's tables, so that a [`Fault`] always
//! names the cause and the offending element that the standard wants in the response.
//!
//! ```
//! use pfcp::{Header, NodeId, Request, node::AssociationSetup};
//!
//! let smf = NodeId::Address("10.4.0.2".parse().unwrap());
//! let request = Request::AssociationSetup(AssociationSetup::new(smf, pfcp::RecoveryTimeStamp(3_900_000_000)));
//! let datagram = request.encode(0, 1);
//! let (header, body) = Header::parse(&datagram).unwrap();
//! assert_eq!(Request::parse(&header, body).unwrap(), request);
//! ```

pub mod client;
mod fault;
mod header;
pub mod ie;
mod message;
pub mod node;
pub mod pfd;
pub mod report;
pub mod rule;
pub mod session;
mod volume;

pub use fault::{Cause, Fault, RuleId};
pub use header::{Header, HeaderError, MessageType, VERSION, version_not_supported};
pub use message::{ParseError, Request, Response};
pub use node::{NodeId, RecoveryTimeStamp};
pub use rs_pfcp::ie::IeType;
pub use volume::{DroppedThreshold, Volume, VolumeMeasurement};

/// The UDP port that requests are sent to.
pub const PORT: u16 = 8805;
