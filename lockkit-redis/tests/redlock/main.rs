//! Redlock on real masters: scripts, set-up, request counts, and other clients of the same nodes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test program")]

mod admin;
mod attempts;
mod budget;
mod costs;
mod counting;
mod elections;
mod foreign;
mod listing;
mod memory;
mod minority;
mod records;
#[path = "../harness/redlock/mod.rs"]
mod redlock;
mod scripts;
mod sets;
mod setup;
mod waiting;
mod warnings;

/// Sends a command to one node, and returns its reply as text.
async fn command(masters: &redlock::Masters, node: usize, words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(ToString::to_string).collect();
    let reply = masters.with(move |nodes| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Ok(nodes.node(node).cli(&words)?.text().to_owned())
    });
    reply.await.unwrap()
}
