//! Work that runs once in each period, over all processes.
//!
//! A record that belongs to the lock holds the start of the last period whose work has begun. The process that begins the
//! work takes the lock, reads the record, writes the new one under its grant, and only then works. Failure cases:
//!
//! * Clocks differ: a process whose clock is late still sees the old period, whose work the record shows as begun; one
//!   whose clock is early begins the next period's work early, once. The record never moves back.
//! * A process comes late, after the work is done: it reads the record.
//! * The holder is paused before it writes the record, and another one takes over: the store refuses the write.
//! * The process dies after it has written the record, or loses the lock before it learns that it has: nobody does the
//!   work of this period. It runs at most once.
//! * The client is drained while the record is written: the write is awaited, and the work is done. Only a store that does
//!   not answer ends it at the time limit.
//! * A clock is far ahead and writes a period of the future: the others return an error, instead of doing nothing in
//!   silence until then.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::Instant;

use crate::{
    Error, ErrorKind, Lock, LockGuard, LockName, Result, RunError,
    backend::retry_pauses,
    client::Handle,
    limits::{ONCE_PERIOD_MAX, ONCE_PERIOD_MIN, ONCE_READ_PAUSE, ONCE_RECORD_RESERVE, TRY_ANSWER_MAX},
};

type WallClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Work that runs once in each period, over all processes that share the store and the name.
///
/// Periods begin at multiples of their length since 1970 (UTC): one of a day begins at 00:00 UTC. The wall clocks of the
/// processes determine the period; they need not agree. The work runs **at most once** in a period: if a process dies
/// while it works, or the work fails, no other process tries again.
///
/// ```
/// use std::time::Duration;
///
/// use lockkit_core::{LockClient, memory::MemoryServer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkit_core::Result<()> {
/// let client = LockClient::builder(MemoryServer::new().backend()).build().await?;
/// let nightly = client.once_per("invoices", Duration::from_secs(24 * 60 * 60))?;
/// for _ in 0..2 {
///     match nightly.run(async |_guard| "sent").await {
///         Ok(Some(done)) => println!("{done}"),
///         Ok(None) => println!("somebody has done it today"),
///         Err(error) => println!("{error:#}"),
///     }
/// }
/// client.close().await
/// # }
/// ```
#[derive(Clone)]
pub struct OncePer {
    client: Arc<Handle>,
    lock: Lock,
    period: Duration,
    wall_clock: WallClock,
}

/// The answer to who does the work of a period.
#[derive(Debug)]
#[non_exhaustive]
pub enum Turn {
    /// The caller, under this guard. The period counts as done from now on.
    Yours(LockGuard),
    /// Somebody has begun the work of this period already.
    Done,
    /// Unknown: another holder had the lock until the time limit.
    Busy,
}

impl OncePer {
    pub(crate) fn new(client: Arc<Handle>, name: LockName, period: Duration) -> Result<Self> {
        client.keeper().require_records().map_err(|error| error.with_lock(&name))?;
        if !(ONCE_PERIOD_MIN..=ONCE_PERIOD_MAX).contains(&period) {
            return Err(Error::new(ErrorKind::InvalidConfig, "once per")
                .with_lock(&name)
                .with_message(format!("a period lasts {ONCE_PERIOD_MIN:?} to {ONCE_PERIOD_MAX:?}")));
        }
        let lock = Lock::new(Arc::clone(&client), name);
        Ok(Self { client, lock, period, wall_clock: Arc::new(SystemTime::now) })
    }

    /// Sets the clock that determines the period; tests use it. Default: the machine's wall clock.
    #[must_use]
    pub fn wall_clock(mut self, now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.wall_clock = Arc::new(now);
        self
    }

    /// Waits until it is known who does the work of this period; returns a guard if the caller must do it.
    ///
    /// # Errors
    ///
    /// As [`begin_timeout`](Self::begin_timeout).
    ///
    /// # Cancel safety
    ///
    /// As [`begin_timeout`](Self::begin_timeout).
    pub async fn begin(&self) -> Result<Option<LockGuard>> {
        match self.begin_until(None).await? {
            Turn::Yours(guard) => Ok(Some(guard)),
            Turn::Done | Turn::Busy => Ok(None),
        }
    }

