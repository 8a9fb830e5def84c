//! Blocks of ports: each belongs to one UE at a time, so that who had a port is known from one line (RFC 6888, REQ-14,
//! RFC 7422).

use super::terms::SourceNat;

/// Protocols that have ports of their own: TCP, UDP, ICMP.
const PROTOCOLS: usize = 3;

/// Blocks of one worker.
#[derive(Debug)]
pub struct Blocks {
    addresses: Box<[u32]>,
    first_port: u16,
    ports_per_block: u16,
    /// Of each address; not all of them need be the worker's.
    blocks_per_address: u16,
    blocks: Box<[Block]>,
    /// Of each address, blocks that nobody has; what was given back last is given out last.
    free: Box<[Ring]>,
    in_use: usize,
    cooling_ns: u64,
    /// The address that the next UE gets, if it has a block.
    turn: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// Bindings of each protocol.
    used: [u16; PROTOCOLS],
    /// Where the next free port is looked for.
    cursor: u16,
    /// Before, nobody else gets it.
    cool_at_ns: u64,
}

/// Numbers in the order in which they came.
#[derive(Debug)]
struct Ring {
    numbers: Box<[u16]>,
    first: usize,
    len: usize,
}

impl Ring {
    /// All numbers, beginning with that of this index.
    fn full(numbers: impl Iterator<Item = u16>, first: usize) -> Self {
        let numbers: Box<[_]> = numbers.collect();
        Self { first: first.checked_rem(numbers.len()).unwrap_or(0), len: numbers.len(), numbers }
    }

    /// Takes the number out that came first, if `is_it` lets.
    fn take(&mut self, is_it: impl Fn(u16) -> bool) -> Option<u16> {
        let number = *self.numbers.get(self.first).filter(|number| self.len > 0 && is_it(**number))?;
        self.len -= 1;
        self.first = (self.first + 1) % self.numbers.len();
        Some(number)
    }

    fn put(&mut self, number: u16) {
        self.numbers[(self.first + self.len) % self.numbers.len()] = number;
        self.len += 1;
    }
}

fn index_of(protocol: u8) -> usize {
    match protocol {
        super::flow::TCP => 0,
        crate::ip::UDP => 1,
        _ => 2,
    }
}

impl Blocks {
    /// Blocks with these numbers of these addresses, which nobody has.
    pub fn new(terms: &SourceNat, addresses: Box<[u32]>, numbers: impl Iterator<Item = u16> + Clone) -> Self {
        let each = terms.blocks_per_address();
        let numbers = numbers.take_while(|&number| number < each);
        let (first, count) = (terms.first_block, addresses.len().max(1));
        Self {
            blocks: vec![Block::default(); addresses.len() * usize::from(each)].into(),
            free: addresses.iter().map(|_| Ring::full(numbers.clone(), first / count)).collect(),
            addresses,
            first_port: terms.ports.first,
            ports_per_block: terms.ports_per_block,
            blocks_per_address: each,
            in_use: 0,
            cooling_ns: u64::from(terms.block_cooling_s) * 1_000_000_000,
            turn: first % count,
        }
    }

    /// How many there are.
    pub fn capacity(&self) -> usize {
        self.in_use + self.free.iter().map(|ring| ring.len).sum::<usize>()
    }

    /// How many somebody has.
    pub fn in_use(&self) -> usize {
        self.in_use
    }

    /// A block of any address.
    pub fn take(&mut self, now: u64) -> Option<u32> {
        for _ in 0..self.addresses.len() {
            let address = self.turn;
            self.turn = (self.turn + 1) % self.addresses.len();
            if let Some(block) = self.take_of(address, now) {
                return Some(block);
            }
        }
        None
    }

    /// Another block of the address that this one has.
    pub fn take_beside(&mut self, block: u32, now: u64) -> Option<u32> {
        self.take_of(self.address_number(block), now)
    }

    fn take_of(&mut self, address: usize, now: u64) -> Option<u32> {
        let first = address * usize::from(self.blocks_per_address);
        let blocks = &self.blocks;
        let number = self.free[address].take(|number| blocks[first + usize::from(number)].cool_at_ns <= now)?;
        self.in_use += 1;
        Some((first + usize::from(number)) as u32)
    }

    /// Nobody has the block any more.
    pub fn give_back(&mut self, block: u32, now: u64) {
        let address = self.address_number(block);
        self.blocks[block as usize].cool_at_ns = now + self.cooling_ns;
        self.free[address].put((block % u32::from(self.blocks_per_address)) as u16);
        self.in_use -= 1;
    }

    fn address_number(&self, block: u32) -> usize {
        block as usize / usize::from(self.blocks_per_address)
    }

