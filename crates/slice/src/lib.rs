//! The slice descriptor: its types, its JSON Schema, and the checks that find every mistake in a file at once.

mod address;
mod descriptor;
mod diff;
mod host;
mod notice;
mod quantity;
mod report;

pub use address::{Cidr, Mac};
pub use descriptor::{
    ApiVersion, Cores, End, Function, Image, Kind, Link, LinkKind, Metadata, Outside, Port, PortRef, Restart, Route,
    Slice, Spec, Steering,
};
pub use diff::{Changes, FunctionChange, diff};
pub use host::{HostFacts, Mechanism};
pub use notice::{Notice, unenforced};
pub use quantity::{BitRate, ByteSize, Latency, ValueError};
pub use report::{Mistake, Position, Report, Severity};
