//! What can go wrong before packets flow.

use std::ffi::{CStr, c_int};
use std::io;

use crate::ffi;

/// Why there is no port.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// DPDK did not start; it does so once a process, or never.
    #[error("DPDK does not start: {0}")]
    Start(String),
    /// The name has no meaning.
    #[error("{text}: {reason}")]
    Name {
        /// The name.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// DPDK refused something.
    #[error("{device}: cannot {what}: {reason}")]
    Refused {
        /// Name of the device.
        device: String,
        /// What was asked for.
        what: &'static str,
        /// DPDK's words for it.
        reason: String,
    },
    /// The device cannot do what the name asks for.
    #[error("{device} has no {what}")]
    Lacks {
        /// Name of the device.
        device: String,
        /// What it has not.
        what: String,
    },
}

/// The meaning of a number that a call returned, if that is below zero.
pub(crate) fn check(device: &str, what: &'static str, returned: c_int) -> Result<(), Error> {
    if returned >= 0 {
        return Ok(());
    }
    Err(Error::Refused { device: device.to_owned(), what, reason: words(returned) })
}

/// DPDK's words for a negated errno value.
pub(crate) fn words(number: c_int) -> String {
    // SAFETY: returns a string that is static or this thread's, for any number.
    unsafe { CStr::from_ptr(ffi::kaista_error(number)) }.to_string_lossy().into_owned()
}

impl From<Error> for port::OpenError {
    fn from(error: Error) -> Self {
        let kind = match error {
            Error::Name { .. } => io::ErrorKind::InvalidInput,
            Error::Lacks { .. } => io::ErrorKind::Unsupported,
            Error::Start(_) | Error::Refused { .. } => io::ErrorKind::Other,
        };
        Self::Io(io::Error::new(kind, error))
    }
}
