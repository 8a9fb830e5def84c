//! The end of a link that belongs to the host.

use super::INTERFACE_NAME;
use crate::{address::Cidr, quantity::ValueError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The end of a link that belongs to the host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "OutsideFields", into = "OutsideFields")]
pub enum Outside {
    /// An interface that the host already has; the port shares it under a MAC address of its own.
    Interface(String),
    /// A new interface in the host's own network, by which host and port reach each other.
    Veth {
        /// Its name.
        name: String,
        /// Its addresses.
        addresses: Vec<Cidr>,
    },
}

impl Outside {
    /// Name of the interface of the host.
    pub fn interface(&self) -> &str {
        match self {
            Self::Interface(name) | Self::Veth { name, .. } => name,
        }
    }
}

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host:{}", self.interface())
    }
}

/// The host's end as a descriptor writes it: exactly one of `interface` and `veth`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename = "Outside", rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("oneOf" = [{"required": ["interface"]}, {"required": ["veth"]}]))]
pub(crate) struct OutsideFields {
    /// An interface that the host already has; the port shares it under a MAC address of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "interface-name", "pattern" = INTERFACE_NAME))]
    pub(crate) interface: Option<String>,
    /// A new interface of this name in the host's own network, by which host and port reach each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "interface-name", "pattern" = INTERFACE_NAME))]
    pub(crate) veth: Option<String>,
    /// Addresses of the new interface.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) addresses: Vec<Cidr>,
}

impl TryFrom<OutsideFields> for Outside {
    type Error = ValueError;

    fn try_from(fields: OutsideFields) -> Result<Self, ValueError> {
        const REMEDY: &str = "give interface (one that the host has) or veth (a new one), not both";
        match (fields.interface, fields.veth) {
            (Some(name), None) if fields.addresses.is_empty() => Ok(Self::Interface(name)),
            (Some(_), None) => Err(ValueError::new(
                "an interface that the host already has keeps its own addresses",
                "take addresses away here and give them to the port at the other end",
            )),
            (None, Some(name)) => Ok(Self::Veth { name, addresses: fields.addresses }),
            (None, None) => Err(ValueError::new("the host's end of the link is not named", REMEDY)),
            (Some(_), Some(_)) => Err(ValueError::new("the host's end of the link is given in two forms", REMEDY)),
        }
    }
}

impl From<Outside> for OutsideFields {
    fn from(outside: Outside) -> Self {
        match outside {
            Outside::Interface(name) => Self { interface: Some(name), ..Self::default() },
            Outside::Veth { name, addresses } => Self { veth: Some(name), addresses, ..Self::default() },
        }
    }
}
