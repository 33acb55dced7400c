//! Counters of the metrics: each event is counted once.

use lockkit_core::memory::MemoryServer;
use metrics_util::debugging::DebugValue;

use crate::{
    common::{TTL, client, eventually, in_time, settle},
    metrics::{Series, held, recorded},
};

/// Returns what was counted, over all reasons.
fn counted(taken: &[Series], name: &str) -> u64 {
    let values = taken.iter().filter(|series| series.name == name).map(|series| match series.value {
        DebugValue::Counter(value) => value,
        _ => 0,
    });
    values.sum()
}

#[test]
fn each_session_and_each_loss_is_counted_once() {
    recorded(async |emitted| {
        let server = MemoryServer::new();
        let client = client(&server).await;
        let guards = [held(&client, "one").await, held(&client, "two").await];
        server.expire_all();
        for guard in &guards {
            in_time(guard.lost()).await;
        }
        eventually(TTL, "another session", || server.sessions() == 1).await;
        settle().await;
        let taken = emitted.take();
        let names = ["lockkit.sessions.opened", "lockkit.sessions.lost", "lockkit.losses"];
        assert_eq!(names.map(|name| counted(&taken, name)), [2, 1, 2]);
    });
}
