//! A link and its two ends.

use super::{DNS_LABEL, Outside, is_dns_label};
use crate::quantity::{BitRate, ByteSize, Latency, ValueError, text_form};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{borrow::Cow, fmt, str::FromStr};

/// A link between two ports, or between a port and the outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Link {
    /// Name of the link, a DNS label; unique in the slice. Without one it is known by its ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "dns-label", "pattern" = DNS_LABEL))]
    pub name: Option<String>,
    /// Its two ends.
    pub between: [End; 2],
    /// How it is to be built.
    #[serde(default)]
    pub kind: LinkKind,
    /// Size of each of its rings, where an end is shared memory: how much can wait on the way from a queue to a queue. 1 MiB if absent;
    /// a power of two from 128 KiB to 64 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring_size: Option<ByteSize>,
    /// Latency that a packet may have from one end to the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_latency: Option<Latency>,
    /// Bit rate that each direction must carry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_bandwidth: Option<BitRate>,
}

impl Link {
    /// Its name, or its ends where it has none: `ran/n3--upf/n3`.
    pub fn label(&self) -> String {
        let [a, b] = &self.between;
        self.name.clone().unwrap_or_else(|| format!("{a}--{b}"))
    }
}

/// How a link is to be built.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// By the fastest way that the two ends allow.
    #[default]
    Auto,
    /// Point to point, without a switch.
    Direct,
    /// As `direct`, and each end can write the records that it reads: faster on some processors.
    SharedRecords,
    /// As `direct`, and frames stay where they are: for ports of functions of one trust group.
    ZeroCopy,
}

/// One end of a link: `FUNCTION/PORT`, or `{host: ...}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum End {
    /// A port of a function of the slice.
    Port(PortRef),
    /// Something outside the slice.
    Outside {
        /// What of the host it is.
        host: Outside,
    },
}

impl End {
    /// The port, if the end is one.
    pub fn port(&self) -> Option<&PortRef> {
        match self {
            Self::Port(port) => Some(port),
            Self::Outside { .. } => None,
        }
    }

    /// What of the host, if the end is outside.
    pub fn outside(&self) -> Option<&Outside> {
        match self {
            Self::Port(_) => None,
            Self::Outside { host } => Some(host),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(port) => port.fmt(f),
            Self::Outside { host } => host.fmt(f),
        }
    }
}

impl JsonSchema for End {
    fn schema_name() -> Cow<'static, str> {
        "End".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let port = generator.subschema_for::<PortRef>();
        let host = generator.subschema_for::<Outside>();
        json_schema!({
            "description": "One end of a link: `FUNCTION/PORT`, or `{host: ...}`.",
            "anyOf": [
                port,
                {
                    "type": "object",
                    "properties": {"host": host},
                    "required": ["host"],
                    "additionalProperties": false
                }
            ]
        })
    }
}

/// A port of a function, written `FUNCTION/PORT`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRef {
    /// Name of the function.
    pub function: String,
    /// Name of its port.
    pub port: String,
}

impl fmt::Display for PortRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.function, self.port)
    }
}

impl FromStr for PortRef {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.split_once('/') {
            Some((function, port)) if is_dns_label(function) && is_dns_label(port) => {
                Ok(Self { function: function.into(), port: port.into() })
            }
            _ => Err(ValueError::new(
                format!("{text:?} names no port"),
                "write FUNCTION/PORT, for example upf/n3; an interface of the host is {host: {interface: eth1}}",
            )),
        }
    }
}

text_form!(PortRef, "port-ref", r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$");
