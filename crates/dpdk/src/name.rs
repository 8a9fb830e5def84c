//! What stands behind `dpdk:` in the name of a port: a device as DPDK's own programs name it, and what is wanted of the port.
//!
//! `net_memif0,role=client,socket=/run/memif.sock,port-mtu=9000`: arguments that begin with `port-` are for this crate, all others
//! go to the device's driver as they are.

use std::net::IpAddr;

use port::{FRAME_MAX, Steering};

use crate::error::Error;

/// Bytes of an Ethernet header.
pub(crate) const ETHERNET_HEADER: usize = 14;
/// Bytes of an IEEE 802.1Q tag.
const TAG: usize = 4;
/// Longest IP packet that a port can be asked to carry, in bytes.
pub const MTU_MAX: u16 = (FRAME_MAX - ETHERNET_HEADER) as u16;
/// Most queue pairs of a port.
pub const QUEUES_MAX: u16 = 16;

/// How a device is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// vhost-user: the socket's server; a VM or a container with virtio-user is at the other end.
    Vhost,
    /// virtio-user: a frontend of vhost-user, or of the kernel's vhost.
    VirtioUser,
    /// memif.
    Memif,
    /// A packet socket with memory shared with the kernel.
    AfPacket,
    /// An XDP socket.
    AfXdp,
    /// A TAP device.
    Tap,
    /// Nothing: frames of zeros come from it without end, or none, and what is sent is gone.
    Null,
    /// A network card at a PCI address.
    Pci,
}

/// Virtual devices, by what their names begin with.
const VIRTUAL: [(&str, Driver); 7] = [
    ("net_vhost", Driver::Vhost),
    ("net_virtio_user", Driver::VirtioUser),
    ("net_memif", Driver::Memif),
    ("net_af_packet", Driver::AfPacket),
    ("net_af_xdp", Driver::AfXdp),
    ("net_tap", Driver::Tap),
    ("net_null", Driver::Null),
];

impl Driver {
    /// DPDK's name for the bus.
    pub(crate) fn bus(self) -> &'static std::ffi::CStr {
        if self == Self::Pci { c"pci" } else { c"vdev" }
    }

    /// Whether the port is the interface with the address that the device has; otherwise there is none but the port's.
    pub(crate) fn has_address(self) -> bool {
        matches!(self, Self::AfPacket | Self::AfXdp | Self::Pci)
    }

    /// Whether it takes as many queues as it is told to, whatever its peer has. Those that no peer knows are not to be touched: the
    /// driver takes them for the first one.
    pub(crate) fn takes_any_queues(self) -> bool {
        self == Self::Memif
    }

    /// Whether what it says of hashes and tables is to be believed. The null driver has no flows to spread, and keeps a table as
    /// cards do; a TAP device's spreads by what the kernel made of a frame.
    pub(crate) fn keeps_a_table(self) -> bool {
        matches!(self, Self::Pci | Self::Null)
    }

    /// Whether a limit that the driver states for frames is one. Some state Ethernet's and carry what fits their buffers.
    pub(crate) fn means_its_limit(self) -> bool {
        !matches!(self, Self::Memif | Self::AfPacket)
    }
}

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The whole text.
    pub text: String,
    /// The device's name, for example `net_memif0` or `0000:3b:00.0`.
    pub device: String,
    /// The same with the arguments for its driver.
    pub devargs: String,
    /// Its kind.
    pub driver: Driver,
    /// Longest IP packet in bytes (`port-mtu`).
    pub mtu: u16,
    /// Queue pairs (`port-queues`).
    pub queues: u16,
    /// Queue pairs of the device, where these are not as many as it has and the port needs (`port-device-queues`).
    pub device_queues: Option<u16>,
    /// What received frames are spread over them by (`port-steering`).
    pub steering: Steering,
    /// Ethernet address, where it is not the device's or derived from the text (`port-mac`).
    pub mac: Option<[u8; 6]>,
    /// Descriptors of each queue (`port-descriptors`).
    pub descriptors: u16,
    /// IP addresses with their prefix lengths (`port-address`, as often as there are any).
    pub addresses: Vec<(IpAddr, u8)>,
}

