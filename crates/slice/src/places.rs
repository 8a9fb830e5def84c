//! Where everything in a descriptor stands.

use crate::report::Position;
use std::collections::{HashMap, HashSet};

/// A way down the tree.
pub type Path = Vec<Step>;

/// One step of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step {
    Field(String),
    Item(usize),
}

impl From<&str> for Step {
    fn from(field: &str) -> Self {
        Self::Field(field.into())
    }
}

impl From<usize> for Step {
    fn from(item: usize) -> Self {
        Self::Item(item)
    }
}

/// Writes a path: `steps!["spec", "functions", 0, "name"]`.
macro_rules! steps {
    ($($step:expr),* $(,)?) => { $crate::places::Path::from([$($crate::places::Step::from($step)),*]) };
}
pub(crate) use steps;

/// Where everything in a descriptor stands, and what of it was replaced because it was wrong.
#[derive(Default)]
pub struct Places {
    values: HashMap<Path, Position>,
    keys: HashMap<Path, Position>,
    faulty: HashSet<Path>,
}

impl Places {
    /// Notes where a value stands.
    pub fn note_value(&mut self, path: &[Step], at: Position) {
        self.values.insert(path.into(), at);
    }

    /// Notes where the key of a field stands.
    pub fn note_key(&mut self, path: &[Step], at: Position) {
        self.keys.insert(path.into(), at);
    }

    /// Notes that a value is a stand-in; false if that was known already.
    pub fn note_fault(&mut self, path: &[Step]) -> bool {
        self.faulty.insert(path.into())
    }

    /// Position of a value; of the nearest thing around it if it is not in the text.
    pub fn value(&self, path: &[Step]) -> Position {
        let around = (0..=path.len()).rev().find_map(|end| self.values.get(&path[..end]));
        around.copied().unwrap_or_default()
    }

    /// Position of the key of a field; of the thing around it if it is not in the text.
    pub fn key(&self, path: &[Step]) -> Position {
        self.keys.get(path).copied().unwrap_or_else(|| self.value(path))
    }

    /// Whether the text gives this field.
    pub fn is_given(&self, path: &[Step]) -> bool {
        self.values.contains_key(path)
    }

    /// Whether the value is what the text says, not a stand-in for something that was wrong.
    pub fn is_sound(&self, path: &[Step]) -> bool {
        (0..=path.len()).all(|end| !self.faulty.contains(&path[..end]))
    }
}
