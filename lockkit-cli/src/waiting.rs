//! What the wait is for, said on stderr while it lasts. If nobody reads that, the wait does not stop: the lock may be
//! granted meanwhile.

use std::{convert::Infallible, future::Future, time::Duration};

use lockkit::{LockClient, LockName, Metadata, Result, backend::Inspection};
use tokio::time::{sleep, timeout};

use crate::{
    describe::{describe, is_of},
    log::say_or_drop,
};

/// A shorter wait is not worth a line.
const NOTICE_DELAY: Duration = Duration::from_secs(1);

/// First pause between two inspections of the lock that is waited for; it doubles up to [`INSPECT_PAUSE_MAX`].
const INSPECT_PAUSE_MIN: Duration = Duration::from_secs(1);

/// Longest pause between two inspections: many waiters must not be a load for the store.
const INSPECT_PAUSE_MAX: Duration = Duration::from_secs(15);

/// Time limit of an inspection, for which nobody should wait long.
const INSPECT_MAX: Duration = Duration::from_secs(2);

/// Runs `wait` to its end, and meanwhile `notice`, if there is one.
pub(crate) async fn with_notice<T>(
    wait: impl Future<Output = T>,
    notice: Option<impl Future<Output = Infallible>>,
) -> T {
    let notice = async {
        match notice {
            Some(notice) => notice.await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        done = wait => done,
        never = notice => match never {},
    }
}

/// Says that the store is waited for.
pub(crate) async fn notice_of_store() -> Infallible {
    sleep(NOTICE_DELAY).await;
    say_or_drop("waiting for the store to answer");
    std::future::pending().await
}

/// Says who holds the lock, and again when that changes.
///
/// # Cancel safety
///
/// Cancel safe: it only reads.
pub(crate) async fn notice_of_holder(client: &LockClient, name: &LockName) -> Infallible {
    report_holder(client, name, &Metadata::of_this_process(None), |line| say_or_drop(line)).await
}

async fn report_holder(
    client: &LockClient,
    name: &LockName,
    own: &Metadata,
    mut report: impl FnMut(&str),
) -> Infallible {
    sleep(NOTICE_DELAY).await;
    let mut pause = INSPECT_PAUSE_MIN;
    let mut reported = None;
    loop {
        let found = inspected(client.inspect(name.as_str())).await;
        if let Some(seen) = Seen::of(found, own)
            && reported.as_ref() != Some(&seen)
        {
            report(&format!("waiting for lock {:?}: {}", name.as_str(), seen.text()));
            reported = Some(seen);
        }
        sleep(pause).await;
        pause = longer(pause);
    }
}

/// Awaits an inspection; `None` if it takes too long.
pub(crate) async fn inspected<T>(inspection: impl Future<Output = T>) -> Option<T> {
    timeout(INSPECT_MAX, inspection).await.ok()
}

/// Returns the pause after this one.
fn longer(pause: Duration) -> Duration {
    (pause * 2).min(INSPECT_PAUSE_MAX)
}

/// What a waiter wants to know.
#[derive(Debug)]
enum Seen {
    Holder { entry: String, text: String, before: Option<usize> },
    NoAnswer(String),
}

impl Seen {
    /// Returns `None` if there is nothing to say: the lock is being handed over.
    fn of(found: Option<Result<Inspection>>, own: &Metadata) -> Option<Self> {
        let found = match found {
            Some(Ok(found)) => found,
            Some(Err(error)) => return Some(Self::NoAnswer(format!("{error:#}"))),
            None => return Some(Self::NoAnswer(format!("no answer within {INSPECT_MAX:?}"))),
        };
        let holder = found.holder.filter(|holder| !is_of(holder, own))?;
        let before = found.waiters.iter().position(|waiter| is_of(waiter, own));
        Some(Self::Holder {
            text: describe(&holder),
            entry: format!("{} {:?}", holder.entry, holder.token),
            before,
        })
    }

    fn text(&self) -> String {
        match self {
            Self::Holder { text, before: Some(0), .. } => format!("held by {text}; you are next"),
            Self::Holder { text, before: Some(before), .. } => format!("held by {text}; {before} before you"),
            Self::Holder { text, before: None, .. } => format!("held by {text}"),
            Self::NoAnswer(error) => format!("its holder is unknown: {error}"),
        }
    }
}

/// Equal if only times have changed.
impl PartialEq for Seen {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Holder { entry, before, .. }, Self::Holder { entry: of_other, before: at_other, .. }) => {
                (entry, before) == (of_other, at_other)
            }
            (Self::NoAnswer(_), Self::NoAnswer(_)) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkit::{Clock, FencingToken, backend::Contender, memory::MemoryServer};

    use super::*;

    fn of_other(entry: &str) -> Contender {
        let mut metadata = Metadata::of_this_process(Some("nightly"));
        metadata.pid = 1;
        Contender::new(entry, None, Some(metadata))
    }

    fn own() -> Contender {
        Contender::new("own", None, Some(Metadata::of_this_process(None)))
    }

    fn seen(holder: Option<Contender>, waiters: Vec<Contender>) -> Option<Seen> {
        Seen::of(Some(Ok(Inspection::new(holder, waiters))), &Metadata::of_this_process(None))
    }

    #[test]
    fn place_in_the_queue_is_said() {
        let with = |waiters| seen(Some(of_other("holder")), waiters).unwrap().text();
        assert!(with(vec![of_other("a"), of_other("b"), own()]).ends_with("; 2 before you"));
        assert!(with(vec![own(), of_other("b")]).ends_with("; you are next"));
        let without_a_queue = with(vec![]);
        assert!(
            without_a_queue.starts_with("held by host") && !without_a_queue.contains(';'),
            "{without_a_queue}"
        );
        assert!(seen(None, vec![own()]).is_none(), "a handoff");
        assert!(seen(Some(own()), vec![]).is_none(), "granted just now");
    }

    #[test]
    fn only_the_holder_and_the_place_are_changes() {
        let one = seen(Some(of_other("holder")), vec![own()]);
        assert_eq!(
            one,
            seen(Some(of_other("holder").with_remaining(INSPECT_MAX)), vec![own(), of_other("late")])
        );
        assert_ne!(one, seen(Some(of_other("next")), vec![own()]));
        // Some stores have one entry per lock for all its holders.
        let mut again = of_other("holder");
        again.token = Some(FencingToken::new(7));
        assert_ne!(one, seen(Some(again), vec![own()]));
        assert_ne!(one, seen(Some(of_other("holder")), vec![of_other("a"), own()]));
        let no_answer = |why: &str| Some(Seen::NoAnswer(why.into()));
        assert_eq!(no_answer("refused"), no_answer("no route"), "one outage");
        assert_ne!(one, no_answer("refused"));
    }

    #[test]
    fn pauses_between_inspections_double_up_to_their_bound() {
        let pauses = std::iter::successors(Some(INSPECT_PAUSE_MIN), |pause| Some(longer(*pause)));
        assert_eq!(pauses.take(6).map(|pause| pause.as_secs()).collect::<Vec<_>>(), [1, 2, 4, 8, 15, 15]);
    }

    #[tokio::test(start_paused = true)]
    async fn inspection_is_awaited_for_a_bounded_time() {
        let begin = tokio::time::Instant::now();
        let pending = inspected(std::future::pending::<()>());
        assert_eq!(timeout(INSPECT_MAX * 2, pending).await, Ok(None));
        assert_eq!(begin.elapsed(), INSPECT_MAX);
        assert_eq!(inspected(std::future::ready(7)).await, Some(7));
        let said = Seen::of(None, &Metadata::of_this_process(None)).unwrap().text();
        assert_eq!(said, "its holder is unknown: no answer within 2s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_is_said_after_a_second_and_once() {
        let server = MemoryServer::new();
        let client = LockClient::builder(server.backend()).clock(Clock::tokio()).build().await.unwrap();
        let name = LockName::new("a").unwrap();
        let mut of_other = Metadata::of_this_process(None);
        of_other.pid = 0;
        let lines = async |time| {
            let mut said = Vec::new();
            tokio::select! {
                biased;
                never = report_holder(&client, &name, &of_other, |line| said.push(line.to_owned())) => match never {},
                () = sleep(time) => said,
            }
        };
        let long = INSPECT_PAUSE_MAX * 4;
        assert!(lines(long).await.is_empty(), "nobody holds it");
        let one = client.lock("a").unwrap().acquire().await.unwrap();
        assert!(lines(NOTICE_DELAY / 2).await.is_empty(), "too short");
        let said = lines(long).await;
        assert!(said.len() == 1 && said[0].starts_with("waiting for lock \"a\": held by host"), "{said:?}");
        let (said, ()) = tokio::join!(lines(long), async {
            sleep(NOTICE_DELAY * 3).await;
            one.release().await.unwrap();
            let next = client.lock("a").unwrap().acquire().await.unwrap();
            sleep(long).await;
            next.release().await.unwrap();
        });
        assert_eq!(said.len(), 2, "{said:?}");
    }
}
