//! DPDK's drivers as backends, and what each declares.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use dpdk::name::Name;
use dpdk::{Device, Settings};
use port::{FRAME_MAX, OpenOptions, Port, PortInfo, Steering};
use tempfile::TempDir;

use crate::backend::{Backend, Declared};
use crate::namespace;
use crate::rig::{Far, Rig, until};

const IS_POLLED: Declared = Err("is polled");
const DROPS: Declared = Err("the kernel drops what does not fit");
const NO_HANDOVER: Declared = Err("has no hand-over");
const WITH_THE_RING: Declared = Err("the ring goes with its owner");

/// Shortest frame that Ethernet has a header for.
const FRAME_MIN: usize = 14;
/// With which frames of any length are carried.
const MTU: usize = FRAME_MAX - FRAME_MIN;

const ITS_BUFFERS: Declared = Err("its frames lie in buffers of a thread");

pub const BACKENDS: &[Backend] = &[
    Backend {
        name: "vhost",
        frames: FRAME_MIN..=FRAME_MAX,
        queues: 4,
        resteers: NO_HANDOVER,
        live: Ok(()),
        keeps: Ok(()),
        wakes: IS_POLLED,
        returns: Ok(()),
        outlives: WITH_THE_RING,
        holds: ITS_BUFFERS,
        prepare: start,
        make: vhost,
    },
    Backend {
        name: "virtio_user",
        frames: FRAME_MIN..=FRAME_MAX,
        queues: 4,
        resteers: NO_HANDOVER,
        live: Ok(()),
        keeps: Ok(()),
        wakes: IS_POLLED,
        returns: Err("a client looks for its server once"),
        outlives: WITH_THE_RING,
        holds: ITS_BUFFERS,
        prepare: start,
        make: virtio_user,
    },
    Backend {
        name: "memif",
        frames: FRAME_MIN..=FRAME_MAX,
        queues: 4,
        resteers: NO_HANDOVER,
        live: Ok(()),
        keeps: Ok(()),
        wakes: IS_POLLED,
        returns: Err("its driver may crash with a peer that leaves"),
        outlives: WITH_THE_RING,
        holds: ITS_BUFFERS,
        prepare: start,
        make: memif,
    },
    Backend {
        name: "af_packet",
        frames: FRAME_MIN..=FRAME_MAX,
        queues: 4,
        resteers: NO_HANDOVER,
        live: Ok(()),
        keeps: DROPS,
        wakes: IS_POLLED,
        returns: Ok(()),
        outlives: Ok(()),
        holds: ITS_BUFFERS,
        prepare: in_a_namespace,
        make: af_packet,
    },
    Backend {
        name: "af_xdp",
        frames: FRAME_MIN..=1514,
        queues: 4,
        resteers: NO_HANDOVER,
        live: Ok(()),
        keeps: DROPS,
        wakes: IS_POLLED,
        returns: Ok(()),
        outlives: Ok(()),
        holds: ITS_BUFFERS,
        prepare: in_a_namespace,
        make: af_xdp,
    },
];

/// All of it from the start: virtio-user tells its peer of memory that is added and waits for the answer, and while it waits
/// that peer, in the same process, could not get any to answer with.
const MEMORY_MIB: u32 = 768;

fn start() -> Result<(), String> {
    let megabytes = MEMORY_MIB.to_string();
    let arguments = ["-m", &megabytes, "--socket-limit", &megabytes].map(str::to_owned).into();
    dpdk::start(&Settings { arguments }).map_err(|error| error.to_string())
}

fn in_a_namespace() -> Result<(), String> {
    start()?;
    namespace::enter()
}

fn turn() -> u32 {
    static TURN: AtomicU32 = AtomicU32::new(0);
    TURN.fetch_add(1, Ordering::Relaxed)
}

/// A path for a socket that nobody else uses.
fn socket() -> PathBuf {
    static FOLDER: LazyLock<TempDir> = LazyLock::new(|| TempDir::new().expect("a folder for sockets"));
    FOLDER.path().join(format!("{}.sock", turn()))
}

