//! A backend, and what it declares.

use std::ops::RangeInclusive;

use port::{PortInfo, Steering};

use crate::rig::{Far, Rig, frame};

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
    /// What was accepted arrives though whoever sent it has left since.
    pub outlives: Declared,
    /// What was received can stay where it is until it is given back, and be taken from there by another thread.
    pub holds: Declared,
    /// Makes the surroundings of a test, for this thread. Says why that cannot be.
    pub prepare: fn() -> Result<(), String>,
    /// Makes a port at which the frames arrive, and the far end of it, a port with the second description.
    pub make: fn(PortInfo, PortInfo, Vec<Vec<u8>>) -> Rig,
}

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
    let mut port = backend.open_with(vec![frame(0, 60)]).port;
    assert_eq!(port.queues[0].rx.recv_held(Steering::None).is_some(), backend.holds.is_ok());
    if backend.steers().is_ok() {
        let near = PortInfo { queues: backend.queues, ..PortInfo::named("p") };
        assert_eq!(backend.open_as(near, 1, Vec::new()).port.queues.len(), usize::from(backend.queues));
    }
    Ok(())
}

/// All declarations, as the documentation shows them.
pub fn table(backends: &[Backend]) -> String {
    fn word(declared: Declared) -> String {
        declared.map_or_else(|reason| format!("no: {reason}"), |()| "yes".to_owned())
    }
    type Column = fn(&Backend) -> String;
    let rows: [(&str, Column); 10] = [
        ("", |backend| format!("`{}`", backend.name)),
        ("`frames`: lengths, in bytes", |backend| format!("{}-{}", backend.frames.start(), backend.frames.end())),
        ("`queues`: at most, steered to by key", |backend| backend.queues.to_string()),
        ("`resteers`: buckets change their queues", |backend| word(backend.resteers)),
        ("`live`: frames may come at any time", |backend| word(backend.live)),
        ("`keeps`: refuses what does not fit, loses nothing", |backend| word(backend.keeps)),
        ("`wakes`: a descriptor ends a sleep", |backend| word(backend.wakes)),
        ("`returns`: the far end may go and come back", |backend| word(backend.returns)),
        ("`outlives`: what was sent arrives, the sender gone", |backend| word(backend.outlives)),
        ("`holds`: other threads take frames from where they lie", |backend| word(backend.holds)),
    ];
    let mut table = String::new();
    for (n, (name, column)) in rows.iter().enumerate() {
        let cells: Vec<_> = backends.iter().map(column).collect();
        table += format!("| {name} | {} |\n", cells.join(" | ")).replacen("|  |", "| |", 1).as_str();
        if n == 0 {
            table += &format!("|{}\n", "---|".repeat(backends.len() + 1));
        }
    }
    table
}