impl Name {
    /// Takes the text apart.
    ///
    /// # Errors
    /// A device or an argument that is not known, or a value out of range. What drivers' arguments mean is theirs to say.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Self::parsed(text).map_err(|reason| Error::Name { text: text.to_owned(), reason })
    }

    fn parsed(text: &str) -> Result<Self, String> {
        let (device, arguments) = text.split_once(',').unwrap_or((text, ""));
        let (device, driver) = known(device)?;
        let mut name = Self {
            text: text.to_owned(),
            devargs: device.clone(),
            device,
            driver,
            mtu: 1500,
            queues: 1,
            device_queues: None,
            steering: Steering::None,
            mac: None,
            descriptors: 1024,
            addresses: Vec::new(),
        };
        for argument in arguments.split(',').filter(|argument| !argument.is_empty()) {
            match argument.strip_prefix("port-").map(|ours| ours.split_once('=').unwrap_or((ours, ""))) {
                Some((key, value)) => name.set(key, value)?,
                None => {
                    check_argument(driver, argument)?;
                    name.devargs += &format!(",{argument}");
                }
            }
        }
        name.check_slots()?;
        Ok(name)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "mtu" => self.mtu = number(key, value, 68..=MTU_MAX)?,
            "queues" => self.queues = number(key, value, 1..=QUEUES_MAX)?,
            "device-queues" => self.device_queues = Some(number(key, value, 1..=QUEUES_MAX)?),
            "descriptors" => self.descriptors = number(key, value, 64..=16_384)?,
            "address" => {
                self.addresses.push(address(value).ok_or_else(|| format!("port-address={value} is no ADDRESS/PREFIX"))?)
            }
            "steering" => self.steering = steering(value)?,
            "mac" => {
                self.mac = Some(mac(value).ok_or_else(|| format!("port-mac={value} is no address of one station"))?)
            }
            _ => {
                return Err(format!(
                    "no port-{key} (there are port-mtu, port-mac, port-address, port-descriptors, port-queues, port-device-queues, port-steering)"
                ));
            }
        }
        Ok(())
    }

    /// The packet socket's driver drops without a word what does not fit a slot of its rings.
    fn check_slots(&self) -> Result<(), String> {
        // Before the frame stands what the kernel says of it (`TPACKET2_HDRLEN`, rounded up).
        const BEFORE: usize = 96;
        const SLOT_MAX: usize = 32 << 10;
        let wanted = self.frame_max() + BEFORE;
        match self.slot_bytes() {
            Some(slot) if slot < wanted => {
                let slot = wanted.next_power_of_two();
                Err(format!("port-mtu={} needs framesz={slot},blocksz={slot} or more", self.mtu))
            }
            Some(slot) if slot > SLOT_MAX => {
                Err(format!("framesz={slot} is more than a packet buffer has room for: give {SLOT_MAX} at most"))
            }
            _ => Ok(()),
        }
    }

    /// Bytes of a slot of the packet socket's rings; none of other drivers.
    fn slot_bytes(&self) -> Option<usize> {
        const DEFAULT: usize = 2048;
        let given = || self.devargs.split(',').find_map(|argument| argument.strip_prefix("framesz="));
        (self.driver == Driver::AfPacket).then(|| given().and_then(|value| value.parse().ok()).unwrap_or(DEFAULT))
    }

    /// How much memory the driver wants a packet buffer to have, in bytes.
    pub(crate) fn room(&self) -> usize {
        self.slot_bytes().unwrap_or(0).max(self.frame_max())
    }

    /// Longest frame, in bytes: with a tag, as far as a frame may be so long.
    pub(crate) fn frame_max(&self) -> usize {
        (usize::from(self.mtu) + ETHERNET_HEADER + TAG).min(FRAME_MAX)
    }
}

