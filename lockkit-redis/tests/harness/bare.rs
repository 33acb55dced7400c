//! The time of a bare message, without any lock.

use std::time::Duration;

use anyhow::{Context, Result};
use redis::{Client, PushKind};
use tokio::{sync::mpsc::unbounded_channel, time::Instant};

use super::patient::patient;

/// Measures the time from the sending of a message to its arrival at another connection.
pub async fn bare_notification(endpoint: &str) -> Result<Duration> {
    let client = Client::open(format!("redis://{endpoint}/?protocol=resp3"))?;
    let (sender, mut pushes) = unbounded_channel();
    let mut writer = client.get_multiplexed_async_connection_with_config(&patient()).await?;
    let config = patient().set_push_sender(sender);
    let mut listener = client.get_multiplexed_async_connection_with_config(&config).await?;
    let channel = format!("bare-{:016x}", std::process::id());
    listener.subscribe(&channel).await?;
    let start = Instant::now();
    redis::cmd("PUBLISH").arg(&channel).arg("").query_async::<i64>(&mut writer).await?;
    while pushes.recv().await.context("the connection has ended")?.kind != PushKind::Message {}
    Ok(start.elapsed())
}
