//! A device: attached, set up and started as one, and taken away when the last of its queues is gone.

use std::ffi::CStr;
use std::sync::Arc;

use port::Steering;
use port::steering::{self, BUCKETS, BucketTable};

use crate::attached::{Attached, alone};
use crate::error::{Error, check};
use crate::ffi::{self, Description, RawStats};
use crate::name::Name;
use crate::pool::Pool;
use crate::rx::Source;
use crate::spread::{RING, Spreader};

/// Bytes of a hash key, as two IPv6 addresses and two ports need them.
const KEY_BYTES: u8 = 40;

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
    // Taken away before the pool is somebody else's.
    attached: Attached,
    pool: Pool,
    frame_max: usize,
    /// Queue pairs of the device.
    queues: u16,
    /// And of the port.
    workers: u16,
    /// Who spreads frames over several queues; nobody where the device does.
    spreader: Option<Arc<Spreader>>,
}

impl Device {
    /// Attaches, sets up and starts the device with as many queue pairs as its name asks for. DPDK must have been started.
    ///
    /// # Errors
    /// There is no such device, or it cannot do what is asked for.
    pub(crate) fn open(name: &Name) -> Result<(Self, Vec<Source>), Error> {
        let attached = Attached::new(name)?;
        let queues = queues(&attached.description, name)?;
        // What waits in both directions of every queue, or between workers, and at a device that frames are sent on by.
        let waiting = 3 * u32::from(queues) * u32::from(name.descriptors) + u32::from(name.queues - 1) * RING as u32;
        let pool = Pool::with(name.room(), waiting, 2 * u32::from(name.queues) + 2)?;
        let (frame_max, workers) = (name.frame_max(), name.queues);
        let mut device = Self { attached, pool, frame_max, queues, workers, spreader: None };
        device.set_up(name)?;
        let sources = device.sources(name);
        Ok((device, sources))
    }

    fn set_up(&mut self, name: &Name) -> Result<(), Error> {
        let _alone = alone();
        let mtu = self.mtu(name)?;
        let (port, queues, descriptors) = (self.port(), self.queues, name.descriptors);
        let spreads = self.spreads(name);
        let key_bytes = self.key_bytes();
        let mut key = steering::key(key_bytes.into());
        // SAFETY: the pool lives as long as the device; the key has so many bytes and is copied.
        let configured = unsafe {
            let (pool, key) = (self.pool.as_ptr(), key.as_mut_ptr());
            ffi::kaista_configure(port, queues, descriptors, mtu, spreads.into(), key, key_bytes, pool)
        };
        check(&name.device, "set its queues up", configured)?;
        // SAFETY: a number.
        check(&name.device, "start it", unsafe { ffi::kaista_run(port) })?;
        if spreads { self.steer(&BucketTable::fixed(queues.into())) } else { Ok(()) }
    }

    /// Whether the device spreads frames itself, by the buckets of this project: a card that hashes addresses and ports with a
    /// key of ours, and has an entry for each bucket.
    fn spreads(&self, name: &Name) -> bool {
        let Description { reta_size, hashes_flows, .. } = self.attached.description;
        let by_flow = name.driver.keeps_a_table() && name.steering == Steering::FiveTuple && hashes_flows != 0;
        let has_room = reta_size > 0 && usize::from(reta_size).is_multiple_of(BUCKETS) && self.key_bytes() >= KEY_BYTES;
        name.queues > 1 && self.queues == name.queues && by_flow && has_room
    }

    /// Of the key that it hashes with, whatever it is that most have where a driver does not say.
    fn key_bytes(&self) -> u8 {
        match self.attached.description.hash_key_bytes {
            0 => KEY_BYTES,
            said => said,
        }
    }

    /// Where each of its queue pairs receives from.
    fn sources(&mut self, name: &Name) -> Vec<Source> {
        if name.queues == 1 || self.spreads(name) {
            return (0..name.queues).map(Source::Queue).collect();
        }
        let (spreader, shares) = Spreader::over((self.port(), self.queues), name.queues, name.steering);
        self.spreader = Some(spreader);
        shares.into_iter().map(Source::Share).collect()
    }

    /// Frames that come from here on go to the queues that this table says, while packets flow. Those that came before are
    /// received where they are: whoever moves a bucket lets its old queue drain first. A port that was opened begins
    /// with [`BucketTable::fixed`].
    ///
    /// # Errors
    /// The table names queues that there are not, or the card refuses it.
    pub fn steer(&self, table: &BucketTable) -> Result<(), Error> {
        let device = self.attached.name.to_string_lossy();
        if let Some(owner) = table.owners().iter().find(|owner| u16::from(**owner) >= self.workers) {
            return Err(Error::Lacks { device: device.into_owned(), what: format!("queue {owner}") });
        }
        match &self.spreader {
            Some(spreader) => spreader.set_owners(table),
            None if self.queues > 1 => {
                let (owners, entries) = (table.owners().as_ptr(), self.attached.description.reta_size);
                // SAFETY: as many owners as buckets, which the shim repeats over the entries.
                let steered = unsafe { ffi::kaista_steer(self.port(), owners, BUCKETS as u16, entries) };
                check(&device, "change its table", steered)?;
            }
            None => {}
        }
        Ok(())
    }

    /// The MTU that the driver is told: what is asked for, as far as the driver has an opinion.
    fn mtu(&self, name: &Name) -> Result<u16, Error> {
        const AROUND: u32 = 18;
        let limit = u32::from(self.attached.description.max_mtu)
            .min(self.attached.description.max_frame.saturating_sub(AROUND)) as u16;
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
        self.attached.port
    }

    /// How many queue pairs it has.
    pub(crate) fn queue_pairs(&self) -> u16 {
        self.queues
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
        self.attached.description.mac
    }

    /// The name of the driver that serves it.
    pub fn driver(&self) -> String {
        // SAFETY: the shim leaves a zero at the end.
        unsafe { CStr::from_ptr(self.attached.description.driver.as_ptr()) }.to_string_lossy().into_owned()
    }

    /// Whether there is somebody at the other end, as far as the driver knows.
    pub fn has_peer(&self) -> bool {
        // SAFETY: a number.
        unsafe { ffi::kaista_link_is_up(self.port()) != 0 }
    }

    /// What it has counted.
    pub fn stats(&self) -> Stats {
        let mut raw = RawStats::default();
        // SAFETY: the structure is written. Where a driver counts nothing, zeros stay.
        unsafe { ffi::kaista_stats(self.port(), &mut raw) };
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

/// Queue pairs to set up: no more than the port has, nor the device.
fn queues(description: &Description, name: &Name) -> Result<u16, Error> {
    let there = description.max_rx_queues.min(description.max_tx_queues);
    let by_itself = if name.driver.takes_any_queues() { 1 } else { there };
    let queues = name.device_queues.unwrap_or(by_itself).min(name.queues);
    if queues > there || queues == 0 {
        return Err(Error::Lacks { device: name.device.clone(), what: format!("{queues} queue pairs but {there}") });
    }
    Ok(queues)
}