fn open(name: &str) -> (Port, Arc<Device>) {
    dpdk::open(&Name::parse(name).unwrap(), &OpenOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// A server of vhost-user. DPDK begins to look at its socket when something comes to another one, or a second later.
fn open_server(name: &str) -> (Port, Arc<Device>) {
    static OTHER: LazyLock<(Mutex<Port>, PathBuf)> = LazyLock::new(|| {
        let socket = socket();
        let port = open(&format!("net_vhost{},iface={}", turn(), socket.display())).0;
        (Mutex::new(port), socket)
    });
    let (_, other) = &*OTHER;
    let opened = open(name);
    UnixStream::connect(other).expect("it listens");
    opened
}

/// A server, whose client is at the far end and may come again.
fn of_server((near, near_device): (Port, Arc<Device>), client: String) -> Rig {
    let (mut far, far_device) = open(&client);
    until("both ends meet", || near_device.has_peer() && far_device.has_peer());
    drop((near_device, far_device));
    // A client of memif has to receive once before there is room for anything.
    assert!(far.queues[0].rx.recv().is_empty());
    Rig::new(near, Far::port(far, move || open(&client).0), Vec::new())
}

/// How a port is described in its name. With several queues it carries no long frames, which take the memory of many.
fn described(info: &PortInfo, mtu: usize) -> String {
    let steering = match info.steering {
        Steering::None => "none",
        Steering::Teid => "teid",
        Steering::UeAddress => "ue-address",
        Steering::FiveTuple => "five-tuple",
    };
    let (mtu, descriptors) = if info.queues == 1 { (mtu, 256) } else { (1500, 1024) };
    format!("port-mtu={mtu},port-queues={},port-steering={steering},port-descriptors={descriptors}", info.queues)
}

/// Two devices with so many queues.
fn vhost_names(server: &PortInfo, client: &PortInfo, queues: u16) -> (String, String) {
    let (socket, turn) = (socket().display().to_string(), turn());
    let [ours, theirs] = [server, client].map(|info| described(info, MTU));
    (
        format!("net_vhost{turn},iface={socket},queues={queues},{ours}"),
        format!("net_virtio_user{turn},path={socket},queues={queues},queue_size=1024,{theirs}"),
    )
}

fn vhost(near: PortInfo, far: PortInfo, frames: Vec<Vec<u8>>) -> Rig {
    let (server, client) = vhost_names(&near, &far, near.queues.max(far.queues));
    let rig = of_server(open_server(&server), client);
    Rig::new(rig.port, rig.far, frames)
}

fn virtio_user(near: PortInfo, far: PortInfo, frames: Vec<Vec<u8>>) -> Rig {
    let (server, client) = vhost_names(&far, &near, 1);
    let (far, far_device) = open_server(&server);
    let near = open(&client).0;
    until("both ends meet", || far_device.has_peer());
    Rig::new(near, Far::port(far, || unreachable!("it does not come back")), frames)
}

fn memif(near: PortInfo, far: PortInfo, frames: Vec<Vec<u8>>) -> Rig {
    let (socket, turn) = (socket(), turn());
    let end = |role: &str, number: u32, socket: String, info: &PortInfo| {
        let described = described(info, MTU);
        format!("net_memif{number},role={role},socket={socket},socket-abstract=no,bsize=16384,{described}")
    };
    // Of one process, the ends know their socket by different names.
    let other = socket.parent().unwrap().join(".").join(socket.file_name().unwrap());
    let server = end("server", 2 * turn, socket.display().to_string(), &near);
    let other = other.display().to_string().replace("/./", "//");
    let rig = of_server(open(&server), end("client", 2 * turn + 1, other, &far));
    Rig::new(rig.port, rig.far, frames)
}

/// A pair of interfaces in this thread's namespace.
fn veth(mtu: usize) -> [String; 2] {
    let turn = turn();
    let pair = ["kv", "kw"].map(|name| format!("{name}{turn}"));
    namespace::ip(&format!("link add {} mtu {mtu} type veth peer name {} mtu {mtu}", pair[0], pair[1]));
    namespace::up(&[&pair[0], &pair[1]]);
    pair
}

fn before_interface(near: &str, far: &str, frames: Vec<Vec<u8>>) -> Rig {
    let (near, far) = (open(near).0, format!("packet:{far}"));
    let open = move || namespace::open(&far);
    Rig::new(near, Far::port(open(), open), frames)
}

fn af_packet(info: PortInfo, _far: PortInfo, frames: Vec<Vec<u8>>) -> Rig {
    let [near, far] = veth(MTU);
    let rings = if info.queues == 1 { "blocksz=65536,framesz=16384,framecnt=1024" } else { "framecnt=2048" };
    before_interface(&format!("net_af_packet{},iface={near},{rings},{}", turn(), described(&info, MTU)), &far, frames)
}

fn af_xdp(info: PortInfo, _far: PortInfo, frames: Vec<Vec<u8>>) -> Rig {
    let [near, far] = veth(1500);
    before_interface(&format!("net_af_xdp{},iface={near},{}", turn(), described(&info, 1500)), &far, frames)
}
