//! What a descriptor may say already, and nothing enforces yet. `up` tells it, so that nobody relies on it.

use crate::descriptor::{Link, LinkKind, Slice};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Something that is accepted but not enforced yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Whose it is: `function upf`, `link n3`.
    pub subject: String,
    /// Which field says it.
    pub field: String,
    /// What happens instead.
    pub text: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} is not enforced yet: {}", self.subject, self.field, self.text)
    }
}

/// Everything in a slice that is accepted but not enforced yet.
pub fn unenforced(slice: &Slice) -> Vec<Notice> {
    let mut notices = Vec::new();
    let mut notice = |subject: String, field: &str, text: &str| {
        notices.push(Notice { subject, field: field.into(), text: text.into() });
    };
    for function in &slice.spec.functions {
        let ends =
            |link: &Link| link.between.iter().any(|end| end.port().is_some_and(|port| port.function == function.name));
        let used = slice.spec.links.iter().any(|link| link.kind == LinkKind::ZeroCopy && ends(link));
        if function.trust_group.is_some() && !used {
            let text = "it has no link of kind zero-copy; others are built as if it trusted nobody, which costs a copy";
            notice(format!("function {}", function.name), "trustGroup", text);
        }
    }
    for link in &slice.spec.links {
        let subject = || format!("link {}", link.label());
        if link.max_latency.is_some() {
            notice(subject(), "maxLatency", "it was held against what this host reaches at best, and is not watched");
        }
        if link.min_bandwidth.is_some() {
            notice(subject(), "minBandwidth", "no capacity is reserved, and none is measured");
        }
    }
    notices
}
