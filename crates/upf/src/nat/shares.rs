//! Which worker translates by which ports of which addresses outside.
//!
//! Where there are addresses enough, each is that worker's which packets for it are steered to, so that answers come to the
//! right one by themselves. Otherwise workers share all addresses by blocks of ports, and hand answers over to one another.

use std::net::Ipv4Addr;

use vport::steering::address_bucket;

use super::terms::SourceNat;

/// The shares of so many workers.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    workers: usize,
    by_block: bool,
    first_port: u16,
    ports_per_block: u16,
}

impl Shares {
    /// None if there are fewer blocks than workers.
    pub fn new(terms: &SourceNat, workers: usize) -> Option<Self> {
        let mut has_address = vec![false; workers];
        terms.each_address().for_each(|address| has_address[steered_to(address.to_bits(), workers)] = true);
        let by_block = has_address.contains(&false);
        if by_block && usize::from(terms.blocks_per_address()) < workers {
            return None;
        }
        let (first_port, ports_per_block) = (terms.ports.first, terms.ports_per_block);
        Some(Self { workers, by_block, first_port, ports_per_block })
    }

    /// The worker that translates by the port of the address.
    pub fn owner(&self, address: u32, port: u16) -> usize {
        match self.by_block {
            false => steered_to(address, self.workers),
            true => usize::from(port.saturating_sub(self.first_port) / self.ports_per_block) % self.workers,
        }
    }

    /// The addresses by which a worker translates.
    pub fn addresses(&self, terms: &SourceNat, worker: usize) -> Box<[u32]> {
        let all = terms.each_address().map(Ipv4Addr::to_bits);
        all.filter(|&address| self.by_block || steered_to(address, self.workers) == worker).collect()
    }

    /// The numbers of its blocks of each of them.
    pub fn blocks(&self, worker: usize) -> impl Iterator<Item = u16> + Clone + use<> {
        let (first, step) = if self.by_block { (worker as u16, self.workers) } else { (0, 1) };
        (first..=u16::MAX).step_by(step)
    }
}

fn steered_to(address: u32, workers: usize) -> usize {
    usize::from(address_bucket(Ipv4Addr::from_bits(address).into())) % workers
}

#[cfg(test)]
mod tests {
    use super::super::blocks::Blocks;
    use super::super::terms::Ports;
    use super::*;

    fn terms(addresses: &str) -> SourceNat {
        let mut terms = SourceNat::with(vec![addresses.to_owned().try_into().unwrap()]);
        (terms.ports, terms.ports_per_block) = (Ports { first: 1_000, last: 1_099 }, 10);
        terms
    }

    #[test]
    fn each_port_is_one_worker_s_whether_there_are_addresses_enough_or_not() {
        for addresses in ["203.0.113.1-203.0.113.1", "203.0.113.0/26"] {
            let terms = terms(addresses);
            let shares = Shares::new(&terms, 3).unwrap();
            let mut ports = 0;
            for worker in 0..3 {
                let mut blocks = Blocks::new(&terms, shares.addresses(&terms, worker), shares.blocks(worker));
                while let Some(block) = blocks.take(0) {
                    let (address, (first, last)) = (blocks.address(block), blocks.ports(block));
                    assert!((first..=last).all(|port| shares.owner(address, port) == worker));
                    ports += last - first + 1;
                }
            }
            assert_eq!(usize::from(ports), 100 * terms.each_address().count());
        }
    }

    #[test]
    fn answers_come_to_the_right_worker_by_themselves_where_there_are_addresses_enough() {
        let terms = terms("203.0.113.0/26");
        let shares = Shares::new(&terms, 3).unwrap();
        for address in terms.each_address() {
            let steered = usize::from(address_bucket(address.into())) % 3;
            assert_eq!(shares.owner(address.to_bits(), 1_055), steered);
        }
    }

    #[test]
    fn a_worker_without_any_block_is_refused() {
        assert!(Shares::new(&terms("203.0.113.1-203.0.113.1"), 11).is_none());
    }
}
