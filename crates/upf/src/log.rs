//! What the UPF says to standard error: lines with fields, and of each kind so many a second, whoever causes them.
//!
//! Lines of one kind are those of one place in the program. Peers cause many of them, at the price of a datagram each; what
//! they cause beyond the rate is left out and counted, and the count is told.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tracing::callsite::Identifier;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Filter, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer};

use crate::limiter::Limiter;

/// Lines of one kind a second.
const PER_SECOND: u64 = 10;
/// Lines of one kind at once, after a pause.
const BURST: u64 = 20;

/// Where lines are from that are kept to no rate: who had which ports when has to be known without a gap (RFC 6888, 4), and UEs
/// get blocks of ports at a bounded rate.
const UNTHROTTLED: [&str; 2] = [module_path!(), "upf::nat::log"];

/// Keeps lines of one kind to their rate. Clones are the same.
#[derive(Clone, Debug)]
pub struct Throttle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    start: Instant,
    kinds: Mutex<HashMap<Identifier, Kind>>,
}

#[derive(Debug)]
struct Kind {
    limiter: Limiter,
    left_out: u64,
}

/// A subscriber that writes to `to` what `filter` lets pass, and the throttle that it goes by.
pub fn subscriber<W>(filter: EnvFilter, to: W) -> (impl Subscriber + Send + Sync, Throttle)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let throttle = Throttle(Arc::new(Shared { start: Instant::now(), kinds: Mutex::default() }));
    let lines = tracing_subscriber::fmt::layer().with_writer(to).with_filter(throttle.clone());
    (tracing_subscriber::registry().with(filter).with(lines), throttle)
}

impl Throttle {
    /// Says how many lines were left out since the last call, for each kind of which some were. Called once a second.
    pub fn tell(&self) {
        let kinds: Vec<_> = {
            let mut kinds = self.kinds();
            let taken = kinds.iter_mut().filter(|(_, kind)| kind.left_out > 0);
            taken.map(|(place, kind)| (place.clone(), std::mem::take(&mut kind.left_out))).collect()
        };
        for (place, left_out) in kinds {
            let place = place.0.metadata();
            let at = format_args!("{}:{}", place.file().unwrap_or("?"), place.line().unwrap_or(0));
            tracing::warn!(left_out, level = %place.level(), %at, "lines of one kind were too many to be written");
        }
    }

    fn admits(&self, place: &'static Metadata<'static>) -> bool {
        if UNTHROTTLED.contains(&place.target()) {
            return true;
        }
        let now_ns = self.0.start.elapsed().as_nanos() as u64;
        let mut kinds = self.kinds();
        let new = || Kind { limiter: Limiter::new(PER_SECOND, BURST), left_out: 0 };
        let kind = kinds.entry(place.callsite()).or_insert_with(new);
        let admits = kind.limiter.allow(now_ns);
        kind.left_out += u64::from(!admits);
        admits
    }

    fn kinds(&self) -> MutexGuard<'_, HashMap<Identifier, Kind>> {
        self.0.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Subscriber + for<'l> LookupSpan<'l>> Filter<S> for Throttle {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        self.admits(event.metadata())
    }
}

/// A number in hexadecimal, as SEIDs and TEIDs are written.
pub(crate) struct Hex(pub u64);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// What a peer has written, without characters that could move a cursor or make a line of their own.
pub(crate) struct Escaped<T>(pub T);

impl<T: fmt::Display> fmt::Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.to_string().escape_default())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// Keeps what is written.
    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Paper {
        fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(octets)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Paper {
        fn lines(&self) -> Vec<String> {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap().lines().map(str::to_owned).collect()
        }
    }

    #[test]
    fn lines_of_one_kind_are_kept_to_their_rate_and_what_is_left_out_is_counted() {
        let paper = Paper::default();
        let writer = paper.clone();
        let (subscriber, throttle) = subscriber(EnvFilter::new("info"), move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            for peer in 0..10_000 {
                tracing::warn!(peer, "hostile");
                tracing::debug!(peer, "below the level, and so no line of any kind");
            }
            tracing::info!("another kind");
            throttle.tell();
            throttle.tell();
        });
        let lines = paper.lines();
        let written = lines.iter().filter(|line| line.contains("hostile")).count();
        // A slow machine may have earned a few more meanwhile.
        assert!((20..200).contains(&written), "{written}");
        assert!(lines[0].contains("hostile") && lines[0].contains("peer=0"), "{}", lines[0]);
        assert!(lines.iter().any(|line| line.contains("another kind")));
        let told: Vec<_> = lines.iter().filter(|line| line.contains("too many")).collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains(&format!("left_out={}", 10_000 - written)), "{}", told[0]);
        assert!(told[0].contains("level=WARN") && told[0].contains("log.rs:"), "{}", told[0]);
    }
}
