//! The forms of a lock: the queue, whose protocol is next to this folder, and those that only other programs
//! need.

pub(crate) mod exclusive;
mod form;
mod rpc;

pub use self::form::Form;
pub(crate) use self::{exclusive::ExclusiveKey, form::Shape, rpc::RpcSession};