fn known(device: &str) -> Result<(String, Driver), String> {
    let numbered = |prefix: &str| {
        device
            .strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    if let Some((_, driver)) = VIRTUAL.iter().find(|(prefix, _)| numbered(prefix)) {
        return Ok((device.to_owned(), *driver));
    }
    if let Some(address) = pci_address(device) {
        return Ok((address, Driver::Pci));
    }
    let names = VIRTUAL.map(|(prefix, _)| format!("{prefix}N")).join(", ");
    Err(format!("no such device: expected {names} with a number N, or a PCI address such as 0000:3b:00.0"))
}

/// The address as DPDK writes it, with its domain.
fn pci_address(text: &str) -> Option<String> {
    let hex = |part: &str, digits: usize| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (before, function) = text.rsplit_once('.')?;
    let parts: Vec<&str> = before.split(':').collect();
    let (domain, bus, slot) = match *parts.as_slice() {
        [bus, slot] => ("0000", bus, slot),
        [domain, bus, slot] => (domain, bus, slot),
        _ => return None,
    };
    let fits = hex(domain, 4) && hex(bus, 2) && hex(slot, 2) && hex(function, 1) && function < "8";
    fits.then(|| format!("{domain}:{bus}:{slot}.{function}").to_lowercase())
}

/// A peer that can write a frame after its headers were read could have it treated as another one.
fn check_argument(driver: Driver, argument: &str) -> Result<(), String> {
    if driver == Driver::Memif && argument == "zero-copy=yes" {
        return Err("zero-copy=yes would let the peer change headers that were checked already".to_owned());
    }
    Ok(())
}

fn number(key: &str, value: &str, range: std::ops::RangeInclusive<u16>) -> Result<u16, String> {
    let parsed = value.parse().ok().filter(|number| range.contains(number));
    parsed.ok_or_else(|| format!("port-{key}={value} is not in {} to {}", range.start(), range.end()))
}

fn steering(value: &str) -> Result<Steering, String> {
    match value {
        "none" => Ok(Steering::None),
        "teid" => Ok(Steering::Teid),
        "ue-address" => Ok(Steering::UeAddress),
        "five-tuple" => Ok(Steering::FiveTuple),
        _ => Err(format!("port-steering={value} is none of none, teid, ue-address, five-tuple")),
    }
}

fn address(value: &str) -> Option<(IpAddr, u8)> {
    let (address, prefix) = value.split_once('/')?;
    let (address, prefix): (IpAddr, u8) = (address.parse().ok()?, prefix.parse().ok()?);
    (prefix <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, prefix))
}

fn mac(value: &str) -> Option<[u8; 6]> {
    let bytes: Vec<u8> = value
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok().filter(|_| byte.len() == 2))
        .collect::<Option<_>>()?;
    let mac: [u8; 6] = bytes.try_into().ok()?;
    (mac[0] & 1 == 0 && mac != [0; 6]).then_some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_keeps_its_drivers_arguments_and_the_port_gets_its_own() {
        let name = Name::parse(
            "net_vhost3,iface=/run/n3.sock,port-mtu=9000,queues=4,port-queues=4,port-steering=teid,port-mac=02:00:00:00:00:1f,port-address=10.3.0.1/24,port-address=fd00::1/64",
        )
        .unwrap();
        assert_eq!((name.device.as_str(), name.driver), ("net_vhost3", Driver::Vhost));
        assert_eq!(name.devargs, "net_vhost3,iface=/run/n3.sock,queues=4");
        assert_eq!((name.mtu, name.queues, name.steering), (9000, 4, Steering::Teid));
        assert_eq!(name.addresses, [("10.3.0.1".parse().unwrap(), 24), ("fd00::1".parse().unwrap(), 64)]);
        assert_eq!((name.mac, name.frame_max()), (Some([2, 0, 0, 0, 0, 0x1f]), 9018));
    }

    #[test]
    fn network_cards_are_named_by_their_addresses_with_or_without_a_domain() {
        for text in ["3B:00.1", "0000:3b:00.1"] {
            let name = Name::parse(text).unwrap();
            assert_eq!((name.device.as_str(), name.driver), ("0000:3b:00.1", Driver::Pci));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_reason() {
        for (text, reason) in [
            ("net_vhost", "no such device"),
            ("net_vhostx", "no such device"),
            ("net_pcap0", "no such device"),
            ("0000:3b:00.9", "no such device"),
            ("00:00", "no such device"),
            ("net_null0,port-mtu=67", "68 to 9586"),
            ("net_null0,port-mtu=9587", "68 to 9586"),
            ("net_null0,port-queues=0", "1 to 16"),
            ("net_null0,port-steering=flow", "five-tuple"),
            ("net_null0,port-mac=03:00:00:00:00:01", "no address of one station"),
            ("net_null0,port-mac=2:0:0:0:0:1", "no address of one station"),
            ("net_null0,port-address=10.0.0.1", "ADDRESS/PREFIX"),
            ("net_null0,port-address=10.0.0.1/33", "ADDRESS/PREFIX"),
            ("net_null0,port-colour=red", "no port-colour"),
            ("net_memif0,zero-copy=yes", "the peer"),
            ("net_af_packet0,iface=eth0,port-mtu=9000", "framesz=16384"),
            ("net_af_packet0,iface=eth0,framesz=65536,blocksz=65536", "give 32768 at most"),
        ] {
            let error = Name::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
