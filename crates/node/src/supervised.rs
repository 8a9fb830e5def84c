//! The life of a process that is kept running: container or pump.

use std::time::{Duration, Instant};

use slice::Restart;

use crate::backoff::{Backoff, LONGEST};
use crate::control::ProcessState;
use crate::logs::now_ns;
use crate::process::{Process, ProcessId};
use crate::record::ProcessRecord;

/// What has a process that is kept running.
pub(crate) trait Supervise {
    /// Its process's life.
    fn run(&mut self) -> &mut Supervised;

    /// Starts the process.
    fn start(&mut self) -> anyhow::Result<()>;

    /// The process ended by itself.
    fn ended(&mut self);

    /// Notices an end, and starts the process when that is due. Whether anything changed; `of` says whose it is.
    fn look_after(&mut self, of: &str) -> bool {
        let ended = self.run().process().is_some_and(|process| process.has_ended());
        if ended {
            self.ended();
        }
        let due = self.run().is_due();
        if due && let Err(e) = self.start() {
            tracing::error!("slice {of}: {e:#}");
            self.run().failed_to_start();
        }
        ended || due
    }
}

/// A process that is started again when it ends, as its policy says.
#[derive(Debug, Default)]
pub(crate) struct Supervised {
    process: Option<Process>,
    started: Option<Instant>,
    /// When to start it, if it does not run and shall.
    start_at: Option<Instant>,
    backoff: Backoff,
    history: ProcessRecord,
}

impl Supervised {
    /// Goes on with what a former daemon supervised, as that would have: what does not run any more, and shall, is started when it
    /// was to be, and what has ended unseen as if it had just been seen to.
    pub(crate) fn adopt(record: &ProcessRecord) -> Self {
        let (now, now_ms) = (Instant::now(), now_ns() / 1_000_000);
        let age = record.started_ms.map(|at| Duration::from_millis(now_ms.saturating_sub(at)));
        let mut adopted = Self {
            process: record.process.and_then(Process::open),
            started: age.and_then(|age| now.checked_sub(age)),
            start_at: None,
            backoff: Backoff::after(record.quick_ends),
            history: record.clone(),
        };
        if adopted.process.is_some() || record.ended {
            return adopted;
        }
        match record.start_at_ms {
            // Clocks may have been set meanwhile.
            Some(at) => adopted.start_at = Some(now + Duration::from_millis(at.saturating_sub(now_ms)).min(LONGEST)),
            None if record.process.is_some() => {
                adopted.history.restarts += 1;
                adopted.history.last_exit = Some("unseen".into());
                adopted.start_later(adopted.started);
            }
            None => adopted.start_at = Some(now),
        }
        adopted
    }

    /// It runs.
    pub(crate) fn started(&mut self, process: Process) {
        self.started = Some(Instant::now());
        self.start_at = None;
        self.history.start_at_ms = None;
        self.history.heir = None;
        self.history.process = Some(process.id);
        self.history.started_ms = Some(now_ns() / 1_000_000);
        self.history.ended = false;
        self.process = Some(process);
    }

    /// It runs in the function's second container, or in the first.
    pub(crate) fn set_second(&mut self, second: bool) {
        self.history.second = second;
    }

    /// Another process has what it had, and is to be in its place.
    pub(crate) fn hand_over_to(&mut self, heir: ProcessId) {
        self.history.heir = Some(heir);
    }

    /// It could not be started; it is tried again.
    pub(crate) fn failed_to_start(&mut self) {
        self.start_later(None);
    }

    /// Started so, it has ended; it is to be started again.
    fn start_later(&mut self, started: Option<Instant>) {
        let now = Instant::now();
        let delay = self.backoff.ended(started, now);
        self.start_at = Some(now + delay);
        self.history.start_at_ms = Some(now_ns() / 1_000_000 + delay.as_millis() as u64);
        self.history.quick_ends = self.backoff.quick_ends();
    }

