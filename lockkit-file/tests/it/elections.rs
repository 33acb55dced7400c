//! Elections: who leads, as other sessions and processes see it.

use std::{fs, path::Path};

use lockkit_core::{
    ErrorKind, LockName, Proposal,
    backend::{LeaderEntry, Session},
};
use lockkit_file::LEADER_POLL_PAUSE;

use crate::{
    child::{Child, NAME},
    client, grant, metadata, session, soon, try_grant,
};

const LOCK_FILE: &str = "orders%2F42.lock";
const HOLDER_FILE: &str = "orders%2F42.holder";

async fn leader(session: &dyn Session) -> Option<LeaderEntry> {
    session.elections().unwrap().leader(&LockName::new(NAME).unwrap()).await.unwrap()
}

async fn proclaim(session: &dyn Session, grant: &lockkit_core::backend::Grant, proposal: Proposal) -> bool {
    session.elections().unwrap().proclaim(grant, &metadata(Some(proposal))).await.unwrap()
}

#[tokio::test]
async fn other_sessions_see_the_leader_from_its_grant_to_its_release() {
    let folder = tempfile::tempdir().unwrap();
    let (leading, looking) = (session(folder.path()).await, session(folder.path()).await);
    assert_eq!(leader(&*looking).await, None);

    let ordinary = grant(&*leading, None).await;
    let found = leader(&*looking).await.unwrap();
    assert_eq!((found.token, found.proposal), (ordinary.token(), Proposal::default()));
    leading.release(&ordinary).await.unwrap();
    assert_eq!(leader(&*looking).await, None);

    let led = grant(&*leading, Some(Proposal::new("one", 1))).await;
    let found = leader(&*looking).await.unwrap();
    assert_eq!((found.token, found.proposal), (led.token(), Proposal::new("one", 1)));
    assert_eq!(found.metadata.unwrap().pid, std::process::id());
    assert!(proclaim(&*leading, &led, Proposal::new("two", 2)).await);
    let found = leader(&*looking).await.unwrap();
    assert_eq!((found.token, found.proposal), (led.token(), Proposal::new("two", 2)));
    leading.release(&led).await.unwrap();
    assert_eq!(leader(&*looking).await, None);
}

#[tokio::test]
async fn killed_leader_leads_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let election = client(folder.path()).await.election(NAME).unwrap();
    let mut child = Child::leader(folder.path());
    let token = child.held().await;
    let found = election.leader().await.unwrap().unwrap();
    assert_eq!((found.token.get(), found.value.as_str()), (token, "child"));
    child.kill().await;
    assert_eq!(election.leader().await.unwrap(), None);
    let next = soon("the next leader", election.campaign("next")).await.unwrap();
    assert!(next.token().get() > token);
    assert_eq!(election.leader().await.unwrap().unwrap().value, "next");
}

#[tokio::test]
async fn late_copy_of_an_older_proclaim_does_not_undo_a_later_one() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path()).await;
    let led = grant(&*session, Some(Proposal::new("one", 1))).await;
    assert!(proclaim(&*session, &led, Proposal::new("three", 3)).await);
    assert!(proclaim(&*session, &led, Proposal::new("two", 2)).await, "it still leads");
    assert_eq!(leader(&*session).await.unwrap().proposal, Proposal::new("three", 3));
    assert!(proclaim(&*session, &led, Proposal::new("three", 3)).await, "the same request again");
    assert_eq!(leader(&*session).await.unwrap().proposal, Proposal::new("three", 3));
}

#[tokio::test]
async fn proclaim_of_a_stale_leader_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (stale, newer) = (session(folder.path()).await, session(folder.path()).await);
    let old = grant(&*stale, Some(Proposal::new("old", 1))).await;
    stale.release(&old).await.unwrap();
    let led = grant(&*newer, Some(Proposal::new("new", 1))).await;
    assert!(!proclaim(&*stale, &old, Proposal::new("stale", 9)).await);
    assert_eq!(leader(&*stale).await.unwrap().token, led.token());
    newer.close().await.unwrap();
    assert!(!proclaim(&*newer, &led, Proposal::new("closed", 9)).await);
    assert_eq!(leader(&*stale).await, None);
}

