//! The backend on a real etcd: sessions driven by hand, claim by claim, while servers, operators and other programs do
//! their worst.
#![cfg(test)]

mod budget;
mod cancel;
mod chaos;
mod client;
mod cluster;
mod common;
mod fallbacks;
mod faults;
mod grants;
mod login;
mod lost_replies;
mod mail;
mod notifications;
mod rights;
mod successors;
#[cfg(feature = "tls")]
mod tls;
mod unheard;
mod waiting;
