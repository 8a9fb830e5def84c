//! The programs over ports of DPDK that take turns on a core: the UPF with sessions that came by PFCP, our plain forwarder, and
//! testpmd.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use port::{BURST_MAX, PortInfo};
use rustix::thread::{CpuSet, Pid, sched_setaffinity};

use crate::companion::{self, Companion};
use crate::folder::Folder;
use crate::n4::AT_ONCE;
use crate::n4::manager::{Manager, Session};
use crate::progress::Progress;
use crate::rig;
use crate::testpmd::{Between, Rings};

/// How long a program may take to start.
const PATIENCE: Duration = Duration::from_secs(30);
/// Descriptors of every ring. The client of a link says how many, so they are the same whoever is its server.
pub(super) const DESCRIPTORS: usize = 1_024;

/// A port of the function, by the server's socket of its link.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    N3,
    N6,
}

impl Side {
    /// Its socket.
    pub fn socket(self, folder: &Folder) -> PathBuf {
        folder.path().join(format!("{self:?}"))
    }

    fn info(self) -> PortInfo {
        match self {
            Self::N3 => rig::n3(),
            Self::N6 => rig::n6(),
        }
    }

    /// The name of the function's port.
    fn server(self, folder: &Folder) -> String {
        let (socket, mac) = (self.socket(folder), mac(self.info().mac));
        format!("dpdk:net_vhost{},iface={},queues=1,port-mac={mac}", self as u32, socket.display())
    }

    /// The name of the load's. With split rings: servers are slower with packed ones, testpmd's too. One that only receives does so
    /// with its driver's vector path, which needs the order off, and has more time to send by the other.
    pub fn client(self, folder: &Folder, only_receives: bool) -> String {
        let (mac, address) = match self {
            Self::N3 => (mac(rig::GNB_MAC), rig::GNB),
            Self::N6 => (mac(rig::SERVER_MAC), rig::SERVER),
        };
        let socket = self.socket(folder);
        format!(
            "dpdk:net_virtio_user{},path={},queues=1,{},in_order={},port-descriptors={DESCRIPTORS},port-mac={mac},port-address={address}/24",
            self as u32,
            socket.display(),
            Rings::split(DESCRIPTORS, BURST_MAX).of_virtio(),
            u8::from(!only_receives),
        )
    }
}

/// A UPF process of one worker, which has a core to itself.
pub(super) struct Upf {
    pub process: Companion,
    pub folder: Folder,
}

impl Upf {
    /// With so many sessions, on `core`; and their TEIDs.
    pub fn start(sessions: u32, core: usize, progress: &Progress) -> anyhow::Result<(Self, Vec<u32>)> {
        let folder = Folder::new()?;
        let n4 = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("a port for N4")?.local_addr()?;
        std::fs::write(folder.path().join("upf.yaml"), config(&folder, n4, sessions))?;
        let mut command = companion::over_dpdk("kaista-upf-dpdk")?;
        command.arg("--die-with-parent").arg("--config").arg(folder.path().join("upf.yaml")).stderr(Stdio::null());
        let mut upf = Self { process: Companion::start(&mut command)?, folder };
        let mut manager = upf.associate(n4)?.without_usage();
        let mut teids = vec![0; sessions as usize];
        manager.establish(0..sessions, AT_ONCE, |Session { number, teid, .. }| {
            teids[number as usize] = teid;
            progress.go_on()
        })?;
        keep_on(upf.process.0.id(), core)?;
        Ok((upf, teids))
    }

    fn associate(&mut self, n4: SocketAddr) -> anyhow::Result<Manager> {
        let until = Instant::now() + PATIENCE;
        loop {
            match Manager::associate(n4) {
                // Nobody listens yet.
                Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
                other => return other,
            }
            self.process.check()?;
        }
    }
}

/// No heartbeats and no echo requests: nobody has time to answer them.
fn config(folder: &Folder, n4: SocketAddr, sessions: u32) -> String {
    let port = |side: Side| {
        let addresses = side.info().addresses;
        let addresses: Vec<_> = addresses.iter().map(|(address, prefix)| format!("{address}/{prefix}")).collect();
        format!("{{port: '{}', addresses: [{}]}}", side.server(folder), addresses.join(", "))
    };
    format!(
        "n4: {{listen: '{n4}', nodeId: 127.0.0.1, heartbeatS: 86400}}\ngtpu: {{echoS: 0}}\nn3: {}\nn6: {}\n\
         maxSessions: {}\ncontrol: {}\n",
        port(Side::N3),
        port(Side::N6),
        sessions.next_power_of_two(),
        folder.path().join("control").display(),
    )
}

/// Our forwarder between two ports, Ethernet addresses swapped.
pub(super) struct Forwarder {
    pub process: Companion,
    pub folder: Folder,
}

impl Forwarder {
    /// On `core`.
    pub fn start(core: usize) -> anyhow::Result<Self> {
        let folder = Folder::new()?;
        let mut command = companion::over_dpdk("kaista-traffic-dpdk")?;
        command.args(["forward", "--die-with-parent", "--poll", "--core", &core.to_string()]);
        for side in [Side::N3, Side::N6] {
            command.args(["--port", &side.server(&folder)]);
        }
        let process = Companion::start(&mut command)?;
        await_sockets(&folder)?;
        Ok(Self { process, folder })
    }
}

/// testpmd, with a port at each of the two sockets.
pub(super) struct Testpmd {
    pub process: Between,
    pub folder: Folder,
}

impl Testpmd {
    /// On `core`.
    pub fn start(core: usize) -> anyhow::Result<Self> {
        let folder = Folder::new()?;
        let sockets = [Side::N3, Side::N6].map(|side| side.socket(&folder));
        let process = Between::start([&sockets[0], &sockets[1]], core, DESCRIPTORS)?;
        await_sockets(&folder)?;
        Ok(Self { process, folder })
    }
}

/// Waits until a server is at both ports.
fn await_sockets(folder: &Folder) -> anyhow::Result<()> {
    let until = Instant::now() + PATIENCE;
    while ![Side::N3, Side::N6].iter().all(|side| side.socket(folder).exists()) {
        ensure!(Instant::now() < until, "a function over DPDK does not open its ports");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Keeps all threads of a process on one core.
fn keep_on(process: u32, core: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    for task in std::fs::read_dir(Path::new("/proc").join(process.to_string()).join("task"))? {
        let id = task?.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
        let id = id.context("a thread has a number")?;
        sched_setaffinity(Some(id), &set).with_context(|| format!("cannot keep a thread on core {core}"))?;
    }
    Ok(())
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}
