//! Ports: a device with its queues, described.

use std::sync::Arc;

use port::{Kind, OpenError, OpenOptions, Port, PortInfo, QueuePair};

use crate::device::Device;
use crate::eal::{Settings, start};
use crate::error::Error;
use crate::name::Name;
use crate::rx::Rx;
use crate::tx::{Turn, Tx};

/// From here on `port::open` knows names that begin with `dpdk:`.
pub fn add_to_ports() {
    port::add_kind(Kind { name: "dpdk", expects: "DEVICE[,ARGUMENT=VALUE...]", open: open_by_name });
}

fn open_by_name(name: &str, options: &OpenOptions) -> Result<Port, OpenError> {
    Ok(open(&Name::parse(name)?, options)?.0)
}

/// Opens a port, and starts DPDK if nobody has. The device is taken away when port, queues and this handle of it are gone.
///
/// # Errors
/// DPDK does not start, there is no such device, or it cannot do what is asked for.
pub fn open(name: &Name, options: &OpenOptions) -> Result<(Port, Arc<Device>), Error> {
    start(&Settings::default())?;
    let (device, sources) = Device::open(name)?;
    let device = Arc::new(device);
    let mut info = PortInfo::named(&name.text);
    info.name.clone_from(&name.device);
    if name.driver.has_address() {
        info.mac = device.mac();
    }
    info.mac = name.mac.unwrap_or(info.mac);
    (info.mtu, info.queues, info.steering) = (name.mtu, name.queues, name.steering);
    info.addresses.clone_from(&name.addresses);
    let senders = senders(&device, name.queues);
    let queues = sources.into_iter().zip(senders).map(|(source, tx)| QueuePair {
        rx: Box::new(Rx::new(device.clone(), source, options.peek_bytes)),
        tx: Box::new(tx),
    });
    Ok((Port::new(info, queues.collect()), device))
}

/// A sending half for each of the port's queue pairs. Where the device has fewer, several share one.
fn senders(device: &Arc<Device>, queues: u16) -> Vec<Tx> {
    let there = device.queue_pairs();
    let turns: Vec<_> = (0..there).map(|_| Turn::default()).collect();
    let turn = |queue: u16| (there < queues).then(|| turns[usize::from(queue)].clone());
    (0..queues).map(|number| number % there).map(|queue| Tx::new(device.clone(), queue, turn(queue))).collect()
}