#[tokio::test]
async fn proclaim_is_refused_once_the_lock_file_was_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let (stale, newer) = (session(folder.path()).await, session(folder.path()).await);
    let old = grant(&*stale, Some(Proposal::new("old", 1))).await;
    fs::remove_file(folder.path().join(LOCK_FILE)).unwrap();
    let led = grant(&*newer, Some(Proposal::new("new", 1))).await;
    assert!(!proclaim(&*stale, &old, Proposal::new("stale", 9)).await);
    assert_eq!(leader(&*newer).await.unwrap().token, led.token());
    stale.release(&old).await.unwrap();
    assert_eq!(leader(&*newer).await.unwrap().token, led.token(), "the release freed the newer one");
}

/// A value whose end shows its length, of a length that is very different from that of the number before.
fn value(number: u64) -> String {
    let length = usize::try_from(number * 397 % 1000).unwrap();
    format!("{number} {}", "é".repeat(length / 2))
}

fn files(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_never_see_a_mixture_or_a_gap_while_the_leader_proclaims() {
    const READS: usize = 3_000;
    // On a busy disk, a rename takes as long as many reads.
    const VALUES: u64 = 100;
    let folder = tempfile::tempdir().unwrap();
    let leading = session(folder.path()).await;
    let led = grant(&*leading, Some(Proposal::new(value(1), 1))).await;
    let reading = {
        let (looking, token) = (session(folder.path()).await, led.token());
        tokio::spawn(async move {
            let (mut last, mut reads) = (0, 0);
            while reads < READS || last < VALUES {
                reads += 1;
                let found = soon("a read", leader(&*looking)).await.expect("it leads all the time");
                assert_eq!((found.token, &found.proposal.value), (token, &value(found.proposal.number)));
                assert!(found.proposal.number >= last, "{} after {last}", found.proposal.number);
                last = found.proposal.number;
            }
        })
    };
    let mut number = 1;
    // Each step has a bound of its own: all of them together take as long as the renames at the disk.
    while !reading.is_finished() {
        number += 1;
        let proclaimed = proclaim(&*leading, &led, Proposal::new(value(number), number));
        assert!(soon("a proclaim", proclaimed).await);
    }
    reading.await.unwrap();
    assert_eq!(files(folder.path()), 2, "files are left");
}

#[tokio::test]
async fn candidate_that_others_could_not_see_does_not_lead() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join(HOLDER_FILE)).unwrap();
    let session = session(folder.path()).await;
    let error = try_grant(&*session, Some(Proposal::new("one", 1))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
    assert!(error.to_string().contains(HOLDER_FILE), "{error}");
    let ordinary = grant(&*session, None).await;
    assert!(ordinary.token().get() > 0, "the refused candidate holds nothing");
    assert_eq!(files(folder.path()), 2, "files are left");
}

#[tokio::test]
async fn leader_that_cannot_be_read_is_an_error_of_its_lock() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path()).await;
    std::os::unix::fs::symlink("elsewhere", folder.path().join(HOLDER_FILE)).unwrap();
    let name = LockName::new(NAME).unwrap();
    let error = session.elections().unwrap().leader(&name).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Denied, Some(&name)), "{error}");
}

#[tokio::test]
async fn foreign_file_that_somebody_has_locked_shows_no_leader() {
    for foreign in ["", "7\n", "7\n{\"host\":\"h\",\"pid\":1,\"since_ms\":0}\n"] {
        // A folder for each: a process that another test starts has the lock of the last one, too, until it runs.
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path()).await;
        let path = folder.path().join(HOLDER_FILE);
        fs::write(&path, foreign).unwrap();
        let foreign = fs::File::open(&path).unwrap();
        foreign.try_lock().unwrap();
        assert_eq!(leader(&*session).await, None);
    }
}

#[tokio::test]
async fn observer_sees_values_and_the_end_although_nothing_notifies() {
    let folder = tempfile::tempdir().unwrap();
    let (leading, looking) = (client(folder.path()).await, client(folder.path()).await);
    let leadership = leading.election(NAME).unwrap().campaign("one").await.unwrap();
    let mut observer = looking.election(NAME).unwrap().observe();
    let mut next = async || {
        // The ordinary re-check comes after 8.75 s at least.
        let next = tokio::time::timeout(LEADER_POLL_PAUSE * 30, observer.next()).await;
        next.expect("before the ordinary re-check").unwrap().unwrap().map(|leader| leader.value)
    };
    assert_eq!(next().await.as_deref(), Some("one"));
    leadership.proclaim("two").await.unwrap();
    assert_eq!(next().await.as_deref(), Some("two"));
    leadership.resign().await.unwrap();
    assert_eq!(next().await, None);
}
