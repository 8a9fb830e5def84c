//! Ports as the configuration names them: of a slice, which says what they are, or Linux interfaces, of which the
//! configuration says it.

use anyhow::Context;
use port::{OpenOptions, Port, PortInfo, Succession};

use crate::config::PortConfig;
use crate::function::Place;
use crate::model::Model;
use crate::nat::SourceNat;
use crate::side::PortKind;

impl PortConfig {
    /// Opens the port; so many bytes of each frame are copied where it is received.
    ///
    /// # Errors
    /// There is no such port, or it cannot be used.
    pub fn open(&self, peek_bytes: usize) -> anyhow::Result<Port> {
        // Taken over when the sessions are there.
        let succession = if Succession::is_wanted() { Succession::WhenReady } else { Succession::No };
        let options = OpenOptions { succession, peek_bytes, ..OpenOptions::default() };
        let mut port = port::open(&self.port, &options).with_context(|| format!("port {}", self.port))?;
        if self.is_interface() {
            self.describe(&mut port.info);
        }
        Ok(port)
    }

    /// Opens the port for what it is for, in this execution model.
    ///
    /// # Errors
    /// As [`PortConfig::open`].
    pub fn open_for(&self, kind: PortKind, model: Model) -> anyhow::Result<Place> {
        let port = self.open(model.peek_bytes(kind))?;
        Ok(Place { kind, network_instances: self.network_instances.clone(), port })
    }

    /// Why the port cannot be used as it is configured.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let is_described = !self.addresses.is_empty() || !self.routes.is_empty() || self.mac.is_some();
        match self.is_interface() {
            true if self.addresses.is_empty() => {
                Err("a Linux interface needs the UPF's addresses: addresses: [10.3.0.1/24]")
            }
            true if self.mac.is_some_and(|mac| !mac.is_usable()) => Err("mac is the address of a group, or of nobody"),
            false if is_described => Err("addresses, routes and mac of a slice's port are the slice's to say"),
            _ => self.source_nat.as_ref().map_or(Ok(()), SourceNat::check),
        }
    }

    fn is_interface(&self) -> bool {
        self.port.contains(':')
    }

    fn describe(&self, info: &mut PortInfo) {
        info.addresses = self.addresses.iter().map(|cidr| (cidr.address, cidr.prefix)).collect();
        let route =
            |route: &slice::Route| port::Route { to: route.to.address, prefix: route.to.prefix, via: route.via };
        info.routes = self.routes.iter().map(route).collect();
        // The TAP's own address is that of the kernel's side, and the UPF is its neighbour.
        let derived = self.port.starts_with("tap:").then(|| PortInfo::named(&self.port).mac);
        info.mac = self.mac.map(|mac| mac.0).or(derived).unwrap_or(info.mac);
    }
}
