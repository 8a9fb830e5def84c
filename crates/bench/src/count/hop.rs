//! Packets that go to and fro over a link between two forwarders that take turns in one thread.

use std::time::Duration;

use anyhow::{anyhow, ensure};
use clap::ValueEnum;
use traffic::forwarder::{Addresses, Forwarder};
use vport::broker::RING_BYTES_DEFAULT;

use crate::link::Kind;
use crate::links::{Links, end};

/// Bytes of a frame.
const FRAME: usize = 64;
/// Frames on their way: as many as two of the longest bursts.
const FRAMES: usize = 2 * port::LONG_BURST_MAX;
/// How long a link may take to come up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two forwarders, and what lies between them.
pub(super) struct Hops {
    forwarders: [Forwarder; 2],
    received: u64,
    _links: Links,
}

impl Hops {
    /// Over a link of this kind.
    pub(super) fn over(kind: Kind) -> anyhow::Result<Self> {
        let links = Links::of_kind(&kind.of_links(), RING_BYTES_DEFAULT, [[end("first", "a"), end("second", "b")]])?;
        let mut ends = [links.open("first", "a")?, links.open("second", "b")?];
        links.come_up(PATIENCE)?;
        // A sender learns with its peer's first receive where it may send.
        ends.iter_mut().for_each(|end| _ = end.rx.recv());
        let addresses =
            Addresses::from_str(kind.addresses(), false).map_err(|name| anyhow!("{name}: no such addresses"))?;
        let mut forwarders = ends.map(|end| Forwarder::within(end, addresses));
        let accepted = forwarders[0].send_first(0, FRAMES, FRAME);
        ensure!(accepted == FRAMES, "the link takes {accepted} frames of {FRAMES}");
        Ok(Self { forwarders, received: 0, _links: links })
    }

    /// Lets each forwarder send on what it finds. Hops taken so far.
    pub(super) fn turn(&mut self) -> u64 {
        self.received += self.forwarders.iter_mut().map(|forwarder| forwarder.turn() as u64).sum::<u64>();
        self.received
    }
}
