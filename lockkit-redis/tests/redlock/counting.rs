//! What nodes have executed, by their own counters.

use crate::redlock::Masters;

/// How often each node has executed these commands, also within scripts.
pub(crate) async fn calls(masters: &Masters, commands: &'static [&'static str]) -> Vec<u64> {
    let count = masters.with(move |nodes| {
        (0..nodes.len())
            .map(|node| commands.iter().map(|command| nodes.node(node).calls(command)).sum())
            .collect()
    });
    count.await.unwrap()
}

/// How many scripts each node has executed.
pub(crate) async fn scripts(masters: &Masters) -> Vec<u64> {
    calls(masters, &["evalsha", "eval"]).await
}

/// What each node has executed since `before`.
pub(crate) fn since(before: &[u64], now: Vec<u64>) -> Vec<u64> {
    now.iter().zip(before).map(|(now, before)| now - before).collect()
}
