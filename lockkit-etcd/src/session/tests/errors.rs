//! What an error names: the operation that failed, and its lock.

use lockkit_conformance::direct::{acquire, fresh_name, start};
use lockkit_core::Metadata;
use tonic::Code;

use super::{TTL, session};
use crate::client::scripted::{Fate, Script};

const DENIED: Fate = Fate::Refused(Code::PermissionDenied, "etcdserver: permission denied");

/// A person who reads it must learn what has failed, and for which lock.
#[tokio::test(start_paused = true)]
async fn error_of_a_session_names_its_operation_and_its_lock() {
    let (script, name) = (Script::default(), fresh_name());
    let session = session(&script).await;
    let held = acquire(&session, &name).await;
    let (elections, records) = (session.elections().unwrap(), session.records().unwrap());
    let (pins, metadata) = (session.pins().unwrap(), Metadata::of_this_process(None));
    script.rule(|_| DENIED);
    for (operation, failed) in [
        ("acquire", start(&session, &name).ends().await.map(drop)),
        ("read the leader", elections.leader(&name).await.map(drop)),
        ("proclaim", elections.proclaim(&held, &metadata).await.map(drop)),
        ("read the record", records.read(&name).await.map(drop)),
        ("write the record", records.write(&held, "text", TTL).await.map(drop)),
        ("pin", pins.pin(&held, TTL).await.map(drop)),
        // A release that is refused ends the session.
        ("release", session.release(&held).await),
        ("leave", pins.leave(&held).await),
    ] {
        let error = failed.unwrap_err();
        assert_eq!((error.operation(), error.lock()), (operation, Some(&name)), "{error}");
    }
}
