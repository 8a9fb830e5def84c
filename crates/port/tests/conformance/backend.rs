//! The backends, and what each declares.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};

use port::synthetic::Synthetic;
use port::{FRAME_MAX, Port, PortInfo};
use vport::broker::LinkKind;

use crate::bench::Bench;
use crate::namespace;
use crate::rig::{Far, Rig};

/// Whether a backend has an ability, or why it has not.
pub type Declared = Result<(), &'static str>;

/// A backend. It must pass the tests of whatever it declares.
pub struct Backend {
    pub name: &'static str,
    /// Lengths of frames that it carries, in bytes.
    pub frames: RangeInclusive<usize>,
    /// Most queue pairs that a port of it can be opened with, frames spread over them by the port's steering.
    pub queues: u16,
    /// Which queue owns which bucket can be changed while packets flow.
    pub resteers: Declared,
    /// Frames may come at any time, from a far end that the test holds.
    pub live: Declared,
    /// What finds no room, or no peer, is refused; what was accepted arrives as long as the peer lives.
    pub keeps: Declared,
    /// A descriptor becomes readable when an armed queue has something to do.
    pub wakes: Declared,
    /// The far end may be closed and opened again.
    pub returns: Declared,
    /// Makes the surroundings of a test, for this thread. Says why that cannot be.
    pub prepare: fn() -> Result<(), String>,
    /// Makes a port at which the frames arrive, and the far end of it, a port with the second description.
    make: fn(PortInfo, PortInfo, Vec<Vec<u8>>) -> Rig,
}

const DROPS: Declared = Err("the kernel drops what does not fit");
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
        prepare: || Ok(()),
        make: synthetic,
    },
];

/// Linux takes no frame that is shorter.
const ETHERNET_HEADER: usize = 14;
/// With which an interface carries the longest frames.
const MTU: usize = FRAME_MAX - ETHERNET_HEADER;

impl Backend {
    /// A port at which nothing arrives but what is sent to it.
    pub fn open(&self) -> Rig {
        self.open_with(Vec::new())
    }

    /// A port at which `frames` arrive.
    pub fn open_with(&self, frames: Vec<Vec<u8>>) -> Rig {
        (self.make)(PortInfo::named("p"), PortInfo::named("p"), frames)
    }

    /// A port as described, at which `frames` arrive from a far end with so many queues.
    pub fn open_as(&self, near: PortInfo, far_queues: u16, frames: Vec<Vec<u8>>) -> Rig {
        assert!(near.queues <= self.queues);
        (self.make)(near, PortInfo { queues: far_queues, ..PortInfo::named("p") }, frames)
    }

    /// Those of `lengths` that it carries.
    pub fn carried(&self, lengths: impl IntoIterator<Item = usize>) -> Vec<usize> {
        lengths.into_iter().filter(|len| self.frames.contains(len)).collect()
    }

    /// Whether there can be several queues.
    pub fn steers(&self) -> Declared {
        if self.queues > 1 { Ok(()) } else { Err("has one queue") }
    }
}

/// What can be seen from outside is declared as it is.
pub fn it_declares_what_its_ports_show(backend: &Backend) -> Declared {
    let rig = backend.open();
    assert_eq!(rig.port.steering().is_some(), backend.resteers.is_ok());
    assert_eq!(rig.port.queues[0].rx.poll_fds().is_empty(), backend.wakes.is_err());
    assert_eq!(matches!(rig.far, Far::Port { .. }), backend.live.is_ok());
    if backend.steers().is_ok() {
        let near = PortInfo { queues: backend.queues, ..PortInfo::named("p") };
        assert_eq!(backend.open_as(near, 1, Vec::new()).port.queues.len(), usize::from(backend.queues));
    }
    Ok(())
}

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

/// All declarations, as the documentation shows them.
pub fn table() -> String {
    fn word(declared: Declared) -> String {
        declared.map_or_else(|reason| format!("no: {reason}"), |()| "yes".to_owned())
    }
    type Column = fn(&Backend) -> String;
    let rows: [(&str, Column); 8] = [
        ("", |backend| format!("`{}`", backend.name)),
        ("`frames`: lengths, in bytes", |backend| format!("{}-{}", backend.frames.start(), backend.frames.end())),
        ("`queues`: at most, steered to by key", |backend| backend.queues.to_string()),
        ("`resteers`: buckets change their queues", |backend| word(backend.resteers)),
        ("`live`: frames may come at any time", |backend| word(backend.live)),
        ("`keeps`: refuses what does not fit, loses nothing", |backend| word(backend.keeps)),
        ("`wakes`: a descriptor ends a sleep", |backend| word(backend.wakes)),
        ("`returns`: the far end may go and come back", |backend| word(backend.returns)),
    ];
    let mut table = String::new();
    for (n, (name, column)) in rows.iter().enumerate() {
        let cells: Vec<_> = BACKENDS.iter().map(column).collect();
        table += format!("| {name} | {} |\n", cells.join(" | ")).replacen("|  |", "| |", 1).as_str();
        if n == 0 {
            table += &format!("|{}\n", "---|".repeat(BACKENDS.len() + 1));
        }
    }
    table
}