    /// The block's address.
    pub fn address(&self, block: u32) -> u32 {
        self.addresses[self.address_number(block)]
    }

    /// The block's first and last port.
    pub fn ports(&self, block: u32) -> (u16, u16) {
        let number = (block % u32::from(self.blocks_per_address)) as u16;
        let first = self.first_port + number * self.ports_per_block;
        (first, first + (self.ports_per_block - 1))
    }

    /// Whether there are bindings in the block.
    pub fn is_used(&self, block: u32) -> bool {
        self.blocks[block as usize].used != [0; PROTOCOLS]
    }

    /// A port of the block, for a binding of the protocol; `is_free` says whether there is no such binding.
    pub fn bind(&mut self, block: u32, protocol: u8, is_free: impl Fn(u16) -> bool) -> Option<u16> {
        let (first, _) = self.ports(block);
        let state = &mut self.blocks[block as usize];
        if state.used[index_of(protocol)] == self.ports_per_block {
            return None;
        }
        let ports = (0..self.ports_per_block)
            .map(|step| (u32::from(state.cursor) + u32::from(step)) % u32::from(self.ports_per_block));
        let at = ports.map(|at| at as u16).find(|at| is_free(first + at))?;
        state.cursor = (at + 1) % self.ports_per_block;
        state.used[index_of(protocol)] += 1;
        Some(first + at)
    }

    /// A binding of the protocol in the block is no more.
    pub fn unbind(&mut self, block: u32, protocol: u8) {
        self.blocks[block as usize].used[index_of(protocol)] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::UDP;

    fn terms() -> SourceNat {
        let mut terms = SourceNat::with(vec![]);
        terms.ports = super::super::terms::Ports { first: 1_000, last: 1_008 };
        (terms.ports_per_block, terms.block_cooling_s) = (4, 1);
        terms
    }

    fn blocks(numbers: impl Iterator<Item = u16> + Clone) -> Blocks {
        Blocks::new(&terms(), [7, 9].into(), numbers)
    }

    #[test]
    fn each_block_is_given_once_until_it_comes_back_and_has_cooled() {
        let mut blocks = blocks(0..2);
        let taken: Vec<_> = std::iter::from_fn(|| blocks.take(0)).collect();
        let shown: Vec<_> = taken.iter().map(|&block| (blocks.address(block), blocks.ports(block))).collect();
        assert_eq!(shown, [(7, (1_000, 1_003)), (9, (1_000, 1_003)), (7, (1_004, 1_007)), (9, (1_004, 1_007))]);
        assert_eq!((blocks.capacity(), blocks.in_use()), (4, 4));
        blocks.give_back(taken[1], 5);
        assert_eq!(blocks.take_beside(taken[3], 1_000_000_004), None);
        assert_eq!(blocks.take_beside(taken[0], 1_000_000_005), None);
        assert_eq!(blocks.take_beside(taken[3], 1_000_000_005), Some(taken[1]));
    }

    #[test]
    fn the_first_block_that_is_given_may_be_any() {
        let mut terms = terms();
        terms.first_block = 3;
        let mut blocks = Blocks::new(&terms, [7, 9].into(), 0..2);
        let taken: Vec<_> = std::iter::from_fn(|| blocks.take(0)).collect();
        let shown: Vec<_> = taken.iter().map(|&block| (blocks.address(block), blocks.ports(block).0)).collect();
        assert_eq!(shown, [(9, 1_004), (7, 1_004), (9, 1_000), (7, 1_000)]);
    }

    #[test]
    fn a_worker_may_have_some_blocks_of_each_address() {
        let mut blocks = blocks((1..9).step_by(2));
        let taken: Vec<_> = std::iter::from_fn(|| blocks.take(0)).collect();
        let shown: Vec<_> = taken.iter().map(|&block| (blocks.address(block), blocks.ports(block))).collect();
        assert_eq!(shown, [(7, (1_004, 1_007)), (9, (1_004, 1_007))]);
    }

    #[test]
    fn a_block_has_each_port_once_for_each_protocol() {
        let mut blocks = blocks(0..2);
        let block = blocks.take(0).unwrap();
        let mut bound = vec![];
        while let Some(port) = blocks.bind(block, UDP, |port| !bound.contains(&port)) {
            bound.push(port);
        }
        assert_eq!(bound, [1_000, 1_001, 1_002, 1_003]);
        assert_eq!(blocks.bind(block, super::super::flow::TCP, |_| true), Some(1_000));
        blocks.unbind(block, UDP);
        assert_eq!(blocks.bind(block, UDP, |port| port == 1_002), Some(1_002));
        assert!(blocks.is_used(block));
    }
}
