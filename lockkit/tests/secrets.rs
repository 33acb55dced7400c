//! A password in a URL is in no log, span or error. The suite tries the same on every backend with a configuration.
#![allow(clippy::unwrap_used, reason = "helpers of tests are not seen as tests")]

use std::{
    fmt::Write as _,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkit::{Error, ErrorKind};
use lockkit_testbed::Redis;
use tracing_subscriber::{filter::LevelFilter, fmt::format::FmtSpan};

const SECRET: &str = "s3cret-of-the-app";

/// Everything that is logged in this process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

/// Returns URLs with the password to servers that are not there, of the schemes that are compiled in.
fn dead_urls() -> Vec<String> {
    let login = format!("app:{SECRET}@127.0.0.1:1");
    let urls = [
        format!("etcd://{login}"),
        format!("redis://{login}"),
        format!("redis+cluster://{login}"),
        format!("redis+sentinel://{login}/name"),
        format!("redlock://{login},127.0.0.1:2,127.0.0.1:3"),
        format!("redis://{login}?no-such-option=1"),
        format!("nothing://{login}"),
        format!("zk://{login}"),
    ];
    let is_compiled = |url: &String| {
        let scheme = url.split(':').next().unwrap();
        scheme == "nothing" || lockkit::schemes().any(|compiled| compiled == scheme)
    };
    urls.into_iter().filter(is_compiled).collect()
}

fn printed(error: &Error) -> String {
    format!("{error} {error:#} {error:?} {error:#?}\n")
}

/// One test, because the subscriber is that of the process.
#[tokio::test]
async fn no_log_and_no_error_contains_the_password_of_a_url() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_span_events(FmtSpan::FULL)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    let mut errors = String::new();

    for url in dead_urls() {
        let connecting = tokio::time::timeout(Duration::from_secs(60), lockkit::connect(&url));
        errors += &printed(&connecting.await.unwrap().unwrap_err());
    }

    let redis = Redis::start().unwrap();
    redis.cli(&["ACL", "SETUSER", "app", "on", &format!(">{SECRET}"), "~*", "&*", "+@all"]).unwrap();
    let refused =
        lockkit::connect(format!("redis://app:not-{SECRET}@{}", redis.endpoint())).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied);
    errors += &printed(&refused);
    let client = lockkit::connect(format!("redis://app:{SECRET}@{}?ttl=6s", redis.endpoint())).await.unwrap();
    let guard = client.lock("orders/42").unwrap().acquire().await.unwrap();
    // Until a heartbeat finds the silent server.
    redis.pause().unwrap();
    errors += &printed(&guard.lost().await);
    redis.resume().unwrap();
    write!(errors, "{client:?} {guard:?}").unwrap();
    client.close().await.unwrap();

    let text = log.text();
    for expected in ["acquire{lock=\"orders/42\" scheme=\"redis\"}", "heartbeat{", "lock lost: "] {
        assert!(text.contains(expected), "{expected} is not in the log");
    }
    for (what, text) in [("the log", text), ("an error", errors)] {
        if let Some(at) = text.find(SECRET) {
            panic!("in {what}: {}", text[..at].lines().next_back().unwrap_or_default());
        }
    }
}