    /// It ended: with an exit code, by minus a signal, or nobody knows how. Whether it will be started again.
    pub(crate) fn ended(&mut self, status: Option<i32>, policy: Restart) -> bool {
        self.process = None;
        self.history.last_exit = Some(describe(status));
        let again = match policy {
            Restart::Always => true,
            Restart::OnFailure => status != Some(0),
            Restart::Never => false,
        };
        if again {
            self.history.restarts += 1;
            self.start_later(self.started);
        }
        self.history.ended = !again;
        again
    }

    /// It was stopped on purpose, and is not to be started again by itself.
    pub(crate) fn stopped(&mut self) {
        self.process = None;
        self.start_at = None;
        self.history.start_at_ms = None;
    }

    /// The process, while it runs.
    pub(crate) fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// It was never started, or was stopped on purpose.
    pub(crate) fn is_idle(&self) -> bool {
        self.process.is_none() && self.start_at.is_none() && !self.history.ended
    }

    /// When to start it next.
    pub(crate) fn start_at(&self) -> Option<Instant> {
        self.start_at
    }

    /// Whether it is to be started now.
    pub(crate) fn is_due(&self) -> bool {
        self.start_at.is_some_and(|at| at <= Instant::now() + Duration::from_micros(500))
    }

    /// Its history, to be kept.
    pub(crate) fn record(&self) -> &ProcessRecord {
        &self.history
    }

    /// How it is.
    pub(crate) fn state(&self) -> ProcessState {
        match (&self.process, self.history.ended) {
            (Some(_), _) => ProcessState::Running,
            (None, true) => ProcessState::Ended,
            (None, false) => ProcessState::Waiting,
        }
    }
}

fn describe(status: Option<i32>) -> String {
    match status {
        Some(code @ 0..) => format!("exit {code}"),
        Some(signal) => format!("signal {}", -signal),
        None => "unseen".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_decide_by_how_it_ended() {
        let restarts = |policy, status| Supervised::default().ended(status, policy);
        assert!(restarts(Restart::Always, Some(0)));
        assert!(restarts(Restart::OnFailure, Some(1)));
        assert!(restarts(Restart::OnFailure, Some(-9)));
        assert!(restarts(Restart::OnFailure, None));
        assert!(!restarts(Restart::OnFailure, Some(0)));
        assert!(!restarts(Restart::Never, Some(1)));
    }

    #[test]
    fn what_ended_for_good_stays_so_after_adoption_and_what_vanished_is_started() {
        let mut once = Supervised::default();
        once.ended(Some(3), Restart::Never);
        assert_eq!(once.state(), ProcessState::Ended);
        assert_eq!(Supervised::adopt(once.record()).start_at(), None);
        assert_eq!(once.record().last_exit.as_deref(), Some("exit 3"));

        let gone = ProcessRecord {
            process: Some(crate::process::ProcessId { pid: i32::MAX, start: 1 }),
            ..Default::default()
        };
        let adopted = Supervised::adopt(&gone);
        assert!(adopted.start_at().is_some());
        assert_eq!(adopted.record().restarts, 1);
    }

    #[test]
    fn delays_go_on_where_a_former_daemon_was() {
        let delay = |one: &Supervised| one.start_at().unwrap().saturating_duration_since(Instant::now()).as_millis();
        let mut one = Supervised::default();
        for _ in 0..5 {
            one.ended(Some(1), Restart::Always);
        }
        assert!((700..=800).contains(&delay(&one)));
        let mut next = Supervised::adopt(one.record());
        assert!((600..=800).contains(&delay(&next)), "it is started when it was to be: {}", delay(&next));
        assert_eq!((next.record().restarts, next.state()), (5, ProcessState::Waiting));
        next.failed_to_start();
        assert!((1_500..=1_600).contains(&delay(&next)), "{}", delay(&next));

        let gone = ProcessId { pid: i32::MAX, start: 1 };
        let unseen = ProcessRecord { process: Some(gone), start_at_ms: None, ..next.record().clone() };
        assert!((3_100..=3_200).contains(&delay(&Supervised::adopt(&unseen))), "what nobody saw end was quick, too");
        let far = ProcessRecord { start_at_ms: Some(u64::MAX), ..unseen };
        assert!(delay(&Supervised::adopt(&far)) <= 5_000);
    }
}
