//! What a new version of the tables has workers do for their sessions.

use port::{HEAD_MAX, PacketRef};

use super::{Exits, Hands, classify_frame};
use crate::drops::DropReason;
use crate::packet::{end_marker_frame, matching};
use crate::path::Tunnel;
use crate::side::PortId;
use crate::tables::{Bucket, News, Version};

impl Hands {
    /// What the new version brings for sessions of this worker: before any packet is treated by it, and after all that were
    /// treated by the one before.
    #[cold]
    pub(super) fn hear(&mut self, tables: &Version, serial: u64, exits: &mut Exits) {
        self.moving.adopt(serial);
        self.hear_of(tables, exits, |_| true);
    }

    /// The same of sessions with these home buckets.
    pub(super) fn hear_of(&mut self, tables: &Version, exits: &mut Exits, is_meant: impl Fn(Bucket) -> bool) {
        for news in tables.news() {
            let home = news.home();
            if !is_meant(home) || !self.moving.is_news(home) {
                continue;
            }
            match news {
                News::EndMarker { marker, .. } => self.send_end_marker(tables, marker, exits),
                News::Discard { up_seid, .. } => {
                    for (port, frame) in self.state.buffers.take(home, *up_seid) {
                        self.discard(tables, port, &frame);
                    }
                }
                News::Release { up_seid, .. } => {
                    for (port, frame) in self.state.buffers.take(home, *up_seid) {
                        let class = classify_frame(tables, port, &frame);
                        self.serve_one(tables, port, &class, &frame, exits);
                    }
                }
            }
        }
    }

    /// A packet that waited is not sent any more.
    fn discard(&mut self, tables: &Version, from: PortId, frame: &[u8]) {
        self.drops.count(DropReason::BufferDiscarded);
        let class = classify_frame(tables, from, frame);
        if let Some(rule) = matching(tables, &class, &frame[..frame.len().min(HEAD_MAX)]) {
            rule.usages(tables).lose(class.octets(), &mut self.state.alarms);
        }
    }

    /// Nothing was sent to a neighbour that is not resolved, and so there is nothing to mark the end of.
    fn send_end_marker(&mut self, tables: &Version, marker: &Tunnel, exits: &mut Exits) {
        let Some((port, frame)) = end_marker_frame(tables, marker) else { return };
        self.send(port, &[PacketRef::from_slice(&frame)], exits);
    }
}
