//! Ctrl-C and SIGTERM end a measurement early: what was measured until then is reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};

/// The two signals, taken over. To ask is a load.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes them over from now on. Call it before another thread is started.
    pub fn take() -> anyhow::Result<Self> {
        let set: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
        set.thread_block().context("cannot block signals")?;
        let came = Arc::new(AtomicBool::new(false));
        let told = came.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            while set.wait().is_ok() {
                told.store(true, Ordering::Relaxed);
            }
        })?;
        Ok(Self(came))
    }

    /// Whether one of them has come since the last call.
    #[inline]
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}
