//! What is told of port blocks: a line when a UE gets one, and one when it goes back.

use std::net::Ipv4Addr;

/// A block is given, or comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whether it is given.
    pub given: bool,
    /// The UE's address; where there are networks behind it, the first one that was used.
    pub ue: Ipv4Addr,
    /// The UPF's SEID of its session.
    pub up_seid: u64,
    /// The address outside.
    pub address: Ipv4Addr,
    /// First and last port.
    pub ports: (u16, u16),
}

/// A worker's end.
#[derive(Debug)]
pub struct Log(rtrb::Producer<Entry>);

/// The end of whoever writes the lines.
#[derive(Debug)]
pub struct LogReader(rtrb::Consumer<Entry>);

/// Entries that may wait to be written.
const CAPACITY: usize = 4_096;

/// From a worker to whoever writes the lines.
pub fn channel() -> (Log, LogReader) {
    let (producer, consumer) = rtrb::RingBuffer::new(CAPACITY);
    (Log(producer), LogReader(consumer))
}

impl Log {
    /// Whether an entry has room. Without, no block is given and none comes back: each is told of.
    pub fn has_room(&self) -> bool {
        self.0.slots() > 0
    }

    /// Leaves an entry, for which there has to be room.
    #[cold]
    pub fn enter(&mut self, entry: Entry) {
        debug_assert!(self.has_room());
        let _ = self.0.push(entry);
    }
}

impl LogReader {
    /// Writes what waits. These lines are kept to no rate, see [`crate::log`].
    pub fn write(&mut self) {
        while let Some(entry) = self.take() {
            let Entry { ue, up_seid, address, ports: (first, last), given } = entry;
            let up_seid = format_args!("{up_seid:#x}");
            match given {
                true => tracing::info!(%ue, %up_seid, %address, first, last, "NAT ports given"),
                false => tracing::info!(%ue, %up_seid, %address, first, last, "NAT ports given back"),
            }
        }
    }

    /// The next entry.
    pub fn take(&mut self) -> Option<Entry> {
        self.0.pop().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::EnvFilter;

    use super::*;

    /// Keeps what is written.
    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Paper {
        fn write(&mut self, octets: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(octets)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_is_told_of_ports_given_is_kept_to_no_rate() {
        let paper = Paper::default();
        let writer = paper.clone();
        let (subscriber, throttle) = crate::log::subscriber(EnvFilter::new("info"), move || writer.clone());
        let (mut log, mut reader) = channel();
        let (ue, address) = (Ipv4Addr::new(10, 45, 0, 1), Ipv4Addr::new(203, 0, 113, 1));
        for first in 0..1_000 {
            log.enter(Entry { given: first % 2 == 0, ue, up_seid: 17, address, ports: (first, first + 1) });
        }
        tracing::subscriber::with_default(subscriber, || {
            reader.write();
            throttle.tell();
        });
        let written = String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<_> = written.lines().collect();
        assert_eq!(lines.len(), 1_000);
        let line = |what, ports| format!("{what} ue=10.45.0.1 up_seid=0x11 address=203.0.113.1 {ports}");
        assert!(lines[0].contains(&line("NAT ports given", "first=0 last=1")), "{}", lines[0]);
        assert!(lines[1].contains(&line("NAT ports given back", "first=1 last=2")), "{}", lines[1]);
    }
}
