//! How a command ends: its exit status, and what is said when it fails.

use crate::out::{self, Paint, plain};
use node::control::{CallError, EnsureError};
use std::{io, process::ExitCode};

/// The exit status, or why there is none yet.
pub type Outcome = Result<ExitCode, Failure>;

/// Why a command did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// Something went wrong: status 1.
    Failed {
        /// What, where it applies to what, and how to mend it.
        message: String,
        /// More, a line each.
        details: Vec<String>,
    },
    /// The command was asked for wrongly: status 2.
    Usage(String),
    /// Nobody reads the output any more: status 0, for that is how pipelines end.
    OutputClosed,
}

impl Failure {
    /// Something went wrong.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), details: Vec::new() }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Failed(failure) => Self::Failed { message: failure.message, details: failure.details },
            CallError::NotRunning => {
                Self::failed("no kaistad runs here; `kaista up FILE` starts it (is KAISTA_RUN_DIR as it was then?)")
            }
            CallError::HungUp => {
                Self::failed("kaistad ended before it had answered; it is restarted, so try again, and see its log")
            }
            other => Self::failed(other.to_string()),
        }
    }
}

impl From<EnsureError> for Failure {
    fn from(error: EnsureError) -> Self {
        Self::failed(error.to_string())
    }
}

/// An error of writing to standard output; other errors are given their context where they arise.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::failed(format!("cannot write the output: {error}")),
        }
    }
}

/// An error with its causes. A bare one of a pipe that nobody reads is that of the output; what has a context is told with it.
impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        let bare = error.chain().nth(1).is_none().then(|| error.downcast_ref::<io::Error>()).flatten();
        match bare.map(io::Error::kind) {
            Some(io::ErrorKind::BrokenPipe) => Self::OutputClosed,
            _ => Self::failed(format!("{error:#}")),
        }
    }
}

/// What was printed of work whose status counts whoever reads: a closed output is nothing to it.
pub fn printed(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

/// Says what is left to say, and gives the process its exit status.
pub fn exit_code(outcome: Outcome) -> ExitCode {
    let outcome = outcome.and_then(|code| printed(out::flush()).map(|()| code));
    let (status, message, details) = match outcome {
        Ok(code) => return code,
        Err(Failure::OutputClosed) => return ExitCode::SUCCESS,
        Err(Failure::Failed { message, details }) => (1, message, details),
        Err(Failure::Usage(message)) => (2, message, Vec::new()),
    };
    let paint = Paint::stderr();
    out::say(&format!("{} {}", paint.red("error:"), fit(&message)));
    details.iter().for_each(|detail| out::say(&format!("  {}", fit(detail))));
    ExitCode::from(status)
}

/// What may repeat words of functions and images, fit for a terminal: its first lines, and of each what anybody reads.
fn fit(text: &str) -> String {
    const LINES: usize = 100;
    const COLUMNS: usize = 4_000;
    let line = |line: &str| match line.char_indices().nth(COLUMNS) {
        Some((end, _)) => format!("{}...", plain(&line[..end])),
        None => plain(line),
    };
    text.lines().take(LINES).map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    fn broken_pipe() -> anyhow::Result<()> {
        Err(io::Error::from(io::ErrorKind::BrokenPipe).into())
    }

    #[test]
    fn an_error_is_told_with_its_context() {
        let error = io::Error::from(io::ErrorKind::NotFound);
        let failure = Failure::from(anyhow::Error::new(error).context("cannot read report.json"));
        assert!(
            matches!(&failure, Failure::Failed { message, .. } if message == "cannot read report.json: entity not found"),
            "{failure:?}"
        );
    }

    #[test]
    fn what_others_said_is_told_without_what_a_terminal_obeys_and_not_without_end() {
        assert_eq!(fit("what\nwhere\n"), "what\nwhere");
        assert_eq!(fit("a\x1b]0;owned\x07b\rc"), "a\u{fffd}]0;owned\u{fffd}b\u{fffd}c");
        assert_eq!(fit(&"\u{e9}".repeat(1 << 20)).chars().count(), 4_003);
        assert_eq!(fit(&"x\n".repeat(1 << 20)).lines().count(), 100);
    }

    #[test]
    fn only_the_pipe_of_the_output_may_be_closed() {
        let bare = broken_pipe().unwrap_err();
        assert!(matches!(Failure::from(bare), Failure::OutputClosed));
        let others = broken_pipe().context("the measured program ended").unwrap_err();
        assert!(matches!(Failure::from(others), Failure::Failed { .. }));
    }
}
