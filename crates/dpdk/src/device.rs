//! A device: attached, set up and started as one, and taken away when the last of its queues is gone.

use std::ffi::{CStr, CString, c_int};
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, check};
use crate::ffi::{self, Description, RawStats};
use crate::name::{Driver, Name};
use crate::pool::Pool;

/// Most of DPDK's control calls must not meet.
static CONTROL: Mutex<()> = Mutex::new(());

/// What a device has counted since it was started, its driver willing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Frames received.
    pub received: u64,
    /// Frames sent.
    pub sent: u64,
    /// Frames that found no descriptor: nobody received them in time.
    pub missed: u64,
    /// Frames that found no packet buffer.
    pub no_buffer: u64,
    /// Frames that were not received for what was wrong with them.
    pub receive_errors: u64,
    /// Frames that could not be sent.
    pub send_errors: u64,
}

/// A running device.
pub struct Device {
    port: u16,
    name: CString,
    driver: Driver,
    description: Description,
    frame_max: usize,
    pool: Pool,
}

impl Device {
    /// Attaches, sets up and starts the device with as many queue pairs as its name asks for. DPDK must have been started.
    ///
    /// # Errors
    /// There is no such device, or it cannot do what is asked for.
    pub fn open(name: &Name) -> Result<Self, Error> {
        let alone = CONTROL.lock().unwrap_or_else(PoisonError::into_inner);
        let frame_max = name.frame_max();
        // What waits in both directions of every queue; and as much again at devices that frames are sent on by.
        let pool = Pool::with(name.room(), u32::from(name.queues) * u32::from(name.descriptors) * 4)?;
        let [devargs, device] = [&name.devargs, &name.device].map(|text| {
            CString::new(text.as_str())
                .map_err(|error| Error::Name { text: name.text.clone(), reason: error.to_string() })
        });
        let (devargs, device) = (devargs?, device?);
        let mut port = 0;
        // SAFETY: both strings end and are copied; the number is written.
        let attached = unsafe { ffi::kaista_attach(devargs.as_ptr(), device.as_ptr(), &mut port) };
        check(&name.device, "attach it", attached)?;
        let mut device =
            Self { port, name: device, driver: name.driver, description: Description::default(), frame_max, pool };
        let set_up = device.set_up(name);
        // What could not be set up is taken away again, which takes the lock.
        drop(alone);
        set_up.map(|()| device)
    }

    fn set_up(&mut self, name: &Name) -> Result<(), Error> {
        // SAFETY: the description is written.
        let described = unsafe { ffi::kaista_describe(self.port, &mut self.description) };
        check(&name.device, "describe it", described)?;
        let there = self.description.max_rx_queues.min(self.description.max_tx_queues);
        if name.queues > there {
            let what =
                format!("{} queue pairs but {there} (of virtual devices an argument says how many)", name.queues);
            return Err(Error::Lacks { device: name.device.clone(), what });
        }
        let mtu = self.mtu(name)?;
        let (queues, descriptors) = (name.queues, name.descriptors);
        let (hashes, key) = (0, core::ptr::null_mut());
        // SAFETY: the pool lives as long as the device.
        let configured =
            unsafe { ffi::kaista_configure(self.port, queues, descriptors, mtu, hashes, key, 0, self.pool.as_ptr()) };
        check(&name.device, "set its queues up", configured)?;
        // SAFETY: a number.
        check(&name.device, "start it", unsafe { ffi::kaista_run(self.port) })
    }

    /// The MTU that the driver is told: what is asked for, as far as the driver has an opinion.
    fn mtu(&self, name: &Name) -> Result<u16, Error> {
        const AROUND: u32 = 18;
        let limit = u32::from(self.description.max_mtu).min(self.description.max_frame.saturating_sub(AROUND)) as u16;
        if name.mtu <= limit {
            return Ok(name.mtu);
        }
        if !name.driver.means_its_limit() {
            return Ok(limit);
        }
        Err(Error::Lacks { device: name.device.clone(), what: format!("MTU over {limit}") })
    }

    /// DPDK's number of the port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Packet buffers of this device.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Longest frame that it carries, in bytes.
    pub(crate) fn frame_max(&self) -> usize {
        self.frame_max
    }

    /// The device's own Ethernet address.
    pub fn mac(&self) -> [u8; 6] {
        self.description.mac
    }

    /// The name of the driver that serves it.
    pub fn driver(&self) -> String {
        // SAFETY: the shim leaves a zero at the end.
        unsafe { CStr::from_ptr(self.description.driver.as_ptr()) }.to_string_lossy().into_owned()
    }

    /// Whether there is somebody at the other end, as far as the driver knows.
    pub fn has_peer(&self) -> bool {
        // SAFETY: a number.
        unsafe { ffi::kaista_link_is_up(self.port) != 0 }
    }

    /// What it has counted.
    pub fn stats(&self) -> Stats {
        let mut raw = RawStats::default();
        // SAFETY: the structure is written. Where a driver counts nothing, zeros stay.
        unsafe { ffi::kaista_stats(self.port, &mut raw) };
        Stats {
            received: raw.ipackets,
            sent: raw.opackets,
            missed: raw.imissed,
            no_buffer: raw.rx_nombuf,
            receive_errors: raw.ierrors,
            send_errors: raw.oerrors,
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _alone = CONTROL.lock().unwrap_or_else(PoisonError::into_inner);
        let there = c_int::from(self.driver == Driver::Memif);
        // SAFETY: numbers and strings; no queue of the device is left. What cannot be taken away stays, unused.
        unsafe { ffi::kaista_take_away(self.port, self.driver.bus().as_ptr(), self.name.as_ptr(), there) }
    }
}