    /// Like [`begin`](Self::begin), for at most `timeout`; a store that does not answer may take [`TRY_ANSWER_MAX`]
    /// longer. Goes through outages of the store within that time.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire_timeout`]; `InvalidConfig` if the clock shows a time before 1970; `Lost` if the grant was lost before
    /// the store confirmed the record (the period may count as done then); `Unexpected` if the record shows a period that is more than one period ahead of the clock here.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no lock behind. The period may count as done although nobody did its work.
    pub async fn begin_timeout(&self, timeout: Duration) -> Result<Turn> {
        let limit = Instant::now().checked_add(timeout);
        let answer_max = limit.and_then(|limit| limit.checked_add(TRY_ANSWER_MAX));
        let Some(answer_max) = answer_max else { return self.begin_until(None).await };
        tokio::select! {
            biased;
            turn = self.begin_until(limit) => turn,
            () = self.client.keeper().sleep_until(answer_max) => Err(Error::new(ErrorKind::Unavailable, "once per")
                .with_lock(self.lock.name())
                .with_message("the store did not answer in time; this period may count as done")),
        }
    }

    async fn begin_until(&self, limit: Option<Instant>) -> Result<Turn> {
        let (mut pauses, mut was_busy) = (retry_pauses(), false);
        loop {
            let is_over = limit.is_some_and(|limit| limit <= Instant::now());
            match self.begin_once(limit).await {
                // Another holder may write the record at any time.
                Ok(Turn::Busy) => {
                    was_busy = true;
                    if is_over {
                        return Ok(Turn::Busy);
                    }
                }
                Err(error) if error.is_temporary() => {
                    if is_over {
                        return if was_busy { Ok(Turn::Busy) } else { Err(error) };
                    }
                    let keeper = self.client.keeper();
                    keeper.pause_until(Instant::now() + pauses.next_pause()).await;
                    keeper.check_open().map_err(|error| error.with_lock(self.lock.name()))?;
                }
                answer => return answer,
            }
        }
    }

    /// Reads the record, and waits for the lock for a short while.
    async fn begin_once(&self, limit: Option<Instant>) -> Result<Turn> {
        // First without the lock: it is held for as long as the work takes.
        if self.start_unless_begun().await?.is_none() {
            return Ok(Turn::Done);
        }
        let rest = limit.map(|limit| limit.saturating_duration_since(Instant::now()));
        let wait = rest.map_or(ONCE_READ_PAUSE, |rest| rest.min(ONCE_READ_PAUSE));
        let Some(guard) = self.lock.acquire_timeout(wait).await? else { return Ok(Turn::Busy) };
        // Again under the lock: another holder may have written it meanwhile.
        let Some(start) = self.start_unless_begun().await? else {
            // Nothing was done under the lock: the answer does not wait for its release.
            drop(guard);
            return Ok(Turn::Done);
        };
        let keep = self.period * 2 + ONCE_RECORD_RESERVE;
        guard.write_record(start.as_millis().to_string(), keep).await?;
        Ok(Turn::Yours(guard))
    }

    /// Runs `work` under the lock if the caller must do the work of this period, and releases the lock; returns `None`
    /// without running it otherwise.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::run`]; also [`RunError::Stopped`] with an error of [`begin`](Self::begin), before `work` starts.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` at its current await and releases the lock; the period counts as done.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&LockGuard) -> T) -> Result<Option<T>, RunError<T>> {
        match self.begin().await.map_err(RunError::Stopped)? {
            Some(guard) => guard.run_and_release(work).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the start of the current period, or `None` if its work has begun already.
    async fn start_unless_begun(&self) -> Result<Option<Duration>> {
        let record = self.client.keeper().record(self.lock.name()).await?;
        // One reading of the clock decides, and is written.
        let start = self.period_start()?;
        let Some(record) = record else { return Ok(Some(start)) };
        let unexpected = |what: String| {
            Err(Error::new(ErrorKind::Unexpected, "once per").with_lock(self.lock.name()).with_message(what))
        };
        let written = record.parse::<u64>().ok().filter(|begun| begun.to_string() == record);
        let Some(begun) = written.map(Duration::from_millis) else {
            return unexpected("the record is no period that this library writes".into());
        };
        match begun.checked_sub(start) {
            Some(ahead) if ahead > self.period => unexpected(format!(
                "the record is {ahead:?} ahead of this host's wall clock: check it, and the clocks of the other hosts"
            )),
            Some(_) => Ok(None),
            None => Ok(Some(start)),
        }
    }

    /// Returns the start of the current period, as time since 1970.
    fn period_start(&self) -> Result<Duration> {
        let since_epoch = (self.wall_clock)().duration_since(UNIX_EPOCH).map_err(|cause| {
            Error::new(ErrorKind::InvalidConfig, "once per")
                .with_lock(self.lock.name())
                .with_message("the wall clock is before 1970")
                .with_source(cause)
        })?;
        let period = self.period.as_millis();
        let start = since_epoch.as_millis() / period * period;
        Ok(Duration::from_millis(u64::try_from(start).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for OncePer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OncePer")
            .field("name", self.lock.name())
            .field("period", &self.period)
            .finish_non_exhaustive()
    }
}
