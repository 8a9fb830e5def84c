//! A list that nearly always has one element or none, which then lie where the list does.

use std::ops::Deref;

/// The list. It does not change.
#[derive(Clone, Debug)]
pub enum Few<T> {
    /// One.
    One(T),
    /// None, or several.
    Many(Box<[T]>),
}

impl<T> Default for Few<T> {
    /// None, which takes no memory.
    fn default() -> Self {
        Self::Many(Box::new([]))
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut elements = elements.into_iter();
        match (elements.next(), elements.next()) {
            (None, _) => Self::default(),
            (Some(one), None) => Self::One(one),
            (Some(first), Some(second)) => Self::Many([first, second].into_iter().chain(elements).collect()),
        }
    }
}

impl<T: PartialEq> PartialEq for Few<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for Few<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_what_it_was_made_of() {
        for count in 0..5 {
            assert!(Few::from_iter(0..count).iter().copied().eq(0..count));
        }
        assert!(matches!(Few::from_iter([7]), Few::One(7)));
    }
}
