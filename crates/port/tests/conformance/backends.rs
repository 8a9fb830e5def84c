//! The backends of this crate, and what each declares.

use std::sync::atomic::{AtomicU32, Ordering};

use port::synthetic::Synthetic;
use port::{FRAME_MAX, Port, PortInfo};
use vport::broker::LinkKind;

use crate::backend::{Backend, Declared};
use crate::bench::Bench;
use crate::namespace;
use crate::rig::{Far, Rig};

const DROPS: Declared = Err("the kernel drops what does not fit");
const COPIED: Declared = Err("the kernel copies what it brings");
const MADE_BEFORE: Declared = Err("its frames are all there when it is made");

pub const BACKENDS: &[Backend] = &[
    Backend {
        name: "direct",
        frames: 1..=FRAME_MAX,
        queues: 16,
        resteers: Ok(()),
        live: Ok(()),
        keeps: Ok(()),
        wakes: Ok(()),
        returns: Ok(()),
        outlives: Ok(()),
        holds: Ok(()),
        prepare: || Ok(()),
        make: |near, far, frames| link(LinkKind::Direct, near, far, frames),
    },
    Backend {
        name: "zero_copy",
        frames: 1..=FRAME_MAX,
        queues: 16,
        resteers: Ok(()),
        live: Ok(()),
        keeps: Ok(()),
        wakes: Ok(()),
        returns: Ok(()),
        outlives: Ok(()),
        holds: Err("its buffers change hands"),
        prepare: || Ok(()),
        make: |near, far, frames| link(LinkKind::ZeroCopy { group: "group".into() }, near, far, frames),
    },
    Backend {
        name: "tap",
        frames: ETHERNET_HEADER..=FRAME_MAX,
        queues: 1,
        resteers: Err("has one queue"),
        live: Ok(()),
        keeps: DROPS,
        wakes: Ok(()),
        returns: Ok(()),
        outlives: Ok(()),
        holds: COPIED,
        prepare: prepare_tap,
        make: tap,
    },
    Backend {
        name: "packet",
        frames: ETHERNET_HEADER..=FRAME_MAX,
        queues: 1,
        resteers: Err("has one queue"),
        live: Ok(()),
        keeps: DROPS,
        wakes: Ok(()),
        returns: Ok(()),
        outlives: Ok(()),
        holds: COPIED,
        prepare: namespace::enter,
        make: packet,
    },
    Backend {
        name: "synthetic",
        frames: 1..=FRAME_MAX,
        queues: 16,
        resteers: MADE_BEFORE,
        live: MADE_BEFORE,
        keeps: Err("takes everything"),
        wakes: MADE_BEFORE,
        returns: Err("has no peer"),
        outlives: Err("has no peer"),
        holds: Ok(()),
        prepare: || Ok(()),
        make: synthetic,
    },
];

/// Linux takes no frame that is shorter.
const ETHERNET_HEADER: usize = 14;
/// With which an interface carries the longest frames.
const MTU: usize = FRAME_MAX - ETHERNET_HEADER;

fn turn() -> u32 {
    static TURN: AtomicU32 = AtomicU32::new(0);
    TURN.fetch_add(1, Ordering::Relaxed)
}

fn link(kind: LinkKind, near: PortInfo, far: PortInfo, frames: Vec<Vec<u8>>) -> Rig {
    let bench = Bench::of(&format!("conformance{}", turn()), kind);
    let (near, far) = bench.joined(near, far);
    let options = bench.options("b");
    let open = move || {
        let _of_this_broker = &bench;
        port::open("p", &options).unwrap()
    };
    Rig::new(near, Far::port(far, open), frames)
}

fn prepare_tap() -> Result<(), String> {
    std::fs::metadata("/dev/net/tun").map_err(|error| format!("no /dev/net/tun ({error})"))?;
    namespace::enter()
}

fn tap(_near: PortInfo, _far: PortInfo, frames: Vec<Vec<u8>>) -> Rig {
    let name = format!("kt{}", turn());
    let port = namespace::open(&format!("tap:{name}"));
    namespace::ip(&format!("link set {name} mtu {MTU}"));
    namespace::up(&[&name]);
    between(port, format!("packet:{name}"), frames)
}

fn packet(_near: PortInfo, _far: PortInfo, frames: Vec<Vec<u8>>) -> Rig {
    let turn = turn();
    let [near, far] = ["kv", "kw"].map(|name| format!("{name}{turn}"));
    namespace::ip(&format!("link add {near} mtu {MTU} type veth peer name {far} mtu {MTU}"));
    namespace::up(&[&near, &far]);
    between(namespace::open(&format!("packet:{near}")), format!("packet:{far}"), frames)
}

fn between(near: Port, far: String, frames: Vec<Vec<u8>>) -> Rig {
    let open = move || namespace::open(&far);
    Rig::new(near, Far::port(open(), open), frames)
}

fn synthetic(near: PortInfo, _far: PortInfo, frames: Vec<Vec<u8>>) -> Rig {
    let (port, captured) = Synthetic::new(frames).once().info(near).open_captured();
    Rig::new(port, Far::Memory(captured), Vec::new())
}
