//! Starting DPDK's environment abstraction layer: once, and on a thread of its own.

use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;
use std::sync::mpsc::channel;

use crate::error::{Error, words};
use crate::ffi;

/// What DPDK is told at its start.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Arguments behind those that are always given, in DPDK's own syntax: `-m`, `--socket-limit`, `--log-level=...`
    pub arguments: Vec<String>,
}

static STARTED: OnceLock<Result<(), Error>> = OnceLock::new();

/// Starts DPDK. The first call counts; every other one gives its result, whatever it asks for. [`crate::open`] calls it with
/// nothing special.
///
/// # Errors
/// DPDK's own reason goes to standard error. Mostly: there are no free hugepages.
pub fn start(settings: &Settings) -> Result<(), Error> {
    STARTED.get_or_init(|| start_on_its_own_thread(arguments(settings))).clone()
}

/// It pins the thread that starts it, and those that this one starts. So that is a thread which does nothing else, and which
/// stays: DPDK takes it for its main one.
fn start_on_its_own_thread(arguments: Vec<String>) -> Result<(), Error> {
    let (tell, told) = channel();
    let thread = std::thread::Builder::new().name("dpdk".to_owned()).spawn(move || {
        // DPDK keeps pointers to these strings.
        let strings: Vec<CString> = arguments.into_iter().filter_map(|argument| CString::new(argument).ok()).collect();
        let mut pointers = strings.iter().map(|string| string.as_ptr().cast_mut()).collect();
        let _ = tell.send(init(&mut pointers));
        loop {
            std::thread::park();
            std::hint::black_box(&strings);
        }
    });
    thread.map_err(|error| Error::Start(error.to_string()))?;
    told.recv().map_err(|error| Error::Start(error.to_string()))?
}

/// Starts it with strings that stay as long as the process.
fn init(arguments: &mut Vec<*mut c_char>) -> Result<(), Error> {
    let count = arguments.len() as c_int;
    arguments.push(core::ptr::null_mut());
    // SAFETY: as many strings as it says, with a null behind them, none of which is changed; it rearranges the pointers.
    match unsafe { ffi::kaista_start(count, arguments.as_mut_ptr()) } {
        error if error < 0 => Err(Error::Start(format!("{} (are there free hugepages?)", words(error)))),
        _ => Ok(()),
    }
}

/// The name of the program, and then what is always said.
fn arguments(settings: &Settings) -> Vec<String> {
    let fixed = [
        "kaista".to_owned(),
        // No files, so that nothing is left behind, and processes do not meet.
        "--in-memory".to_owned(),
        format!("--file-prefix=kaista{}", std::process::id()),
        // vhost-user hands on one descriptor for each segment, and eight at most.
        "--single-file-segments".to_owned(),
        "--no-telemetry".to_owned(),
        // Virtual addresses serve every device that there is here, with an IOMMU network cards too.
        "--iova-mode=va".to_owned(),
        // One core by name, which is all of those that this process may use: DPDK starts no threads on others.
        format!("--lcores=0@({})", usable_cores()),
        // Only devices that are asked for: with nothing allowed, DPDK takes whatever it can.
        "-a".to_owned(),
        NOTHING.to_owned(),
        "--log-level=4".to_owned(),
    ];
    fixed.into_iter().chain(settings.arguments.iter().cloned()).collect()
}

/// A PCI address that no network card has: that of the bridge to the host.
const NOTHING: &str = "0000:00:00.0";

/// As the kernel says it, for example `0-3,8`.
fn usable_cores() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.map_or("0", str::trim).to_owned()
}
