//! `lockkit break`: takes a lock away from its holder.
//!
//! Failure cases:
//!
//! * The holder releases, and another one is granted, between the inspection and the break: the store compares the
//!   holder that was shown, so nobody else is broken.
//! * The reply is lost: the lock may be broken. The command says so, and is run again.

use std::io::{BufRead, IsTerminal, Write, stderr, stdin};

use lockkit::{
    LockClient, LockName,
    backend::{Contender, Inspection, QueueKind},
};

use crate::{
    args::BreakArguments,
    configured_store::ConfiguredStore,
    describe::{describe, describe_holder},
    exit::{CONFIG, Failure, USAGE, print},
    store::Store,
};

/// Exit status: the hold was ended.
const BROKEN: u8 = 0;
/// Exit status: nobody holds the lock.
const FREE: u8 = 1;
/// Exit status: the holder that was shown does not hold the lock any more.
const CHANGED: u8 = 2;
/// Exit status: the person has not confirmed.
const DECLINED: u8 = 3;

/// Shows the holder, asks, and ends its hold.
pub(crate) async fn break_lock(arguments: BreakArguments) -> Result<u8, Failure> {
    let name = LockName::new(&arguments.name)?;
    let can_ask = stdin().is_terminal() && stderr().is_terminal();
    if !arguments.yes && !can_ask {
        return Err(Failure::new(USAGE, "cannot ask without a terminal: confirm with --yes"));
    }
    let client = ConfiguredStore::to(&Store::from(&arguments.store)?, None, None)?.open().await?;
    let confirm = || if arguments.yes { Ok(true) } else { ask(&name) };
    let outcome = break_holder(&client, &name, confirm, print).await;
    let _ = client.close().await;
    outcome
}

