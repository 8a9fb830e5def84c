//! Addresses of nodes, in elements that begin with flags for either version (8.2.70, 8.2.129, 8.2.145).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rs_pfcp::ie::IeType;

use crate::fault::{Cause, Fault};
use crate::ie::{Elements, Ie};

const V6: u8 = 1;
const V4: u8 = 1 << 1;

/// The addresses, and the octets behind them.
pub(super) fn split(ie: Ie<'_>) -> Result<(Vec<IpAddr>, &[u8]), Fault> {
    let too_short = ie.fault(Cause::InvalidLength);
    let (&flags, mut rest) = ie.value.split_first().ok_or(too_short)?;
    if flags & (V4 | V6) == 0 {
        return Err(ie.fault(Cause::MandatoryIeIncorrect));
    }
    let mut addresses = vec![];
    if flags & V4 != 0 {
        let (octets, behind) = rest.split_first_chunk::<4>().ok_or(too_short)?;
        addresses.push(Ipv4Addr::from(*octets).into());
        rest = behind;
    }
    if flags & V6 != 0 {
        let (octets, behind) = rest.split_first_chunk::<16>().ok_or(too_short)?;
        addresses.push(Ipv6Addr::from(*octets).into());
        rest = behind;
    }
    Ok((addresses, rest))
}

/// Flags and address.
pub(super) fn value(address: IpAddr, more_flags: u8) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => [&[V4 | more_flags], &v4.octets()[..]].concat(),
        IpAddr::V6(v6) => [&[V6 | more_flags], &v6.octets()[..]].concat(),
    }
}

/// All addresses in elements of type `kind`, each version of one element for itself.
pub(super) fn read_all(ies: &crate::ie::Ies, kind: IeType) -> Result<Vec<IpAddr>, Fault> {
    let mut addresses = vec![];
    for ie in ies.all(kind) {
        addresses.extend(split(ie)?.0);
    }
    Ok(addresses)
}

/// An element of type `kind` for each address.
pub(super) fn write_all(kind: IeType, addresses: &[IpAddr], out: &mut Vec<u8>) {
    addresses.iter().for_each(|&address| out.element(kind, &value(address, 0)));
}
