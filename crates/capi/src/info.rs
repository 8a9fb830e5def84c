//! What a port is told about itself, and what its function tells the node.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_char, c_int};
use std::net::IpAddr;

use rustix::io::Errno;
use rustix::net::AddressFamily;

use crate::abi::KAISTA_REPORT_MAX;
use crate::edge::{INVALID, array, guard_once, put_struct, string};
use crate::open::Port;

/// The description of a port.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PortInfo {
    /// Name within the function.
    pub name: [c_char; 64],
    /// Ethernet address.
    pub mac: [u8; 6],
    /// Longest IP packet in bytes.
    pub mtu: u16,
    /// Number of queue pairs.
    pub queues: u16,
    /// Number of addresses, see `kaista_port_address`.
    pub addresses: u16,
    /// Number of routes, see `kaista_port_route`.
    pub routes: u16,
}

/// An address, or a network.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// AF_INET or AF_INET6.
    pub family: u16,
    /// Prefix length in bits.
    pub prefix_bits: u16,
    /// 4 or 16 bytes in network order, and zeros.
    pub bytes: [u8; 16],
}

/// A route out of a port.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Destination network.
    pub to: Address,
    /// The neighbour that takes the packets.
    pub via: Address,
}

/// A counter of the function's own.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    /// 48 letters, digits, '-', '_', '.' and '/' at most. Others become '_'.
    pub name: *const c_char,
    /// Since the program started.
    pub value: u64,
}

impl Address {
    fn new(address: IpAddr, prefix: u8) -> Self {
        let mut bytes = [0; 16];
        let family = match address {
            IpAddr::V4(address) => {
                bytes[..4].copy_from_slice(&address.octets());
                AddressFamily::INET
            }
            IpAddr::V6(address) => {
                bytes = address.octets();
                AddressFamily::INET6
            }
        };
        Self { family: family.as_raw(), prefix_bits: prefix.into(), bytes }
    }

    /// A single host.
    fn host(address: IpAddr) -> Self {
        Self::new(address, if address.is_ipv4() { 32 } else { 128 })
    }
}

/// Writes the port's description to `info`, which has `size` bytes: `sizeof *info`. Returns 0, or -EINVAL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_port_info(port: *const Port, info: *mut PortInfo, size: usize) -> c_int {
    // SAFETY: the caller's port.
    let Some(Port { port, .. }) = (unsafe { port.as_ref() }) else { return INVALID };
    guard_once(|| {
        let port::PortInfo { name, mac, mtu, queues, addresses, routes, .. } = &port.info;
        let mut text = [0; 64];
        text.iter_mut().zip(name.bytes().take(63)).for_each(|(to, byte)| *to = byte as c_char);
        let (addresses, routes) = (addresses.len() as u16, routes.len() as u16);
        let value = PortInfo { name: text, mac: *mac, mtu: *mtu, queues: *queues, addresses, routes };
        // SAFETY: the caller's structure; the value is numbers alone.
        unsafe { put_struct(&value, info, size) }
    })
}

/// Writes the port's address number `index` to `address`. Returns 0, or -EINVAL where there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_port_address(port: *const Port, index: u16, address: *mut Address) -> c_int {
    // SAFETY: the caller's port.
    let Some(Port { port, .. }) = (unsafe { port.as_ref() }) else { return INVALID };
    guard_once(|| {
        let (ip, prefix) = *port.info.addresses.get(usize::from(index)).ok_or(Errno::INVAL)?;
        // SAFETY: the caller's structure, which does not grow; the value is numbers alone.
        unsafe { put_struct(&Address::new(ip, prefix), address, size_of::<Address>()) }
    })
}

/// Writes the port's route number `index` to `route`. Returns 0, or -EINVAL where there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_port_route(port: *const Port, index: u16, route: *mut Route) -> c_int {
    // SAFETY: the caller's port.
    let Some(Port { port, .. }) = (unsafe { port.as_ref() }) else { return INVALID };
    guard_once(|| {
        let known = port.info.routes.get(usize::from(index)).ok_or(Errno::INVAL)?;
        let value = Route { to: Address::new(known.to, known.prefix), via: Address::host(known.via) };
        // SAFETY: as above.
        unsafe { put_struct(&value, route, size_of::<Route>()) }
    })
}

/// Publishes counters of the function (drops by reason, say), replacing those of the last call; `kaista top` shows them
/// within a second. Returns 0; -EINVAL, also where one has no name; or -E2BIG for more than KAISTA_REPORT_MAX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_port_report(port: *const Port, counters: *const Counter, count: usize) -> c_int {
    // SAFETY: the caller's port.
    let Some(Port { port, .. }) = (unsafe { port.as_ref() }) else { return INVALID };
    guard_once(|| {
        if count > KAISTA_REPORT_MAX as usize {
            return Err(Errno::TOOBIG);
        }
        // SAFETY: the caller's array.
        let counters = unsafe { array(counters, count) }.ok_or(Errno::INVAL)?;
        let named = counters.iter().map(|counter| {
            // SAFETY: the caller's string.
            let name = unsafe { string(counter.name) }.filter(|name| !name.is_empty())?;
            Some((name, counter.value))
        });
        port.report(&named.collect::<Option<Vec<_>>>().ok_or(Errno::INVAL)?);
        Ok(0)
    })
}
