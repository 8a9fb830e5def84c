//! Links of a broker in this process, for functions in this process and in others.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use port::{OpenOptions, PortInfo, QueuePair};
use vport::broker::{Broker, Config, EndSpec, LinkKind, LinkSpec, RING_BYTES_DEFAULT};

use crate::folder::Folder;

/// The broker, and a socket for each function.
pub struct Links {
    folder: Folder,
    broker: Broker,
}

impl Links {
    /// Direct links between the given ends. Every function gets a socket.
    pub fn new(links: impl IntoIterator<Item = [EndSpec; 2]>) -> anyhow::Result<Self> {
        Self::of_kind(&LinkKind::Direct, RING_BYTES_DEFAULT, links)
    }

    /// Links of one kind between the given ends, with rings of so many bytes. Every function gets a socket.
    pub fn of_kind(
        kind: &LinkKind,
        ring_bytes: u32,
        links: impl IntoIterator<Item = [EndSpec; 2]>,
    ) -> anyhow::Result<Self> {
        let folder = Folder::new()?;
        let broker = Broker::start(Config::default(), |_| {})?;
        let mut functions = Vec::new();
        for (number, ends) in links.into_iter().enumerate() {
            for function in ends.iter().flat_map(|end| &end.functions) {
                if !functions.contains(function) {
                    broker.listen(function, Broker::bind(&folder.path().join(function))?, 0..u32::MAX)?;
                    functions.push(function.clone());
                }
            }
            broker.add_link(LinkSpec { name: number.to_string(), ends, ring_bytes, kind: kind.clone() })?;
        }
        Ok(Self { folder, broker })
    }

    /// The socket by which `function` gets its ports.
    pub fn socket(&self, function: &str) -> PathBuf {
        self.folder.path().join(function)
    }

    /// Waits until both ends of every link are open.
    pub fn come_up(&self, patience: Duration) -> anyhow::Result<()> {
        let begin = Instant::now();
        while !self.broker.ports()?.iter().all(|port| port.up) {
            anyhow::ensure!(begin.elapsed() < patience, "links do not come up");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// The queue of a port that this process holds itself.
    pub fn open(&self, function: &str, port: &str) -> anyhow::Result<QueuePair> {
        let options = OpenOptions { socket: self.socket(function), ..OpenOptions::default() };
        port::open(port, &options)?.queues.into_iter().next().context("a port has a queue")
    }
}

/// An end of a link: a port that carries frames of any length.
pub fn end(function: &str, port: &str) -> EndSpec {
    let mut info = PortInfo::named(port);
    info.mtu = 9_586;
    EndSpec::of(function.to_owned(), info)
}

#[cfg(test)]
mod tests {
    use port::PacketRef;

    use super::*;

    #[test]
    fn what_one_function_sends_the_other_receives() {
        let links = Links::new([[end("first", "a"), end("second", "b")]]).expect("a broker");
        let mut first = links.open("first", "a").expect("its port");
        let mut second = links.open("second", "b").expect("its port");
        let give_up = Instant::now() + Duration::from_secs(10);
        while first.tx.send(&[PacketRef::from_slice(&[7; 64])]) == 0 {
            assert!(Instant::now() < give_up, "the link does not come up");
        }
        while second.rx.recv().is_empty() {
            assert!(Instant::now() < give_up, "nothing comes");
        }
    }
}
