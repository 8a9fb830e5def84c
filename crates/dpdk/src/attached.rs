//! A device as DPDK has it: attached, described, and taken away again.

use std::ffi::{CString, c_int};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, check};
use crate::ffi::{self, Description};
use crate::name::{Driver, Name};

/// Most of DPDK's control calls must not meet: whoever makes some holds this.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static CONTROL: Mutex<()> = Mutex::new(());
    CONTROL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An attached device.
pub(crate) struct Attached {
    /// DPDK's number of its port.
    pub(crate) port: u16,
    pub(crate) name: CString,
    pub(crate) description: Description,
    driver: Driver,
}

impl Attached {
    /// Attaches the device. DPDK must have been started.
    pub(crate) fn new(name: &Name) -> Result<Self, Error> {
        let _alone = alone();
        let [devargs, device] = [&name.devargs, &name.device].map(|text| {
            CString::new(text.as_str())
                .map_err(|error| Error::Name { text: name.text.clone(), reason: error.to_string() })
        });
        let (devargs, device) = (devargs?, device?);
        let (mut port, mut description) = (0, Description::default());
        // SAFETY: both strings end and are copied; the number is written.
        let attached = unsafe { ffi::kaista_attach(devargs.as_ptr(), device.as_ptr(), &mut port) };
        check(&name.device, "attach it", attached)?;
        // SAFETY: the description is written. Where it is not, zeros stay, and there are no queues.
        unsafe { ffi::kaista_describe(port, &mut description) };
        Ok(Self { port, name: device, description, driver: name.driver })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _alone = alone();
        let there = c_int::from(self.driver == Driver::Memif);
        // SAFETY: numbers and strings; no queue of the device is left. What cannot be taken away stays, unused.
        unsafe { ffi::kaista_take_away(self.port, self.driver.bus().as_ptr(), self.name.as_ptr(), there) }
    }
}
