//! Kinds of ports that a program brings along: this crate knows nothing of what they are made of, and links none of it.

use std::sync::{PoisonError, RwLock};

use crate::{OpenError, OpenOptions, Port};

/// A kind of port, whose names begin with `name:`.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// What stands before the colon.
    pub name: &'static str,
    /// What follows it, as messages show it.
    pub expects: &'static str,
    /// Opens a port, told what follows the colon.
    pub open: fn(&str, &OpenOptions) -> Result<Port, OpenError>,
}

static KINDS: RwLock<Vec<Kind>> = RwLock::new(Vec::new());

/// From here on [`crate::open`] knows this kind as well. The last one of a name counts; those of this crate stay as they are.
pub fn add_kind(kind: Kind) {
    KINDS.write().unwrap_or_else(PoisonError::into_inner).push(kind);
}

pub(crate) fn find(name: &str) -> Option<Kind> {
    let kinds = KINDS.read().unwrap_or_else(PoisonError::into_inner);
    kinds.iter().rfind(|kind| kind.name == name).copied()
}

/// All kinds, to follow those of this crate in a message.
pub(crate) fn as_expected() -> String {
    let kinds = KINDS.read().unwrap_or_else(PoisonError::into_inner);
    kinds.iter().map(|kind| format!(", {}:{}", kind.name, kind.expects)).collect()
}

#[cfg(test)]
mod tests {
    use crate::synthetic::Synthetic;
    use crate::{Kind, OpenOptions, PortInfo, add_kind, open};

    #[test]
    fn a_kind_that_was_added_is_opened_by_its_name_and_named_where_another_is_not_known() {
        let options = OpenOptions::default();
        let unknown = || open("nosuch:1", &options).err().unwrap().to_string();
        assert!(!unknown().contains("memory:WORD"));
        let kind = Kind {
            name: "memory",
            expects: "WORD",
            open: |word, _| Ok(Synthetic::new(Vec::new()).info(PortInfo::named(word)).open()),
        };
        add_kind(kind);
        assert_eq!(open("memory:a:b", &options).unwrap().info.name, "a:b");
        assert!(unknown().contains("memory:WORD"), "{}", unknown());
    }
}
