//! UE addresses, and the pools that a UPF takes them from.

use std::net::{Ipv4Addr, Ipv6Addr};

use rs_pfcp::ie::IeType;
use rs_pfcp::ie::ue_ip_address::UeIpAddress;
use rs_pfcp::ie::ue_ip_address_pool_identity::UeIpAddressPoolIdentity;

use crate::fault::{Cause, Fault};
use crate::ie::{Elements, Ie, decode};

/// UE address (8.2.62). Of each version of IP there is an address, or it is to be chosen, or neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UeIp {
    /// IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 prefix and its length in bits; 64 unless stated otherwise.
    pub v6: Option<(Ipv6Addr, u8)>,
    /// It is the packet's destination rather than its source.
    pub destination: bool,
    /// The UPF is to choose the IPv4 address.
    pub choose_v4: bool,
    /// The UPF is to choose an IPv6 prefix of this length; 64 unless stated otherwise.
    pub choose_v6: Option<u8>,
}

impl UeIp {
    /// Length of a UE's IPv6 prefix unless stated otherwise.
    pub const DEFAULT_PREFIX: u8 = 64;

    /// Whether the UPF is to choose any of it.
    pub fn is_choice(&self) -> bool {
        self.choose_v4 || self.choose_v6.is_some()
    }

    pub(super) fn read(ie: Ie) -> Result<Self, Fault> {
        let read = decode(ie, UeIpAddress::unmarshal)?;
        let wrong = ie.fault(Cause::MandatoryIeIncorrect);
        let prefix = match (read.ipv6_prefix_length, read.ipv6_prefix_delegation_bits) {
            (Some(length), _) => length,
            // So many bits shorter, for the UE to delegate.
            (None, Some(bits)) => Self::DEFAULT_PREFIX.checked_sub(bits).ok_or(wrong)?,
            (None, None) => Self::DEFAULT_PREFIX,
        };
        if prefix == 0 || prefix > 128 {
            return Err(wrong);
        }
        Ok(Self {
            v4: read.ipv4_address,
            v6: read.ipv6_address.map(|address| (address, prefix)),
            destination: read.source_destination,
            choose_v4: read.choose_ipv4,
            choose_v6: read.choose_ipv6.then_some(prefix),
        })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let mut codec = UeIpAddress::new(self.v4, self.v6.map(|(address, _)| address));
        codec.source_destination = self.destination;
        codec.choose_ipv4 = self.choose_v4;
        codec.choose_ipv6 = self.choose_v6.is_some();
        let length = self.v6.map(|(_, length)| length).or(self.choose_v6);
        if let Some(length) = length.filter(|&length| length != Self::DEFAULT_PREFIX) {
            codec.ipv6_prefix_length_present = true;
            codec.ipv6_prefix_length = Some(length);
        }
        out.element(IeType::UeIpAddress, &codec.marshal());
    }
}

/// A pool's name (UE IP address Pool Identity).
pub(super) fn read_pool(ie: Ie) -> Result<String, Fault> {
    decode(ie, UeIpAddressPoolIdentity::unmarshal).map(|pool| pool.value)
}

pub(super) fn write_pool(name: &str, out: &mut Vec<u8>) {
    out.element(IeType::UeIpAddressPoolIdentity, &UeIpAddressPoolIdentity::new(name).marshal());
}
