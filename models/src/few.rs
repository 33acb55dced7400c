//! A short list that is stored in place: states are copied and hashed by the million.

use std::ops::{Deref, DerefMut};

/// At most `N` things. What is not in use is the default, so that equal lists are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Few<T, const N: usize> {
    things: [T; N],
    count: u8,
}

impl<T: Copy + Default, const N: usize> Default for Few<T, N> {
    fn default() -> Self {
        Self { things: [T::default(); N], count: 0 }
    }
}

impl<T: Copy + Default, const N: usize> Few<T, N> {
    /// Panics when there are `N` already: a model that needs more must say so.
    pub(crate) fn push(&mut self, thing: T) {
        self.things[usize::from(self.count)] = thing;
        self.count += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let last = self.len().checked_sub(1)?;
        Some(self.remove(last))
    }

    pub(crate) fn remove(&mut self, nth: usize) -> T {
        let removed = self[nth];
        self.copy_within(nth + 1.., nth);
        self.count -= 1;
        self.things[usize::from(self.count)] = T::default();
        removed
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl<T, const N: usize> Deref for Few<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.things[..usize::from(self.count)]
    }
}

impl<T, const N: usize> DerefMut for Few<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.things[..usize::from(self.count)]
    }
}
