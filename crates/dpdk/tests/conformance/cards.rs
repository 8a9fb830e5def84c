//! Network cards: this suite does not touch them, since nobody knows what is at their other end.

use std::fs;
use std::path::Path;

/// Class of PCI devices that are network controllers.
const NETWORK: &str = "0x02";
/// Drivers of the kernel that leave a device to a process.
const FOR_PROCESSES: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];

#[test]
fn network_cards_are_skipped_by_name() {
    let devices = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let mut found = 0;
    for device in devices.map(|entry| entry.path()) {
        let class = fs::read_to_string(device.join("class")).unwrap_or_default();
        if !class.starts_with(NETWORK) {
            continue;
        }
        found += 1;
        let name = device.file_name().unwrap_or_default().to_string_lossy();
        let driver = fs::read_link(device.join("driver")).ok();
        let driver = driver.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        match driver {
            Some(driver) if FOR_PROCESSES.contains(&driver.as_str()) => {
                println!("SKIPPED conformance on dpdk:{name}: what is at its other end is not known");
            }
            Some(driver) => println!("SKIPPED conformance on dpdk:{name}: the kernel has it ({driver})"),
            None => println!("SKIPPED conformance on dpdk:{name}: bound to no driver (vfio-pci is wanted)"),
        }
    }
    if found == 0 {
        println!("SKIPPED conformance on network cards: this host has none on PCI");
    }
}
