//! Random histories of contending clients, checked by the checkers of [`crate::history`].

use std::{
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lockkit_core::{
    Fence, FencingToken, LockClient, LockGuard, LockName, Owner,
    backend::{Acquired, Backend, QueueKind, Session},
    support::lock,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    Case,
    case::{Need, case},
    context::Cx,
    direct::claim,
    history::{
        Call, HoldRecord, Moment, Operation, Response, Write, fenced_writes, overlaps, queue_order,
        token_order,
    },
};

pub(super) const CASES: &[Case] = &[
    case!(random_histories_are_exclusive_ordered_and_fenced:
        TimedExclusion FencedExclusion TokenOrder Reentry; bugs 24 58 59),
    case!(random_histories_with_silent_holders_are_exclusive_and_ordered:
        TimedExclusion FencedExclusion TokenOrder BoundedTakeover Reentry,
        needs Need::Ttl; bugs 24 42 58 59),
];

const LOCKS: usize = 3;

/// Tasks of one client with one owner: each re-enters what the other holds.
const TASKS: usize = 2;

/// Pause while a lock is held.
const WORK: Duration = Duration::from_millis(3);

async fn random_histories_are_exclusive_ordered_and_fenced(cx: Cx) -> Result<()> {
    let histories = histories(&cx);
    contend(&cx, &histories, true).await?;
    histories.iter().try_for_each(|history| history.check(&cx))
}

async fn random_histories_with_silent_holders_are_exclusive_and_ordered(cx: Cx) -> Result<()> {
    let histories = histories(&cx);
    let mut silent = JoinSet::new();
    for history in histories.clone() {
        let (cx, deaths) = (cx.clone(), cx.times(5, 1));
        silent.spawn(async move {
            for _ in 0..deaths {
                sleep(cx.part_of(WORK * 10)).await;
                while !history.fall_silent(&cx).await? {}
            }
            anyhow::Ok(())
        });
    }
    contend(&cx, &histories, false).await?;
    while let Some(done) = silent.join_next().await {
        done??;
    }
    histories.iter().try_for_each(|history| history.check(&cx))
}

fn histories(cx: &Cx) -> Vec<Arc<LockHistory>> {
    let start = Instant::now();
    (0..LOCKS).map(|_| Arc::new(LockHistory::new(cx.name(), start))).collect()
}

/// Runs clients that acquire and re-enter the locks at random; `limited` ones give up after a random time.
async fn contend(cx: &Cx, histories: &[Arc<LockHistory>], limited: bool) -> Result<()> {
    let (clients, steps) = (cx.times(6, 3), cx.times(60, 12));
    let mut tasks = JoinSet::new();
    for number in 0..clients {
        let (client, owner) = (cx.client().await?, Owner::new());
        for task in 0..TASKS {
            let first = (number * TASKS + task) % LOCKS;
            let (client, owner, number) = (client.clone(), owner.clone(), number as u64);
            let caller = Caller { cx: cx.clone(), client, owner, number };
            let (cx, histories) = (cx.clone(), histories.to_vec());
            tasks.spawn(async move {
                // Without a limit: on a busy machine none of the others may be granted this lock.
                histories[first].step(&caller, None, false).await?;
                for _ in 1..steps {
                    let history = &histories[cx.random(LOCKS as u64) as usize];
                    let limit = limited.then(|| Duration::from_millis(cx.random(300)));
                    history.step(&caller, limit, cx.random(3) == 0).await?;
                    sleep(cx.part_of(WORK * 2)).await;
                }
                anyhow::Ok(())
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// A task that acquires locks.
struct Caller {
    cx: Cx,
    client: LockClient,
    owner: Owner,
    number: u64,
}

/// One entry into a lock, until its release.
struct LockEntry {
    guard: LockGuard,
    asked: Duration,
    granted: Duration,
}

/// What happened to one lock.
struct LockHistory {
    name: LockName,
    start: Instant,
    /// Numbers calls and responses in the order in which they happen.
    moments: AtomicU64,
    fence: Fence,
    recorded: Mutex<Recorded>,
}

#[derive(Default)]
struct Recorded {
    holds: Vec<HoldRecord>,
    /// The same, each until its release returned: up to then another task of the owner may share the hold.
    until_released: Vec<HoldRecord>,
    /// The same, each with the arrival of its claim at the store: a caller may have joined a running attempt.
    by_arrival: Vec<HoldRecord>,
    writes: Vec<Write>,
    operations: Vec<Operation>,
    /// Kept without renewals: a backend may end a session that is dropped.
    silent: Vec<Arc<dyn Session>>,
}

impl LockHistory {
    fn new(name: LockName, start: Instant) -> Self {
        Self { name, start, moments: AtomicU64::new(0), fence: Fence::new(), recorded: Mutex::default() }
    }

    /// Acquires the lock within the limit, writes under it, and re-enters it when `twice`.
    async fn step(&self, caller: &Caller, limit: Option<Duration>, twice: bool) -> Result<()> {
        let Some(outer) = self.enter(caller, limit).await? else { return Ok(()) };
        sleep(WORK).await;
        self.write(outer.guard.token().get())?;
        if twice && let Some(inner) = self.enter(caller, limit).await? {
            self.write(inner.guard.token().get())?;
            self.leave(caller, inner).await?;
        }
        self.leave(caller, outer).await
    }

    async fn enter(&self, caller: &Caller, limit: Option<Duration>) -> Result<Option<LockEntry>> {
        let lock = caller.client.lock(self.name.as_str())?.reentrant(&caller.owner);
        let (called, asked) = (self.moment(), self.start.elapsed());
        let acquired = match limit {
            Some(limit) => lock.acquire_timeout(limit).await,
            None => lock.acquire().await.map(Some),
        };
        let guard = match acquired {
            Ok(Some(guard)) => guard,
            Ok(None) => return Ok(None),
            // In a short time a loaded store may not have answered.
            Err(error) if limit.is_some() && error.is_temporary() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let granted = self.start.elapsed();
        self.note(
            Call::Acquire { owner: caller.number },
            called,
            Some(Response::Granted(guard.token().get())),
        );
        Ok(Some(LockEntry { guard, asked, granted }))
    }

    async fn leave(&self, caller: &Caller, entry: LockEntry) -> Result<()> {
        let LockEntry { guard, asked, granted } = entry;
        let (owner, token) = (caller.number, guard.token().get());
        let (called, ended) = (self.moment(), self.start.elapsed());
        guard.release().await?;
        let released = self.start.elapsed();
        self.note(Call::Release { owner, token }, called, Some(Response::Released));
        let held = self.held(owner, token, asked..granted, ended);
        let arrival = caller.cx.log().arrival(&self.name, FencingToken::new(token));
        let arrival = arrival.with_context(|| format!("no claim was granted the token {token}"))?;
        let mut recorded = self.recorded();
        recorded.until_released.push(HoldRecord { ended: released, ..held.clone() });
        recorded.by_arrival.push(HoldRecord {
            asked: asked.min(arrival.claimed.duration_since(self.start)),
            queued: arrival.queued.map(|at| at.duration_since(self.start)),
            ..held.clone()
        });
        recorded.holds.push(held);
        Ok(())
    }

    /// Acquires the lock and never renews it; returns false when it was not granted in time.
    async fn fall_silent(&self, cx: &Cx) -> Result<bool> {
        // No caller has such a number, and none is used twice.
        let (called, asked, clock) = (self.moment(), self.start.elapsed(), cx.clock());
        let owner = u64::MAX - called;
        let session = match cx.backend()?.open_session(cx.short_ttl(), clock.clone()).await {
            Ok(session) => session,
            // On a loaded store a short ttl may have passed when the session is open.
            Err(error) if error.is_temporary() => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        // The session may end while it waits behind another silent one.
        let Ok(Acquired::Granted(grant)) = session.acquire(claim(&self.name, true).0).await else {
            return Ok(false);
        };
        let (token, granted) = (grant.token().get(), self.start.elapsed());
        self.note(Call::Acquire { owner }, called, Some(Response::Granted(token)));
        self.note(Call::Expire { owner, token: Some(token) }, called, None);
        // The validity counts from the sending of the request. Reading the clocks in this order does not overstate it.
        let ended =
            granted.saturating_sub(clock.now().since(grant.armed_at())) + cx.bounds(session.ttl()).validity;
        if granted < ended {
            let held = self.held(owner, token, asked..granted, ended);
            let mut recorded = self.recorded();
            recorded.until_released.push(held.clone());
            recorded.holds.push(held);
        }
        self.recorded().silent.push(session);
        Ok(true)
    }

    fn write(&self, token: u64) -> Result<()> {
        let mut recorded = self.recorded();
        let applied = self.fence.admit(FencingToken::new(token));
        recorded.writes.push(Write::new(token, applied));
        ensure!(applied, "the write of a holder was refused");
        Ok(())
    }

    fn moment(&self) -> Moment {
        self.moments.fetch_add(1, Ordering::SeqCst)
    }

    fn note(&self, call: Call, called: Moment, response: Option<Response>) {
        let answered = response.map(|response| (self.moment(), response));
        self.recorded().operations.push(Operation::new(self.name.to_string(), call, called, answered));
    }

    fn held(&self, client: u64, token: u64, acquire: Range<Duration>, ended: Duration) -> HoldRecord {
        HoldRecord::new(self.name.to_string(), client, token, acquire, ended)
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        lock(&self.recorded)
    }

    fn check(&self, cx: &Cx) -> Result<()> {
        let recorded = self.recorded();
        ensure!(!recorded.holds.is_empty(), "the lock was never granted");
        // The cheap checkers first: the last one may take long to find the same fault.
        let no_fault = |faults: Vec<String>| match faults.first() {
            Some(first) => Err(anyhow::anyhow!("{} faults; the first: {first}", faults.len())),
            None => Ok(()),
        };
        no_fault(overlaps(&recorded.holds))?;
        no_fault(token_order(&recorded.until_released))?;
        no_fault(fenced_writes(&recorded.writes))?;
        if cx.promises().queue == QueueKind::Fifo {
            no_fault(queue_order(&recorded.by_arrival))?;
        }
        #[cfg(feature = "linearizability")]
        no_fault(crate::history::linearizable(&recorded.operations))?;
        cx.publish(
            "operations checked for linearizability",
            match cfg!(feature = "linearizability") {
                true => recorded.operations.len() as f64,
                false => 0.0,
            },
        );
        Ok(())
    }
}
