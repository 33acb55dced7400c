//! The messages and services of `proto/`, written by `cargo run -p lockkit-etcd-codegen`.

#![allow(
    dead_code,
    unnameable_types,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated, and the names of values that lockkit never uses belong to an enum"
)]

#[rustfmt::skip]
pub(super) mod etcdserverpb;
#[rustfmt::skip]
pub(super) mod mvccpb;
#[rustfmt::skip]
pub(super) mod v3lockpb;
