//! `lockkit who`: shows who holds a lock, and who waits for it.

use std::{fmt::Write as _, time::Duration};

use lockkit::{Error, LockClient, LockName, backend::Inspection};
use tokio::time::sleep;

use crate::{
    args::WhoArguments,
    configured_store::ConfiguredStore,
    describe::{as_json, describe, describe_holder, identity, printable_json},
    exit::{Failure, print, status_of_signal, warn},
    signals::{ENDING, Signals},
    store::Store,
    under_lock::unless_ended,
};

/// Exit status: somebody holds the lock.
const HELD: u8 = 0;
/// Exit status: nobody holds the lock or waits for it.
const FREE: u8 = 1;
/// Exit status: nobody holds the lock, but somebody waits: it is being handed over, or a waiter is about to find out.
const BETWEEN: u8 = 2;

/// Pause between two inspections of `--watch`.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// Prints the answer on stdout; returns whether the lock is held as an exit status.
pub(crate) async fn who(arguments: WhoArguments) -> Result<u8, Failure> {
    let name = LockName::new(&arguments.name)?;
    let client = ConfiguredStore::to(&Store::from(&arguments.store)?, None, None)?.open().await?;
    let show = |found: &Inspection| match arguments.json {
        true => print(&printable_json(&as_json(&name, found))),
        false => print(as_text(&name, found).trim_end()),
    };
    let outcome =
        if arguments.watch { watch(&client, &name, show).await } else { once(&client, &name, show).await };
    let _ = client.close().await;
    outcome
}

async fn once(
    client: &LockClient,
    name: &LockName,
    show: impl Fn(&Inspection) -> Result<(), Failure>,
) -> Result<u8, Failure> {
    let found = client.inspect(name.as_str()).await?;
    show(&found)?;
    Ok(status(&found))
}

fn status(found: &Inspection) -> u8 {
    match (&found.holder, found.waiters.is_empty()) {
        (Some(_), _) => HELD,
        (None, true) => FREE,
        (None, false) => BETWEEN,
    }
}

/// Prints every change until a signal; a store that does not answer is waited for.
async fn watch(
    client: &LockClient,
    name: &LockName,
    show: impl Fn(&Inspection) -> Result<(), Failure>,
) -> Result<u8, Failure> {
    let mut signals = Signals::listen(ENDING)?;
    let say = |error: &Error| warn(format_args!("{error:#}; trying again"));
    let watching = show_changes(async || client.inspect(name.as_str()).await, show, say);
    match unless_ended(&mut signals, watching).await {
        Ok(failure) => Err(failure),
        Err(signal) => Ok(status_of_signal(signal.as_raw())),
    }
}

/// Shows every change, and says once per outage that the store does not answer. Returns why it cannot continue.
async fn show_changes(
    inspect: impl AsyncFn() -> lockkit::Result<Inspection>,
    show: impl Fn(&Inspection) -> Result<(), Failure>,
    say: impl Fn(&Error),
) -> Failure {
    let mut shown: Option<Inspection> = None;
    let mut silence = StoreIsSilent::default();
    loop {
        match inspect().await {
            Ok(found) => {
                if shown.as_ref().is_none_or(|shown| identity(shown) != identity(&found)) {
                    if let Err(failure) = show(&found) {
                        return failure;
                    }
                    shown = Some(found);
                }
                silence.end();
            }
            Err(error) if error.is_temporary() => {
                if silence.begin() {
                    say(&error);
                }
            }
            Err(error) => return error.into(),
        }
        sleep(WATCH_PAUSE).await;
    }
}

/// Whether the store does not answer at present.
#[derive(Debug, Default)]
struct StoreIsSilent(bool);

impl StoreIsSilent {
    /// Notes an inspection without an answer; returns whether it is the first one.
    fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.0, true)
    }

    fn end(&mut self) {
        self.0 = false;
    }
}

/// One line for the holder, one for each waiter.
fn as_text(name: &LockName, found: &Inspection) -> String {
    let mut text = match describe_holder(found) {
        Some(holder) => format!("{:?} is held by {holder}\n", name.as_str()),
        None if found.waiters.is_empty() => format!("{:?} is free\n", name.as_str()),
        None => format!("{:?} is held by nobody yet\n", name.as_str()),
    };
    for (place, waiter) in found.waiters.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}. waits: {}", place + 1, describe(waiter));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use lockkit::{ErrorKind, backend::Contender};

    use super::*;
    use crate::exit::DENIED;

    #[test]
    fn status_is_that_of_the_lock() {
        let somebody = || Contender::new("k", None, None);
        for (holder, waiters, expected) in [
            (Some(somebody()), vec![somebody()], HELD),
            (Some(somebody()), vec![], HELD),
            (None, vec![somebody()], BETWEEN),
            (None, vec![], FREE),
        ] {
            assert_eq!(status(&Inspection::new(holder, waiters)), expected);
        }
    }

    #[test]
    fn each_outage_is_said_once() {
        let mut silence = StoreIsSilent::default();
        assert_eq!([silence.begin(), silence.begin()], [true, false]);
        silence.end();
        assert_eq!([silence.begin(), silence.begin()], [true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn second_outage_is_said_although_nothing_has_changed_between_them() {
        let free = || Ok(Inspection::new(None, vec![]));
        let failed = |kind| Err(Error::new(kind, "inspect"));
        let outage = || failed(ErrorKind::Unavailable);
        let answers = [free(), outage(), outage(), free(), outage(), failed(ErrorKind::Denied)];
        let answers = RefCell::new(answers.into_iter());
        let (shown, said) = (Cell::new(0), Cell::new(0));
        let show = |_: &Inspection| {
            shown.set(shown.get() + 1);
            Ok(())
        };
        let say = |_: &Error| said.set(said.get() + 1);
        let next = async || answers.borrow_mut().next().unwrap();
        let failure = show_changes(next, show, say).await;
        assert_eq!((failure.status, shown.get(), said.get()), (DENIED, 1, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn silent_store_is_asked_after_a_pause_each_time() {
        let begin = tokio::time::Instant::now();
        let asked = Cell::new(0);
        let answer = async || {
            asked.set(asked.get() + 1);
            let kind = if asked.get() > 3 { ErrorKind::Denied } else { ErrorKind::Unavailable };
            Err::<Inspection, Error>(Error::new(kind, "inspect"))
        };
        let show = |_: &Inspection| Ok(());
        let failure = show_changes(answer, show, |_: &Error| ()).await;
        assert_eq!((failure.status, asked.get()), (DENIED, 4));
        assert!(begin.elapsed() >= 3 * WATCH_PAUSE, "{:?}", begin.elapsed());
    }

    #[test]
    fn waiters_are_numbered_in_the_order_of_the_queue() {
        let name = LockName::new("a").unwrap();
        let waiters = ["w1", "w2"].map(|entry| Contender::new(entry, None, None));
        let text = as_text(&name, &Inspection::new(None, waiters.into()));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "\"a\" is held by nobody yet");
        assert_eq!(lines[1], "1. waits: another program (entry \"w1\")");
        assert_eq!(lines[2..], ["2. waits: another program (entry \"w2\")"]);
    }
}
