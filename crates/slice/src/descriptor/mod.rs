//! The types of a slice descriptor: one type describes a slice in the file, in the daemon and in the published JSON Schema.
//!
//! Everything here is plain data. That it makes sense together (names known, ports linked once, addresses distinct) is
//! for [`crate::check`] to say; a value that came from [`crate::load`] has passed it.

mod function;
mod image;
mod link;
mod outside;
mod pool;
mod port;

pub use function::{Cores, Function, Restart};
pub use image::Image;
pub(crate) use image::ImageFields;
pub use link::{End, Link, LinkKind, PortRef};
pub use outside::Outside;
pub(crate) use outside::OutsideFields;
pub use pool::Pool;
pub use port::{Port, Route, Steering};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Network functions, their virtual ports, and the links between them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Slice {
    /// Version of this format.
    pub api_version: ApiVersion,
    /// What the document describes.
    pub kind: Kind,
    /// What the slice is called.
    pub metadata: Metadata,
    /// What it consists of.
    pub spec: Spec,
}

/// Version of the descriptor format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ApiVersion {
    /// The first version; it may still change.
    #[serde(rename = "kaista.dev/v1alpha1")]
    V1Alpha1,
}

/// What a document describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Kind {
    /// A slice.
    Slice,
}

/// What a slice is called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// Name of the slice, a DNS label; unique on the node.
    #[schemars(extend("format" = "dns-label", "pattern" = DNS_LABEL))]
    pub name: String,
}

/// What a slice consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// The functions, each one container.
    #[schemars(length(min = 1, max = 1000))]
    pub functions: Vec<Function>,
    /// The links between their ports, and to the outside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10_000))]
    pub links: Vec<Link>,
}

impl Slice {
    /// Name of the slice.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// The function of this name.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.spec.functions.iter().find(|f| f.name == name)
    }

    /// The function that this container is, or is a replica of.
    pub fn function_of(&self, container: &str) -> Option<&Function> {
        self.spec.functions.iter().find(|function| function.containers().iter().any(|name| name == container))
    }

    /// The port of this name.
    pub fn port(&self, at: &PortRef) -> Option<&Port> {
        self.function(&at.function)?.ports.iter().find(|p| p.name == at.port)
    }

    /// The trust group in which a link's frames stay where they are; None of links that are not zero-copy.
    pub fn trust_group(&self, link: &Link) -> Option<&str> {
        let function = self.function(&link.between.first()?.port()?.function)?;
        function.trust_group.as_deref().filter(|_| link.kind == LinkKind::ZeroCopy)
    }

    /// The link that ends at this port.
    pub fn link_of(&self, at: &PortRef) -> Option<&Link> {
        self.spec.links.iter().find(|l| l.between.iter().any(|end| end.port() == Some(at)))
    }
}

const DNS_LABEL: &str = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$";

const INTERFACE_NAME: &str = "^[A-Za-z0-9_][-A-Za-z0-9_.]{0,14}$";

/// Whether a name is a DNS label (RFC 1123): lower-case letters, digits and inner hyphens, at most 63.
pub(crate) fn is_dns_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = name.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes.iter().all(|&b| inner(b) || b == b'-')
        && bytes.first().is_some_and(|&b| inner(b))
        && bytes.last().is_some_and(|&b| inner(b))
}
