//! What a new version of the tables has workers do for their sessions.

use port::{HEAD_MAX, PacketRef};

use super::{Exits, Hands, classify_frame};
use crate::buffers::Frame;
use crate::drops::DropReason;
use crate::mail::Outbox;
use crate::packet::{end_marker_frame, matching};
use crate::path::Tunnel;
use crate::policer::carry_over;
use crate::tables::{BUCKETS, Bucket, News, Version};

/// Packets that have waited long enough and are dropped together: each takes some hundred nanoseconds, and others wait.
const EXPIRED_AT_ONCE: usize = 256;

/// So many news ahead lines are asked for at which nobody may have looked for long.
const AHEAD: usize = 16;

impl Hands {
    /// What the new version brings for sessions of this worker: before any packet is treated by it, and after all that were
    /// treated by the one before.
    #[cold]
    pub(super) fn hear(&mut self, tables: &Version, serial: u64, exits: &mut Exits) {
        let news = tables.news();
        self.moving.adopt(serial, news.clone());
        let is_news: [bool; BUCKETS] = std::array::from_fn(|bucket| self.moving.is_news(bucket as Bucket));
        self.hear_of(tables, &news, exits, |home| is_news[usize::from(home) % BUCKETS]);
    }

    /// Has those of the news done that concern sessions with such home buckets.
    pub(super) fn hear_of(
        &mut self,
        tables: &Version,
        news: &[News],
        exits: &mut Exits,
        is_meant: impl Fn(Bucket) -> bool,
    ) {
        for (at, next) in news.iter().enumerate() {
            if let Some(News::CarryOver { from, to, home }) = news.get(at + AHEAD)
                && is_meant(*home)
            {
                [from, to].into_iter().for_each(|word| tables.ask_tokens(*word));
            }
            let home = next.home();
            if !is_meant(home) {
                continue;
            }
            let sends = matches!(next, News::EndMarker { .. } | News::Release { .. });
            if sends && self.owners[usize::from(home) % BUCKETS] != self.index {
                self.moving.sends();
            }
            match next {
                News::CarryOver { from, to, .. } => {
                    if let (Some(from), Some(to)) = (tables.tokens(*from), tables.tokens(*to)) {
                        carry_over(from, to);
                    }
                }
                News::EndMarker { marker, .. } => self.send_end_marker(tables, marker, exits),
                News::Discard { up_seid, .. } => {
                    for frame in self.state.buffers.take(home, *up_seid) {
                        self.discard(tables, &frame, DropReason::BufferDiscarded);
                    }
                }
                News::Release { up_seid, .. } => {
                    for Frame { port, octets: frame, .. } in self.state.buffers.take(home, *up_seid) {
                        let class = classify_frame(tables, port, &frame);
                        // The session's home may be another one by now.
                        if class.home(tables).is_none_or(|home| self.moving.holds(home)) {
                            self.serve_one(tables, port, &class, &frame, exits);
                        } else {
                            self.hand_over(self.owner(tables, &class), port, &PacketRef::from_slice(&frame));
                        }
                    }
                }
            }
        }
        self.workers.iter_mut().flatten().for_each(Outbox::deliver);
    }

    /// Drops packets that have waited long enough. Where there are many, the next calls have the others.
    #[cold]
    pub(super) fn expire(&mut self, tables: &Version) {
        for frame in self.state.buffers.expire(self.now(), EXPIRED_AT_ONCE) {
            self.discard(tables, &frame, DropReason::BufferExpired);
        }
        self.state.alarms.deliver();
    }

    /// A packet that waited is not sent any more.
    fn discard(&mut self, tables: &Version, frame: &Frame, reason: DropReason) {
        self.drops.count(reason);
        let (class, frame) = (classify_frame(tables, frame.port, &frame.octets), &frame.octets);
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
