//! The slice descriptor: its types, its JSON Schema, and the checks that find every mistake in a file at once.

mod address;
mod descriptor;
mod quantity;

pub use address::{Cidr, Mac};
pub use descriptor::{
    ApiVersion, Cores, End, Function, Image, Kind, Link, LinkKind, Metadata, Outside, Port, PortRef, Restart, Route,
    Slice, Spec, Steering,
};
pub use quantity::{BitRate, ByteSize, Latency, ValueError};
