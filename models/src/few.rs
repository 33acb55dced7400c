//! A short list that is stored inline: states are copied and hashed by the million.

use std::ops::{Deref, DerefMut};

/// At most `N` values. Unused slots have the default value, so that equal lists are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Few<T, const N: usize> {
    slots: [T; N],
    count: u8,
}

impl<T: Copy + Default, const N: usize> Default for Few<T, N> {
    fn default() -> Self {
        Self { slots: [T::default(); N], count: 0 }
    }
}

impl<T: Copy + Default, const N: usize> Few<T, N> {
    /// Appends a value. Panics when the list is full: a model that needs more must say so.
    pub(crate) fn push(&mut self, value: T) {
        self.slots[usize::from(self.count)] = value;
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
        self.slots[usize::from(self.count)] = T::default();
        removed
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl<T, const N: usize> Deref for Few<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.slots[..usize::from(self.count)]
    }
}

impl<T, const N: usize> DerefMut for Few<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.slots[..usize::from(self.count)]
    }
}
