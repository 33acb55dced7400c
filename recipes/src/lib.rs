//! Small programs to copy from, in `examples/`. One test program, `tests/it/`, runs each of them on real stores.
//!
//! The programs in the documents of `docs/` that no other package tests are doc tests here.

#[cfg(doctest)]
#[doc = include_str!("../../docs/migrating.md")]
mod migrating {}
#[cfg(doctest)]
#[doc = include_str!("../../docs/operations.md")]
mod operations {}
#[cfg(doctest)]
#[doc = include_str!("../../docs/testing.md")]
mod testing {}
