//! Tries: claims that do not wait.

use std::sync::Arc;

use lockkit_conformance::direct::{fresh_name, granted, is_gave_up, release, try_acquire};
use lockkit_core::backend::Session;
use tonic::Code;

use super::{config, first, foreign, session_of};
use crate::{
    Form,
    client::scripted::{Fate, Script},
};

const BUSY: Fate = Fate::Refused(Code::ResourceExhausted, "etcdserver: too many requests");

/// The transaction that follows looks again.
#[tokio::test(start_paused = true)]
async fn try_whose_first_look_is_refused_is_granted_a_free_lock() {
    let name = fresh_name();
    for (config, key) in [
        (config(1), foreign(&name)),
        (config(1).form(Form::Single), format!("lockkit/{name}")),
        (config(1).guard("guards/"), format!("guards/{name}")),
    ] {
        let script = Script::default();
        let session: Arc<dyn Session> = session_of(&script, &config).await;
        script.put(&key, "");
        assert!(is_gave_up(&try_acquire(&session, &name).await));
        script.delete(&key);
        script.take_calls();
        script.rule(first(1, "Range", BUSY));
        let held = granted(try_acquire(&session, &name).await);
        assert!(script.count("Range") > 0, "{key}: it has not looked");
        release(&session, &held).await;
    }
}

/// Its entry would delay those who come behind it.
#[tokio::test(start_paused = true)]
async fn try_that_finds_a_foreign_guard_writes_nothing() {
    let (script, name) = (Script::default(), fresh_name());
    let session: Arc<dyn Session> = session_of(&script, &config(1).guard("guards/")).await;
    script.put(&format!("guards/{name}"), "");
    script.take_calls();
    assert!(is_gave_up(&try_acquire(&session, &name).await));
    assert_eq!((script.count("Range"), script.count("Txn")), (1, 0));
}
