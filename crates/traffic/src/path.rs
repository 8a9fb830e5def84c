//! A path to load: the port that packets go into, and where they are looked for at its end.

use std::time::Duration;

use crate::generator::Generator;
use crate::sink::Sink;
use crate::station::Station;

/// Where packets that went through the path are looked for.
pub enum End {
    /// Not in this process.
    Elsewhere,
    /// At another port.
    At(Station),
    /// At the port that they went into: a reflector sends them back.
    Mirrored,
}

/// The two ends of a path.
pub struct Path {
    /// Where packets go in.
    pub into: Station,
    /// Where they come out.
    pub end: End,
}

impl Path {
    /// Has `generator` send what is due at `now_ns`, and `sink` take what has come out. Returns how many packets were offered.
    #[inline]
    pub fn turn(&mut self, generator: &mut Generator, sink: &mut Sink, now_ns: u64) -> usize {
        let offered = generator.turn(self.into.queue.tx.as_mut(), now_ns);
        if !matches!(self.end, End::Mirrored) {
            self.into.answer_pending();
        }
        self.take(sink, now_ns);
        offered
    }

    /// Takes turns until `end_ns` by `clock`, or until it is to `stop`, and stops the generator. Returns the time at which that was.
    pub fn run(
        &mut self,
        generator: &mut Generator,
        sink: &mut Sink,
        end_ns: u64,
        clock: &mut dyn FnMut() -> u64,
        stop: &dyn Fn() -> bool,
    ) -> u64 {
        let mut now = clock();
        while now < end_ns && !stop() {
            let offered = self.turn(generator, sink, now);
            now = clock();
            // Sleep through long gaps, but wake in time to be punctual.
            if offered == 0 && matches!(self.end, End::Elsewhere) {
                let gap = generator.next_due_ns().saturating_sub(now);
                if gap > 200_000 {
                    std::thread::sleep(Duration::from_nanos((gap - 100_000).min(10_000_000)));
                    now = clock();
                }
            }
        }
        // What has become due since, before the end.
        let end_ns = now.min(end_ns);
        self.turn(generator, sink, end_ns.saturating_sub(1));
        generator.stop(end_ns);
        now
    }

    /// Takes packets until none comes any more. While some of those `accepted` have not come, that takes longer to believe.
    pub fn drain(&mut self, sink: &mut Sink, accepted: u64, clock: &mut dyn FnMut() -> u64, stop: &dyn Fn() -> bool) {
        if matches!(self.end, End::Elsewhere) {
            return;
        }
        let mut last = clock();
        while !stop() {
            let (now, before) = (clock(), sink.received());
            let quiet = Duration::from_millis(if sink.distinct() < accepted { 1_000 } else { 200 });
            if now - last >= quiet.as_nanos() as u64 {
                return;
            }
            self.take(sink, now);
            // What others send there is no reason to wait on.
            if sink.received() > before {
                last = now;
            }
        }
    }

    #[inline]
    fn take(&mut self, sink: &mut Sink, now_ns: u64) -> usize {
        match &mut self.end {
            End::Elsewhere => 0,
            End::At(station) => station.take(sink, now_ns),
            End::Mirrored => self.into.take(sink, now_ns),
        }
    }
}
