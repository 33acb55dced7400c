//! Tracing spans: the keeper's work can be followed by name and token.

#[path = "it/common.rs"]
mod common;

use std::{
    io::Write,
    sync::{Arc, Mutex},
};

use common::{NAME, TTL, client};
use lockkit_core::memory::MemoryServer;
use tracing_subscriber::fmt::format::FmtSpan;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().map_err(|_| std::io::Error::other("poisoned"))?.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn acquire_wait_hold_renew_and_release_have_spans_with_name_and_token() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _default = tracing::subscriber::set_default(subscriber);

    let client = client(&MemoryServer::new()).await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let token = guard.token();
    tokio::time::sleep(TTL / 2).await;
    guard.release().await.unwrap();
    client.close().await.unwrap();

    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for expected in [
        format!("lock{{name=\"{NAME}\"}}:acquire:claim{{"),
        format!("lock{{name=\"{NAME}\"}}:acquire: "),
        format!("lock{{name=\"{NAME}\"}}:hold{{token={token}}}: "),
        format!("lock{{name=\"{NAME}\"}}:release{{token={token}}}: "),
        "renew{held=1}: ".to_owned(),
    ] {
        assert!(log.contains(&expected), "{expected:?} is not in\n{log}");
    }
}
