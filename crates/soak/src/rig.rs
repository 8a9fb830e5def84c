//! A broker in this process, with a directory of sockets, one for each function.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use vport::broker::{Broker, Config, EndSpec, Event, LinkKind, LinkSpec, RING_BYTES_MIN};
use vport::client::{Attachment, attach};
use vport::info::PortInfo;
use vport::steering::Steering;

/// How long something may take that must happen. Long: the machine may be busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The broker and its directory.
pub struct Rig {
    /// The broker.
    pub broker: Broker,
    /// What it says.
    pub events: Receiver<Event>,
    directory: tempfile::TempDir,
}

impl Rig {
    /// A broker that serves these functions, and no links yet.
    pub fn new(functions: &[&str]) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("kaista-soak-").tempdir()?;
        let (sender, events) = channel();
        // Nobody keeps what is deposited: its descriptors would pile up with every generation until there are no more.
        let tell = move |event| match event {
            Event::Deposit { .. } => {}
            event => drop(sender.send(event)),
        };
        let broker = Broker::start(Config { hugepages: false }, tell)?;
        for function in functions {
            let socket = Broker::bind(&directory.path().join(function))?;
            broker.listen(function, socket, 0..u32::MAX)?;
        }
        Ok(Self { broker, events, directory })
    }

    /// The socket of a function.
    pub fn socket(&self, function: &str) -> PathBuf {
        self.directory.path().join(function)
    }

    /// Starts a process of `program`, in one of its parts, as a function's: its journal is the file in `journals` that has the
    /// function's name. It gets no signals of this one's terminal.
    pub fn start(&self, program: &Path, part: &str, function: &str, journals: &Path, more: &[&OsStr]) -> Result<Child> {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(program);
        command.arg(part).arg("--socket").arg(self.socket(function));
        command.arg("--journal").arg(journals.join(function)).args(more);
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).spawn().context(part.to_owned())
    }

    /// Links two ports of functions, each with a number of queues, steered by UE address. Returns the link's name.
    pub fn link(&self, ends: [(&str, &str, u16); 2]) -> Result<String> {
        self.link_of(LinkKind::Direct, ends)
    }

    /// As [`Rig::link`], of a kind.
    pub fn link_of(&self, kind: LinkKind, ends: [(&str, &str, u16); 2]) -> Result<String> {
        let [(one, port, queues), (other, its_port, its_queues)] = ends;
        self.add(kind, [(&[one], port, queues), (&[other], its_port, its_queues)])
    }

    /// As [`Rig::link`]; an end with several functions is a pool, of which each member has so many queues.
    pub fn link_pools(&self, ends: [(&[&str], &str, u16); 2]) -> Result<String> {
        self.add(LinkKind::Direct, ends)
    }

    fn add(&self, kind: LinkKind, ends: [(&[&str], &str, u16); 2]) -> Result<String> {
        let name = ends.map(|(functions, port, _)| format!("{}.{port}", functions[0])).join("-");
        let ends = ends.map(|(functions, port, queues)| {
            let port = PortInfo { queues, steering: Steering::UeAddress, ..PortInfo::named(port) };
            EndSpec { functions: functions.iter().map(|function| (*function).to_owned()).collect(), port }
        });
        self.broker.add_link(LinkSpec { name: name.clone(), ends, ring_bytes: RING_BYTES_MIN, kind })?;
        Ok(name)
    }

    /// Links two ports, and opens both.
    pub fn join(&self, ends: [(&str, &str, u16); 2]) -> Result<[Attachment; 2]> {
        let link = self.link(ends)?;
        let attached = ends.map(|(function, port, _)| attach(&self.socket(function), port, PATIENCE, 192));
        let [one, other] = attached;
        let attached = [one?, other?];
        self.up(&link)?;
        Ok(attached)
    }

    /// Waits until both ends of a link hold it.
    pub fn up(&self, link: &str) -> Result<()> {
        let give_up = Instant::now() + PATIENCE;
        while !self.broker.ports()?.iter().filter(|port| port.link == link).all(|port| port.up) {
            if Instant::now() > give_up {
                bail!("link {link} does not come up");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}
