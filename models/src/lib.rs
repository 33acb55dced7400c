//! The protocols of lockkit as models, checked exhaustively within a small scope.
//!
//! Every model is one folder. `mod.rs` says what stands for what, names the states as in the code that it models, and
//! lists the safety steps of the protocol (`Step`); `model.rs` says what may happen and what must be true; `scenes.rs` what
//! is gone through; the other files are what each part of the protocol does. The full protocol has no counterexample in
//! any of its scenes; without any one of its steps there is one, and the tests say which property breaks.
//!
//! What the models leave out, all of them: real time (a lifetime may end at any moment, unless a step of the protocol
//! says that something else came before), and the contents of values. `cargo run -p lockkit-models` prints the table
//! and, with a model's name, the counterexamples.

pub mod etcd;
pub mod explore;
mod few;
pub mod keeper;
mod rank;
pub mod redis;
pub mod redlock;
mod walk;
pub mod zookeeper;
