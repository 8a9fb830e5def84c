//! Compiles the shim, and says which of DPDK's libraries are linked: statically, and no more of them than ports need.

use std::env;
use std::path::Path;
use std::process::Command;

/// Drivers, and what registers itself with DPDK as it is loaded; nobody calls them by name.
const DRIVERS: &[&str] = &[
    "bus_pci",
    "bus_vdev",
    "mempool_ring",
    "net_vhost",
    "net_virtio",
    "net_memif",
    "net_af_packet",
    "net_af_xdp",
    "net_tap",
    "net_null",
];

/// Drivers of network cards, as far as this machine's kind has them.
const CARDS: &[&str] =
    &["common_iavf", "net_e1000", "net_ena", "net_i40e", "net_iavf", "net_ice", "net_igc", "net_ixgbe", "net_vmxnet3"];

/// What these and the shim call.
const LIBRARIES: &[&str] = &[
    "vhost",
    "cryptodev",
    "security",
    "dmadev",
    "gso",
    "hash",
    "rcu",
    "timer",
    "ethdev",
    "net",
    "mbuf",
    "mempool",
    "ring",
    "meter",
    "pci",
    "kvargs",
    "telemetry",
    "eal",
];

/// What DPDK itself is made from, in the order in which they need each other.
const SYSTEM: &[&str] = &["xdp", "bpf", "elf", "z", "numa", "bsd", "md"];

fn main() {
    println!("cargo:rerun-if-changed=shim/shim.c");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    pkg_config(&["--atleast-version=22.11"]);
    let mut shim = cc::Build::new();
    shim.file("shim/shim.c").warnings(true).extra_warnings(true).warnings_into_errors(true).opt_level(3);
    for flag in pkg_config(&["--cflags"]).split_whitespace() {
        // Their headers are not ours to mend.
        match flag.strip_prefix("-I") {
            Some(folder) => shim.flag("-isystem").flag(folder),
            None => shim.flag(flag),
        };
    }
    shim.compile("kaista_dpdk_shim");
    let folder = pkg_config(&["--variable=libdir"]);
    let folder = Path::new(folder.trim());
    println!("cargo:rustc-link-search=native={}", folder.display());
    let cards = CARDS.iter().filter(|driver| folder.join(format!("librte_{driver}.a")).exists());
    for library in DRIVERS.iter().chain(cards).chain(LIBRARIES) {
        println!("cargo:rustc-link-lib=static:+whole-archive,-bundle=rte_{library}");
    }
    for library in SYSTEM {
        println!("cargo:rustc-link-lib=static:-bundle={library}");
    }
}

/// What pkg-config says of DPDK.
fn pkg_config(arguments: &[&str]) -> String {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_owned());
    let output = Command::new(&program).args(arguments).arg("libdpdk").output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        Ok(_) => panic!("DPDK 22.11 is not installed, says {program} {arguments:?} (scripts/setup.sh build)"),
        Err(error) => panic!("{program}: {error} (scripts/setup.sh build)"),
    }
}
