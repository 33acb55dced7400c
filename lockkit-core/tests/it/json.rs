//! What tools read: names, tokens and inspections as JSON.

use std::time::Duration;

use lockkit_core::{
    FencingToken, LockName, Metadata,
    backend::{Contender, Inspection, ListedLock},
};

use crate::common::{NAME, client, name};
use serde_json::{Value, from_str, from_value, json, to_value};

#[test]
fn names_and_tokens_are_a_text_and_a_number() {
    assert_eq!(to_value(name()).unwrap(), json!(NAME));
    assert_eq!(from_value::<LockName>(json!("a\n🔒")).unwrap().as_str(), "a\n🔒");
    for invalid in [json!(""), json!("x".repeat(1025)), json!(7), json!(null)] {
        assert!(from_value::<LockName>(invalid.clone()).is_err(), "{invalid}");
    }
    for number in [0, 7, u64::MAX] {
        assert_eq!(to_value(FencingToken::new(number)).unwrap(), json!(number));
        assert_eq!(from_str::<FencingToken>(&number.to_string()).unwrap(), FencingToken::new(number));
    }
    assert!(from_str::<FencingToken>("-1").is_err());
    assert!(i64::try_from(FencingToken::new(u64::MAX)).is_err());
    assert_eq!(FencingToken::from(7), FencingToken::new(7));
}

#[test]
fn inspection_is_complete_and_its_times_are_in_milliseconds() {
    let metadata = Metadata::of_this_process(Some("nightly"));
    let holder = Contender::new("key/1", Some(FencingToken::new(7)), Some(metadata.clone()))
        .with_session("694d7b")
        .with_remaining(Duration::from_micros(1_234_900));
    let foreign = Contender::new("key/2", None, None).with_data("owned by another program");
    let shown = to_value(Inspection::new(Some(holder), vec![foreign])).unwrap();
    let expected = json!({
        "holder": {
            "entry": "key/1",
            "token": 7,
            "metadata": {
                "host": metadata.host, "pid": metadata.pid, "label": "nightly", "since_ms": metadata.since_ms
            },
            "session": "694d7b",
            "remaining_ms": 1234,
            "data": null
        },
        "waiters": [{
            "entry": "key/2", "token": null, "metadata": null, "session": null, "remaining_ms": null,
            "data": "owned by another program"
        }]
    });
    assert_eq!(shown, expected);
    assert_eq!(to_value(Inspection::default()).unwrap(), json!({ "holder": null, "waiters": [] }));
    let endless = Contender::new("key", None, None).with_remaining(Duration::MAX);
    assert_eq!(to_value(endless).unwrap()["remaining_ms"], json!(u64::MAX));
}

#[test]
fn listed_locks_have_a_name_where_the_store_knows_it() {
    let listed = [ListedLock::new(Some(name()), "orders%2F42"), ListedLock::new(None, "x%-00ff")];
    let expected = json!([
        { "name": NAME, "entry": "orders%2F42" },
        { "name": null, "entry": "x%-00ff" }
    ]);
    assert_eq!(to_value(listed).unwrap(), expected);
}

#[tokio::test(crate = "crate::checked", start_paused = true)]
async fn inspection_of_a_client_shows_token_session_and_remaining_time() {
    let server = lockkit_core::memory::MemoryServer::new();
    let client = client(&server).await;
    let guard = client.lock(NAME).unwrap().acquire().await.unwrap();
    let shown: Value = to_value(client.inspect(NAME).await.unwrap()).unwrap();
    assert_eq!(shown["holder"]["token"], json!(guard.token().get()));
    assert_eq!(shown["holder"]["remaining_ms"], json!(client.ttl().as_millis() as u64));
    assert_eq!(shown["holder"]["session"], json!("1"));
    assert_eq!(shown["holder"]["metadata"]["pid"], json!(std::process::id()));
}
