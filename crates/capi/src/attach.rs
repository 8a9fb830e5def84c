//! Attaching to a port, in words and numbers that C understands.

use std::io;

use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::io::Errno;

use crate::open::Port;
use crate::rx::Rx;
use crate::tx::Tx;

/// Why a port did not open: a number, and words.
pub(crate) struct Refusal(pub(crate) Errno, pub(crate) String);

impl<E: Into<io::Error>> From<E> for Refusal {
    fn from(error: E) -> Self {
        let error = error.into();
        Self(error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error), error.to_string())
    }
}

fn refusal(error: port::OpenError) -> Refusal {
    let words = error.to_string();
    match error {
        port::OpenError::NoBroker { .. } => Refusal(Errno::CONNREFUSED, words),
        port::OpenError::Refused { .. } => Refusal(Errno::ACCESS, words),
        port::OpenError::Name(_) => Refusal(Errno::INVAL, words),
        port::OpenError::Io(error) => error.into(),
    }
}

/// Opens by a thread that no signal goes to, and so none to the port's own thread, which is born there: handlers run in
/// threads of the program.
pub(crate) fn attach(name: &str, options: &port::OpenOptions) -> Result<Port, Refusal> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let mut port = std::thread::scope(|scope| {
        let opening = std::thread::Builder::new().spawn_scoped(scope, || port::open(name, options));
        before.thread_set_mask()?;
        opening?.join().map_err(|_| Refusal(Errno::NOTRECOVERABLE, "internal error".into()))?.map_err(refusal)
    })?;
    let pairs: Vec<_> =
        port.queues.drain(..).map(|pair| Ok((Rx::new(pair.rx)?, Tx::new(pair.tx)))).collect::<Result<_, Errno>>()?;
    let halves = pairs.into_iter().map(|(rx, tx)| (Box::into_raw(Box::new(rx)), Box::into_raw(Box::new(tx)))).collect();
    Ok(Port { port, halves })
}
