//! A network function: one container.

use super::{DNS_LABEL, Image, Pool, Port};
use crate::quantity::ByteSize;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::BTreeMap};

/// A network function: one unprivileged container and its ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Function {
    /// Name of the function, a DNS label; unique in the slice.
    #[schemars(extend("format" = "dns-label", "pattern" = DNS_LABEL))]
    pub name: String,
    /// Where its programs come from.
    pub image: Image,
    /// What to run, instead of the image's entrypoint (the image's arguments are then not used either).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub command: Option<Vec<String>>,
    /// Arguments, instead of the image's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Environment variables, over the image's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Directory in which the command starts, instead of the image's; an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "absolute-path"))]
    pub working_directory: Option<String>,
    /// Small files laid over the image, read-only: absolute path to contents.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// Which processor cores it runs on.
    #[serde(default)]
    pub cores: Cores,
    /// Limit of its memory; none if absent. Packet buffers of its ports are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// What happens when its program ends.
    #[serde(default)]
    pub restart: Restart,
    /// Functions with the same trust group may share memory with each other without protection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "dns-label", "pattern" = DNS_LABEL))]
    pub trust_group: Option<String>,
    /// Where, in the container, a writable directory of its own appears that outlives the container; an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "absolute-path"))]
    pub state_directory: Option<String>,
    /// Makes it a pool: a number of replicas behind its ports, which `kaista scale` changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
    /// Its virtual ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub ports: Vec<Port>,
}

/// Which processor cores a function runs on: `shared`, `exclusive`, or `{exclusive: N}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "CoresForm", into = "CoresForm")]
pub enum Cores {
    /// Those that no function has for itself.
    #[default]
    Shared,
    /// This many, which nothing else that Kaista runs may use; for functions that poll.
    Exclusive(u32),
}

impl Cores {
    /// How many cores it takes away from everybody else.
    pub fn exclusive(self) -> u32 {
        match self {
            Self::Shared => 0,
            Self::Exclusive(count) => count,
        }
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(untagged)]
enum CoresForm {
    Word(CoresWord),
    Count { exclusive: u32 },
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum CoresWord {
    Shared,
    Exclusive,
}

impl From<CoresForm> for Cores {
    fn from(form: CoresForm) -> Self {
        match form {
            CoresForm::Word(CoresWord::Shared) => Self::Shared,
            CoresForm::Word(CoresWord::Exclusive) => Self::Exclusive(1),
            CoresForm::Count { exclusive } => Self::Exclusive(exclusive),
        }
    }
}

impl From<Cores> for CoresForm {
    fn from(cores: Cores) -> Self {
        match cores {
            Cores::Shared => Self::Word(CoresWord::Shared),
            Cores::Exclusive(1) => Self::Word(CoresWord::Exclusive),
            Cores::Exclusive(exclusive) => Self::Count { exclusive },
        }
    }
}

impl JsonSchema for Cores {
    fn schema_name() -> Cow<'static, str> {
        "Cores".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Which processor cores a function runs on: `shared` (those that no function has for itself), \
                `exclusive` (one of its own), or `{exclusive: N}`.",
            "anyOf": [
                {"type": "string", "enum": ["shared", "exclusive"]},
                {
                    "type": "object",
                    "properties": {
                        "exclusive": {"description": "How many cores.", "type": "integer", "minimum": 1, "maximum": 4096}
                    },
                    "required": ["exclusive"],
                    "additionalProperties": false
                }
            ]
        })
    }
}

/// What happens when the program of a function ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    /// It is started again.
    #[default]
    Always,
    /// It is started again unless it ended with status 0.
    OnFailure,
    /// It stays ended.
    Never,
}