async fn break_holder(
    client: &LockClient,
    name: &LockName,
    confirm: impl FnOnce() -> Result<bool, Failure>,
    mut print: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<u8, Failure> {
    let found = client.inspect(name.as_str()).await?;
    let Some(holder) = &found.holder else {
        print(&format!("{:?} is held by nobody", name.as_str()))?;
        return Ok(FREE);
    };
    print(&format!("{:?} is held by {}", name.as_str(), describe_holder(&found).unwrap_or_default()))?;
    if found.waiters.is_empty() && client.promises().queue != QueueKind::Fifo {
        // Without a queue, waiters leave nothing in the store.
        print("who waits for it cannot be seen at this store")?;
    } else {
        print(&describe_next(&found.waiters))?;
    }
    if !client.info().powers.break_lock {
        let message = format!("a lock of {}: cannot be broken; end its holder", client.info().scheme);
        return Err(Failure::new(CONFIG, message));
    }
    if !confirm()? {
        return Ok(DECLINED);
    }
    let is_broken = client.break_lock(name.as_str(), holder).await?;
    conclude(is_broken, client.inspect(name.as_str()).await, print)
}

/// Prints what the break has done and who holds the lock `now`, if that can be seen; returns the exit status.
fn conclude(
    is_broken: bool,
    now: lockkit::Result<Inspection>,
    mut print: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<u8, Failure> {
    print(&describe_outcome(is_broken, now.ok().as_ref()))?;
    Ok(if is_broken { BROKEN } else { CHANGED })
}

fn describe_next(waiters: &[Contender]) -> String {
    match waiters {
        [] => "nobody waits for it".into(),
        [next] => format!("next: {}", describe(next)),
        [next, others @ ..] => format!("next: {}; and {} more", describe(next), others.len()),
    }
}

fn describe_outcome(is_broken: bool, now: Option<&Inspection>) -> String {
    let result = if is_broken { "broken" } else { "not broken: it is not held by this holder any more" };
    match now {
        Some(now) => match (&now.holder, &*now.waiters) {
            (Some(holder), _) => format!("{result}; now held by {}", describe(holder)),
            (None, []) => format!("{result}; now free"),
            (None, waiters) => format!("{result}; {}", describe_next(waiters)),
        },
        None => result.into(),
    }
}

/// Asks at the terminal; only `y` and `yes` confirm.
fn ask(name: &LockName) -> Result<bool, Failure> {
    let failed = |cause| Failure::system("ask", cause);
    let mut terminal = stderr();
    write!(terminal, "the holder may still be working; break {:?}? [y/N] ", name.as_str())
        .and_then(|()| terminal.flush())
        .map_err(failed)?;
    let mut answer = String::new();
    stdin().lock().read_line(&mut answer).map_err(failed)?;
    Ok(matches!(&*answer.trim().to_ascii_lowercase(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use lockkit::{Error, ErrorKind, memory::MemoryServer};

    use super::*;

    /// Runs the command with this answer; returns what it printed, and its status.
    async fn run(client: &LockClient, yes: bool) -> (String, u8) {
        let (mut lines, name) = (Vec::new(), LockName::new("a").unwrap());
        let keep = |line: &str| {
            lines.push(line.to_owned());
            Ok(())
        };
        let status = break_holder(client, &name, || Ok(yes), keep).await.unwrap();
        (lines.join("\n"), status)
    }

    #[tokio::test]
    async fn the_shown_holder_is_broken_and_the_next_one_is_named() {
        let server = MemoryServer::new();
        let client = LockClient::builder(server.backend()).build().await.unwrap();
        assert_eq!(run(&client, true).await, ("\"a\" is held by nobody".into(), FREE));
        let held = client.lock("a").unwrap().acquire().await.unwrap();
        let (text, status) = run(&client, false).await;
        assert!(status == DECLINED && text.contains("nobody waits") && held.is_held(), "{text}");

        let next = LockClient::builder(server.backend()).label("next one").build().await.unwrap();
        let lock = next.lock("a").unwrap();
        let waiter = tokio::spawn(async move { lock.acquire().await });
        while client.inspect("a").await.unwrap().waiters.is_empty() {
            tokio::task::yield_now().await;
        }
        let (text, status) = run(&client, true).await;
        assert_eq!(status, BROKEN, "{text}");
        assert!(text.contains("next: host") && text.contains("\nbroken; now held by"), "{text}");
        assert!(text.matches("label \"next one\"").count() == 2, "{text}");
        assert!(held.lost().await.is_lost());
        let granted = waiter.await.unwrap().unwrap();
        assert!(granted.is_held());
    }

    #[tokio::test]
    async fn holder_that_is_gone_when_it_is_confirmed_is_not_broken() {
        let (server, name) = (MemoryServer::new(), LockName::new("a").unwrap());
        let client = LockClient::builder(server.backend()).build().await.unwrap();
        let _held = client.lock("a").unwrap().acquire().await.unwrap();
        let operator = LockClient::builder(server.backend()).build().await.unwrap();
        let gone = || {
            server.expire_all();
            Ok(true)
        };
        assert_eq!(break_holder(&operator, &name, gone, |_| Ok(())).await.unwrap(), CHANGED);
    }

    #[tokio::test]
    async fn holder_that_came_meanwhile_is_not_broken() {
        let client = LockClient::builder(MemoryServer::new().backend()).build().await.unwrap();
        let shown = client.lock("a").unwrap().acquire().await.unwrap();
        let found = client.inspect("a").await.unwrap().holder.unwrap();
        shown.release().await.unwrap();
        let other = client.lock("a").unwrap().acquire().await.unwrap();
        let is_broken = client.break_lock("a", &found).await.unwrap();
        let now = client.inspect("a").await.unwrap();
        let text = describe_outcome(is_broken, Some(&now));
        assert!(!is_broken && other.is_held() && text.starts_with("not broken"), "{text}");
        assert!(text.contains("now held by host"), "{text}");
    }

    #[tokio::test]
    async fn next_holder_that_came_during_the_question_is_not_broken() {
        let (server, name) = (MemoryServer::new(), LockName::new("a").unwrap());
        let client = LockClient::builder(server.backend()).build().await.unwrap();
        let _shown = client.lock("a").unwrap().acquire().await.unwrap();
        let next = LockClient::builder(server.backend()).build().await.unwrap();
        let lock = next.lock("a").unwrap();
        let waiter = tokio::spawn(async move { lock.acquire().await });
        let operator = LockClient::builder(server.backend()).build().await.unwrap();
        while operator.inspect("a").await.unwrap().waiters.is_empty() {
            tokio::task::yield_now().await;
        }
        let hand_over = || Ok(server.expire_holder(&name));
        assert_eq!(break_holder(&operator, &name, hand_over, |_| Ok(())).await.unwrap(), CHANGED);
        let granted = waiter.await.unwrap().unwrap();
        assert!(granted.is_held());
    }

    #[test]
    fn broken_lock_that_cannot_be_looked_at_again_is_broken() {
        for (is_broken, text, status) in [(true, "broken", BROKEN), (false, "not broken", CHANGED)] {
            let unseen = Err(Error::new(ErrorKind::Unavailable, "inspect"));
            let mut printed = String::new();
            let keep = |line: &str| {
                printed += line;
                Ok(())
            };
            assert_eq!(conclude(is_broken, unseen, keep).unwrap(), status);
            assert!(printed.starts_with(text), "{printed}");
        }
    }

    #[test]
    fn outcome_names_the_holder_or_who_comes_next() {
        let outcome = |holder: Option<&str>, waiters: &[&str]| {
            let holder = holder.map(|entry| Contender::new(entry, None, None));
            let waiters = waiters.iter().map(|entry| Contender::new(*entry, None, None));
            describe_outcome(true, Some(&Inspection::new(holder, waiters.collect())))
        };
        assert_eq!(outcome(Some("h"), &["w"]), "broken; now held by another program (entry \"h\")");
        assert_eq!(outcome(None, &[]), "broken; now free");
        assert_eq!(outcome(None, &["w"]), "broken; next: another program (entry \"w\")");
        let three = outcome(None, &["w1", "w2", "w3"]);
        assert_eq!(three, "broken; next: another program (entry \"w1\"); and 2 more");
    }
}
