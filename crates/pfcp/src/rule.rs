//! Rules of a session as messages carry them (TS 29.244, 7.5.2.2 to 7.5.2.5 and 7.5.4.2 to 7.5.4.5).
//!
//! An absent element is `None`. What an element is for is not judged here: the field `others` of a rule lists the types of
//! elements that were there but are not modelled, so that who applies the rule can refuse what it would have to ignore.

mod bar;
mod endpoint;
mod far;
mod framed;
mod pdi;
mod pdr;
mod qer;
mod ue_ip;
mod urr;

pub use bar::{BufferingDuration, CreateBar, UpdateBar};
pub use endpoint::{CreatedTrafficEndpoint, TrafficEndpoint};
pub use far::{
    ApplyAction, CreateFar, ForwardingParameters, OuterHeaderCreation, UpdateFar, UpdateForwardingParameters,
};
pub use framed::Network;
pub use pdi::{FTeid, Interface, Pdi, SdfFilter};
pub use pdr::{CreatePdr, CreatedPdr, OuterHeaderRemoval, UpdatePdr};
pub use qer::{BitRate, CreateQer, GateStatus, UpdateQer};
pub use ue_ip::UeIp;
pub use urr::{CreateUrr, MeasurementMethod, ReportingTriggers, UpdateUrr, UrrTerms};

use rs_pfcp::ie::IeType;

use crate::fault::{Cause, Fault};
use crate::ie::{Elements, Ie};
use crate::node::labels;

/// Text, or labels as of an access point name, which some session managers send.
fn read_network_instance(ie: Ie) -> Result<String, Fault> {
    let is_labels = ie.value.first().is_some_and(|&octet| octet < b' ');
    match labels(ie.value).filter(|_| is_labels) {
        Some(name) => Ok(name),
        None => String::from_utf8(ie.value.to_vec()).map_err(|_| ie.fault(Cause::MandatoryIeIncorrect)),
    }
}

/// The upper bits are spare.
fn read_qfi(ie: Ie) -> Result<u8, Fault> {
    ie.octet().map(|octet| octet & 0x3f)
}

/// Two octets of flags or, since release 15, three; the first one in bits 0 to 7.
pub(crate) fn read_bits(ie: Ie) -> Result<u32, Fault> {
    ie.u16()?;
    Ok(ie.value.iter().take(3).rev().fold(0, |bits, &octet| bits << 8 | u32::from(octet)))
}

/// The third octet only where it says something, as peers of former releases do not know it.
pub(crate) fn write_bits(kind: IeType, bits: u32, out: &mut Vec<u8>) {
    let len = if bits >> 16 == 0 { 2 } else { 3 };
    out.element(kind, &bits.to_le_bytes()[..len]);
}

fn write_ids(kind: IeType, ids: &[u32], out: &mut Vec<u8>) {
    ids.iter().for_each(|id| out.element(kind, &id.to_be_bytes()));
}
