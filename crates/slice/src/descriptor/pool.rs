//! A pool: a function that has replicas.

use super::Function;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Replicas of a function, behind its ports: what a port receives is shared out among them by its steering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pool {
    /// How many there are, until `kaista scale` says otherwise. If absent, as many as there happen to be; one at first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16))]
    pub replicas: Option<u16>,
    /// How many there can be, without touching the links.
    #[schemars(range(min = 1, max = 16))]
    pub max: u16,
}

impl Pool {
    /// Most queue pairs that the replicas have of one port, together.
    pub const QUEUES_MAX: u16 = 16;

    /// How many replicas there are to be.
    pub fn replicas(&self) -> u16 {
        self.replicas.unwrap_or(1)
    }
}

impl Function {
    /// Names of its containers: its own name, or those of a pool's replicas.
    pub fn containers(&self) -> Vec<String> {
        self.numbered(self.pool.map_or(1, |pool| pool.replicas()))
    }

    /// Names of all containers that it can have without being described anew.
    pub fn members(&self) -> Vec<String> {
        self.numbered(self.pool.map_or(1, |pool| pool.max))
    }

    fn numbered(&self, count: u16) -> Vec<String> {
        match self.pool {
            None => vec![self.name.clone()],
            Some(_) => (1..=count).map(|number| format!("{}-{number}", self.name)).collect(),
        }
    }
}
