//! Exclusion and rising tokens between processes.

use std::{
    fs,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use lockkit_core::FencingToken;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::{
    child::{Child, NAME},
    client, soon,
};

/// Returns the content of a lock file with this last token.
fn record(token: u64) -> String {
    let text = format!("lockkit-token-1 {token:020} ");
    format!("{text}{:08x}\n", crc32fast::hash(text.as_bytes()))
}

async fn next_token(folder: &Path) -> u64 {
    let guard = client(folder).await.lock(NAME).unwrap().acquire().await.unwrap();
    let token = guard.token();
    guard.release().await.unwrap();
    token.get()
}

#[tokio::test]
async fn processes_exclude_each_other_and_their_tokens_never_repeat() {
    const PROCESSES: usize = 6;
    const ROUNDS: usize = 30;
    let folder = tempfile::tempdir().unwrap();
    let mut racers: Vec<Child> = (0..PROCESSES).map(|_| Child::racer(folder.path(), ROUNDS)).collect();
    let mut tokens = Vec::new();
    for racer in &mut racers {
        let lines = racer.all_lines().await;
        assert_eq!(lines.len(), ROUNDS, "{lines:?}");
        let own: Vec<u64> = lines
            .iter()
            .map(|line| line.strip_prefix("token ").unwrap_or_else(|| panic!("{line}")).parse().unwrap())
            .collect();
        assert!(own.is_sorted_by(|earlier, later| earlier < later));
        tokens.extend(own);
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), PROCESSES * ROUNDS);
}

#[tokio::test]
async fn tokens_rise_across_restarts_and_clock_steps() {
    let folder = tempfile::tempdir().unwrap();
    let first = next_token(folder.path()).await;
    let mut child = Child::holder(folder.path());
    let second = child.held().await;
    assert!(second > first);
    child.kill().await;
    assert!(next_token(folder.path()).await > second);

    // The token of a clock that was a century ahead.
    let future = first + 100 * 365 * 24 * 3600 * 1_000_000;
    fs::write(folder.path().join("orders%2F42.lock"), record(future)).unwrap();
    assert_eq!(next_token(folder.path()).await, future + 1);
    assert_eq!(next_token(folder.path()).await, future + 2);
}

#[tokio::test]
async fn tokens_rise_from_the_wall_clock_when_the_lock_file_was_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let before = next_token(folder.path()).await;
    fs::remove_file(folder.path().join("orders%2F42.lock")).unwrap();
    assert!(next_token(folder.path()).await > before);
}

/// No client makes a grant per microsecond, so no token of a deleted file is ahead of the clock.
#[tokio::test]
async fn first_token_is_the_wall_clock_in_microseconds() {
    let folder = tempfile::tempdir().unwrap();
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    assert!(u128::from(next_token(folder.path()).await) >= before);
}

#[tokio::test]
async fn a_lock_is_held_until_its_process_releases_it() {
    let folder = tempfile::tempdir().unwrap();
    let lock = client(folder.path()).await.lock(NAME).unwrap();
    let mut child = Child::holder(folder.path());
    let token = FencingToken::new(child.held().await);
    assert!(lock.try_acquire().await.unwrap().is_none());
    child.release().await;
    assert!(lock.try_acquire().await.unwrap().unwrap().token() > token);
}

#[tokio::test]
async fn a_killed_holder_frees_the_lock_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let lock = client(folder.path()).await.lock(NAME).unwrap();
    let mut child = Child::holder(folder.path());
    let token = child.held().await;
    let waiter = tokio::spawn(async move { lock.acquire().await });
    child.kill().await;
    // The lock is free as soon as the process has ended.
    let other = client(folder.path()).await.lock("another").unwrap();
    drop(other.try_acquire().await.unwrap().unwrap());
    assert!(soon("the next grant", waiter).await.unwrap().unwrap().token().get() > token);
}

#[tokio::test]
async fn a_child_of_a_killed_holder_does_not_keep_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let lock = client(folder.path()).await.lock(NAME).unwrap();
    let mut holder = Child::holder_with_child(folder.path());
    let sleeper = Sleeper::said_by(&mut holder).await;
    holder.held().await;
    holder.kill().await;
    assert!(lock.try_acquire().await.unwrap().is_some(), "free as soon as the process is gone");
    assert!(sleeper.lives(), "the child outlives the holder");
}

#[tokio::test]
async fn process_with_the_locked_file_keeps_the_lock_of_a_killed_holder() {
    let folder = tempfile::tempdir().unwrap();
    let lock = client(folder.path()).await.lock(NAME).unwrap();
    let mut holder = Child::holder_with_heir(folder.path());
    let heir = Sleeper::said_by(&mut holder).await;
    let token = holder.held().await;
    holder.kill().await;
    assert!(lock.try_acquire().await.unwrap().is_none(), "the heir has the file open");
    drop(heir);
    assert!(soon("the next grant", lock.acquire()).await.unwrap().token().get() > token);
}

/// A process that is not a child of this one; killed by its id when dropped.
struct Sleeper(Pid);

impl Sleeper {
    async fn said_by(holder: &mut Child) -> Self {
        let line = holder.line().await;
        Self(line.strip_prefix("child ").and_then(|pid| Pid::from_raw(pid.parse().ok()?)).unwrap())
    }

    fn lives(&self) -> bool {
        test_kill_process(self.0).is_ok()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        kill_process(self.0, Signal::KILL).unwrap();
    }
}

#[tokio::test]
async fn names_that_differ_are_different_locks() {
    let folder = tempfile::tempdir().unwrap();
    let client = client(folder.path()).await;
    let names = ["a", "A", "a/b", "ab", "a\0", "..", "{}", "🔒", "\n", "con", "a.lock", "a.holder"];
    let mut guards = Vec::new();
    for name in names {
        guards.push(
            client.lock(name).unwrap().try_acquire().await.unwrap().unwrap_or_else(|| panic!("{name:?}")),
        );
    }
    for name in names {
        assert!(client.lock(name).unwrap().try_acquire().await.unwrap().is_none(), "{name:?}");
    }
    let long = client.lock("Ü".repeat(512)).unwrap();
    guards.push(long.try_acquire().await.unwrap().unwrap());
    let inside = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(inside, 2 * guards.len(), "all files lie directly in the folder");
}
