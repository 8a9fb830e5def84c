//! A virtual port of a function.

use super::{DNS_LABEL, INTERFACE_NAME};
use crate::address::{Cidr, Mac};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A virtual port of a function: shared memory by default, a kernel interface if `interface` is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Port {
    /// Name of the port, a DNS label; unique in the function.
    #[schemars(extend("format" = "dns-label", "pattern" = DNS_LABEL))]
    pub name: String,
    /// The port is a kernel interface of this name in the container, for any program to use; shared memory if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "interface-name", "pattern" = INTERFACE_NAME))]
    pub interface: Option<String>,
    /// Number of queue pairs (shared memory only).
    #[serde(default = "one_queue")]
    #[schemars(range(min = 1, max = 16))]
    pub queues: u16,
    /// By what received packets are spread over the queues (shared memory only).
    #[serde(default)]
    pub steering: Steering,
    /// Addresses of the port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub addresses: Vec<Cidr>,
    /// Routes through the port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// Largest IP packet in bytes; the frame is 14 longer.
    #[serde(default = "ethernet_mtu")]
    #[schemars(range(min = 576, max = 9586))]
    pub mtu: u16,
    /// Ethernet address; one is made from the names if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
}

impl Port {
    /// Whether the port is an interface of the kernel; else it is shared memory.
    pub fn is_kernel(&self) -> bool {
        self.interface.is_some()
    }
}

fn one_queue() -> u16 {
    1
}

fn ethernet_mtu() -> u16 {
    1500
}

/// By what packets that a port receives are spread over its queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Steering {
    /// Not at all: everything comes on queue 0.
    #[default]
    None,
    /// The TEID of a GTP-U packet, whatever extension headers it has.
    Teid,
    /// The UE's address: the destination of a downlink packet.
    UeAddress,
    /// Addresses, protocol and ports.
    FiveTuple,
}

/// A route through a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Route {
    /// Destinations; `0.0.0.0/0` and `::/0` are the default routes.
    pub to: Cidr,
    /// Next hop, an address that the port reaches directly.
    #[schemars(extend("format" = "ip-address"))]
    pub via: IpAddr,
}
