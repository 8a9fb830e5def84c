//! What daemon and keeper say to each other: a question, an answer, each a line of JSON.

use serde::{Deserialize, Serialize};

/// A question of the daemon.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Who are you?
    Hello,
    /// Hold the descriptor beside this line, in place of one of the same label.
    Store { label: String },
    /// Hold it no longer.
    Discard { label: String },
    /// What do you hold?
    Labels,
    /// A copy of what is held, beside the answer.
    Fetch { label: String },
    /// Be the parent of this program; its standard streams are the three descriptors beside this line.
    Spawn { command: runtime::CommandLine },
    /// How did this child end? It is forgotten with the answer.
    Reap { pid: i32 },
    /// End when I do.
    Stop,
}

/// An answer of the keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Hello {
        pid: i32,
        restarts: u64,
        stay: bool,
    },
    Done,
    Labels {
        labels: Vec<String>,
    },
    Spawned {
        pid: i32,
    },
    /// None: it runs yet, or never was this keeper's child.
    Ended {
        status: Option<i32>,
    },
    Failed {
        message: String,
    },
}
