//! GTP-U, the user plane's tunnelling protocol: wire format of TS 29.281, and of the PDU session container of TS 38.415.
//!
//! Parsing reads byte slices from anyone, of which only the first bytes may be at hand; building writes into a buffer of
//! the caller's. Nothing allocates.

mod extension;
mod header;
mod message;
mod pdu_session;
mod relayed;

pub use extension::ExtensionType;
pub use header::{
    BASE_LEN, GPDU_MAX_LEN, GpduHeader, Header, MessageType, OPTIONAL_LEN, ParseError, parse,
    parse_at_intermediate_node,
};
pub use message::{
    EchoRequest, EchoResponse, ErrorIndication, MESSAGE_MAX_LEN, MessageError, SupportedExtensions, end_marker,
};
pub use pdu_session::{Direction, PduSession};
pub use relayed::{RELAYED_MAX_LEN, RelayedHeader};

/// UDP port of GTP-U (TS 29.281, 4.4.2).
pub const UDP_PORT: u16 = 2152;
