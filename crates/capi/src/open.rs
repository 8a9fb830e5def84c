//! Ports: opening them by name, what they are, reporting, closing.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_char, c_int};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;

use crate::attach::{Refusal, attach};
use crate::edge::{Answer, get_struct, guard_once, put_text, string};
use crate::rx::Rx;
use crate::tx::Tx;

/// An open port. Threads may share it; its halves they may not.
pub struct Port {
    pub(crate) port: port::Port,
    /// Made by `Box::into_raw`, each in the hands of a thread of the caller's.
    pub(crate) halves: Vec<(*mut Rx, *mut Tx)>,
}

/// How to open a port. What is zero has its default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// `sizeof` of this structure, which may grow.
    pub size: usize,
    /// The broker's socket. Default: $KAISTA_PORTS, or else /run/kaista/ports.sock.
    pub socket: *const c_char,
    /// How long to wait for the broker, and for it to know the port. Default: 10,000.
    pub timeout_ms: u32,
    /// How many bytes of a received frame become its head, 64 to KAISTA_HEAD_MAX. Default: 192.
    pub peek_bytes: u32,
}

/// # Safety
/// As for [`kaista_port_open`].
unsafe fn options(from: *const OpenOptions) -> Result<port::OpenOptions, Errno> {
    let mut options = port::OpenOptions::default();
    if from.is_null() {
        return Ok(options);
    }
    // SAFETY: the caller's structure begins with its size; null pointers and zeros are its defaults.
    let given = unsafe { get_struct(from) }?;
    if !given.socket.is_null() {
        // SAFETY: the caller's string.
        options.socket = PathBuf::from(unsafe { string(given.socket) }.ok_or(Errno::INVAL)?);
    }
    if given.timeout_ms > 0 {
        options.timeout = Duration::from_millis(given.timeout_ms.into());
    }
    if given.peek_bytes > 0 {
        options.peek_bytes = given.peek_bytes as usize;
    }
    Ok(options)
}

/// Opens the port `name`: "n3" by shared memory, "tap:NAME" a TAP device, "packet:INTERFACE" any Ethernet interface.
/// `options` may be null. Returns 0, and the port in `port`; or an error: -ECONNREFUSED (no broker), -EACCES (the broker
/// refused), -EINVAL (bad name or option), -E2BIG (options that this library does not know), or what the system said.
/// `error`, a buffer of `error_size` bytes or null, then tells it in words, else it has no characters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_port_open(
    port: *mut *mut Port,
    name: *const c_char,
    options: *const OpenOptions,
    error: *mut c_char,
    error_size: usize,
) -> c_int {
    let opened = || {
        if port.is_null() {
            return Err(Refusal(Errno::INVAL, "no place for the port".into()));
        }
        // SAFETY: the caller's string and options, null or whole.
        let (name, options) = unsafe { (string(name), self::options(options)) };
        let name = name.ok_or_else(|| Refusal(Errno::INVAL, "no name, or one that is not UTF-8".into()))?;
        attach(name, &options.map_err(|errno| Refusal(errno, format!("options: {}", io::Error::from(errno))))?)
    };
    guard_once(|| {
        let (answer, words) = match opened() {
            Ok(opened) => {
                // SAFETY: not null, and the caller's to be written.
                unsafe { port.write(Box::into_raw(Box::new(opened))) };
                (Ok(0), String::new())
            }
            Err(Refusal(errno, words)) => (Err(errno), words),
        };
        // SAFETY: the caller's buffer.
        unsafe { put_text(&words, error, error_size) };
        answer
    })
}

/// Closes a port: its halves, the views of its packets and its file descriptors end, so no thread may be using them. Null
/// is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_port_close(port: *mut Port) {
    if port.is_null() {
        return;
    }
    // SAFETY: made by `kaista_port_open`, and the caller uses neither it nor its halves any more.
    let Port { port, halves } = *unsafe { Box::from_raw(port) };
    let close = || {
        for (rx, tx) in halves {
            // SAFETY: as above.
            drop(unsafe { (Box::from_raw(rx), Box::from_raw(tx)) });
        }
        drop(port);
        Answer::Ok(0)
    };
    let _: c_int = guard_once(close);
}

/// The receiving half of queue pair `queue`, which lives as long as the port. Null where there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_port_rx(port: *const Port, queue: u16) -> *mut Rx {
    // SAFETY: the caller's port.
    let halves = unsafe { port.as_ref() }.and_then(|port| port.halves.get(usize::from(queue)));
    halves.map_or(std::ptr::null_mut(), |(rx, _)| *rx)
}

/// The sending half of queue pair `queue`, which lives as long as the port. Null where there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kaista_port_tx(port: *const Port, queue: u16) -> *mut Tx {
    // SAFETY: the caller's port.
    let halves = unsafe { port.as_ref() }.and_then(|port| port.halves.get(usize::from(queue)));
    halves.map_or(std::ptr::null_mut(), |(_, tx)| *tx)
}
