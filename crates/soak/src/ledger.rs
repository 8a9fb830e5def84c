//! Up to which packet of each flow the members of a pool have sent it on, and where who came after a dead one began, in a file
//! that outlives them.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::Result;

use crate::load::FLOWS;
use crate::memory::Words;

const BYTES: usize = FLOWS * 16;

/// Two words for each flow, written by the member that has it.
#[derive(Debug)]
pub struct Ledger(Words);

impl Ledger {
    /// A new one, or one that is there.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(BYTES as u64)?;
        Ok(Self(Words::map(&file, BYTES, true)?))
    }

    /// Of each of these flows the number behind the last one sent on; it may be one burst too low.
    pub fn sent(&self, flows: &[u16]) -> Vec<u64> {
        flows.iter().map(|flow| self.0.load(usize::from(*flow) * 16)).collect()
    }

    /// Notes that of one.
    pub fn set_sent(&self, flow: u16, next: u64) {
        self.0.word(usize::from(flow) * 16).store(next, Ordering::Release);
    }

    /// Of each of these flows the first number that came to whoever has it without its state, for that had died.
    pub fn begun(&self, flows: &[u16]) -> Vec<u64> {
        flows.iter().map(|flow| self.0.load(usize::from(*flow) * 16 + 8)).collect()
    }

    /// Notes that of one.
    pub fn set_begun(&self, flow: u16, number: u64) {
        self.0.word(usize::from(flow) * 16 + 8).store(number, Ordering::Release);
    }
}
