//! Source NAT towards data networks (RFC 4787, 5382, 5508), for networks that ask for it. IPv4; TCP, UDP and ICMP.
//!
//! A worker translates for its own UEs, by ports outside that are its own ([`shares`]). Uplink a packet is translated once its
//! rule is found, as the last thing before it leaves; downlink before its UE is looked up. So rules, and what is counted, know
//! UEs' own addresses only. Packets of networks without NAT pay nothing: uplink a rule leads here, downlink a packet that finds
//! no UE.

pub mod blocks;
pub mod chains;
pub mod connection;
pub mod flow;
pub mod held;
pub mod log;
pub mod shares;
pub mod slab;
pub mod terms;
pub mod translation;
pub mod translator;

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::drops::DropReason;
use crate::ip::Packet;
use crate::side::PortId;
use blocks::Blocks;
use flow::Flow;
use log::Log;
use shares::Shares;
pub use terms::SourceNat;
use translation::Translation;
use translator::{Admitted, Translator};

/// What a worker translates.
#[derive(Debug)]
pub struct Nat {
    /// Its index.
    worker: usize,
    /// By the numbers of ports; none where no network translates.
    ports: Vec<Option<(Shares, Translator)>>,
    log: Log,
    /// When bindings were last looked at.
    swept_ns: u64,
}

/// What a packet from outside is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// A UE's packet.
    Admitted(Admitted),
    /// It is this worker's to say.
    Elsewhere(usize),
}

/// Bindings that are looked at at a time.
const SWEPT: usize = 1_024;
/// Between two times.
const SWEEP_EVERY_NS: u64 = 10_000_000;

impl Nat {
    /// What this one of so many workers translates at ports with these numbers. None if a port has no block for each of them.
    pub fn new(terms: &[(PortId, SourceNat)], worker: usize, workers: usize, log: Log) -> Result<Self, PortId> {
        let mut nat = Self { worker, ports: vec![], log, swept_ns: 0 };
        for (port, terms) in terms {
            let shares = Shares::new(terms, workers).ok_or(*port)?;
            let blocks = Blocks::new(terms, shares.addresses(terms, worker), shares.blocks(worker));
            let bindings = (terms.max_bindings as usize).div_ceil(workers);
            if nat.ports.len() <= port.number() {
                nat.ports.resize_with(port.number() + 1, || None);
            }
            nat.ports[port.number()] = Some((shares, Translator::new(terms, blocks, bindings)));
        }
        Ok(nat)
    }

    /// What translates nothing.
    pub fn none() -> Self {
        Self { worker: 0, ports: vec![], log: log::channel().0, swept_ns: 0 }
    }

    /// What a UE's packet becomes that leaves by the port.
    pub fn outgoing(
        &mut self,
        port: PortId,
        packet: &Packet<'_, false>,
        up_seid: u64,
        now: u64,
    ) -> Result<Translation, DropReason> {
        let (_, translator) = of(&mut self.ports, port).ok_or(DropReason::NatExhausted)?;
        translator.outgoing(packet, up_seid, now, &mut self.log)
    }

    /// What a packet from the port becomes, if it may come in.
    pub fn incoming(&mut self, port: PortId, packet: &Packet<'_, false>, now: u64) -> Result<Incoming, DropReason> {
        let (shares, translator) = of(&mut self.ports, port).ok_or(DropReason::NatNoBinding)?;
        let outside_port = Flow::of(packet)?.outside_port().ok_or(DropReason::NatFragment)?;
        match shares.owner(packet.destination() as u32, outside_port) {
            owner if owner == self.worker => Ok(Incoming::Admitted(translator.incoming(packet, now)?)),
            owner => Ok(Incoming::Elsewhere(owner)),
        }
    }

    /// Forgets bindings that are not needed any more, some at a time and now and then.
    pub fn sweep(&mut self, now: u64, is_there: impl Fn(PortId, u32, u64) -> bool) {
        if now < self.swept_ns + SWEEP_EVERY_NS {
            return;
        }
        self.swept_ns = now;
        for (number, at_port) in self.ports.iter_mut().enumerate() {
            let Some((_, translator)) = at_port else { continue };
            translator.sweep(SWEPT, now, |ue, up_seid| is_there(PortId::new(number), ue, up_seid), &mut self.log);
        }
    }

    /// Whether anything is translated.
    #[inline]
    pub fn is_any(&self) -> bool {
        !self.ports.is_empty()
    }

    /// Bindings, and blocks, in use at each port that translates.
    pub fn in_use(&self) -> impl Iterator<Item = (PortId, (usize, usize))> {
        let ports = self.ports.iter().enumerate();
        ports.filter_map(|(number, at_port)| Some((PortId::new(number), at_port.as_ref()?.1.in_use())))
    }
}

/// An address and port outside.
pub fn outside(address: u32, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from_bits(address), port)
}

fn of(ports: &mut [Option<(Shares, Translator)>], port: PortId) -> Option<&mut (Shares, Translator)> {
    ports.get_mut(port.number())?.as_mut()
}

#[cfg(test)]
mod tests;
