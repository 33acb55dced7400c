//! Random histories of contending clients, judged by the checkers.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lockkit_core::{
    Fence, FencingToken, LockClient, LockGuard, LockName, Owner,
    backend::{Acquired, Backend, QueueKind, Session},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    Case,
    case::{Need, case},
    context::Cx,
    driven::claim,
    history::{
        Answer, Call, Held, Moment, Operation, Write, fenced_writes, linearizable, overlaps, queue_order,
        token_order,
    },
};

pub(super) const CASES: &[Case] = &[
    case!(random_histories_are_exclusive_ordered_and_fenced: X1, P1 P2 P3 P9; bugs 24 58 59),
    case!(random_histories_with_silent_holders_are_exclusive_and_ordered: X1 F1, P1 P2 P3 P4 P9,
        needs Need::Ttl; bugs 24 42 58 59),
];

const LOCKS: usize = 3;

/// Tasks of one client, with one owner: each enters what the other holds.
const TASKS: usize = 2;

/// How long a lock is held.
const WORK: Duration = Duration::from_millis(3);

async fn random_histories_are_exclusive_ordered_and_fenced(cx: Cx) -> Result<()> {
    let records = records(&cx);
    contend(&cx, &records, true).await?;
    records.iter().try_for_each(|record| record.judge(&cx))
}

async fn random_histories_with_silent_holders_are_exclusive_and_ordered(cx: Cx) -> Result<()> {
    let records = records(&cx);
    let mut silent = JoinSet::new();
    for record in records.clone() {
        let (cx, deaths) = (cx.clone(), cx.times(5, 1));
        silent.spawn(async move {
            for _ in 0..deaths {
                sleep(cx.part_of(WORK * 10)).await;
                while !record.fall_silent(&cx).await? {}
            }
            anyhow::Ok(())
        });
    }
    contend(&cx, &records, false).await?;
    while let Some(done) = silent.join_next().await {
        done??;
    }
    records.iter().try_for_each(|record| record.judge(&cx))
}

fn records(cx: &Cx) -> Vec<Arc<Record>> {
    let start = Instant::now();
    (0..LOCKS).map(|_| Arc::new(Record::new(cx.name(), start))).collect()
}

/// Clients that take the locks at random, and enter them again; `impatient` ones leave when it takes too long.
async fn contend(cx: &Cx, records: &[Arc<Record>], impatient: bool) -> Result<()> {
    let (clients, steps) = (cx.times(6, 3), cx.times(60, 12));
    let mut tasks = JoinSet::new();
    for number in 0..clients {
        let (client, owner) = (cx.client().await?, Owner::new());
        for _ in 0..TASKS {
            let (client, owner, number) = (client.clone(), owner.clone(), number as u64);
            let taker = Taker { cx: cx.clone(), client, owner, number };
            let (cx, records) = (cx.clone(), records.to_vec());
            tasks.spawn(async move {
                for _ in 0..steps {
                    let record = &records[cx.random(LOCKS as u64) as usize];
                    let patience = impatient.then(|| Duration::from_millis(cx.random(300)));
                    record.step(&taker, patience, cx.random(3) == 0).await?;
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

/// Who takes locks.
struct Taker {
    cx: Cx,
    client: LockClient,
    owner: Owner,
    number: u64,
}

/// An entry into a lock, until it is left.
struct Entered {
    guard: LockGuard,
    asked: Duration,
    granted: Duration,
}

/// What happened to one lock.
struct Record {
    name: LockName,
    start: Instant,
    /// Counts calls and answers, in the order in which they happen.
    moments: AtomicU64,
    fence: Fence,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    held: Vec<Held>,
    /// The same until their releases were answered: up to then another task of the owner may share the hold.
    freed: Vec<Held>,
    /// The same, as their claims came to the store: a caller may have joined an attempt that was under way.
    served: Vec<Held>,
    writes: Vec<Write>,
    operations: Vec<Operation>,
    /// Nobody renews them, but they are there: a backend may end a session that is dropped.
    silent: Vec<Arc<dyn Session>>,
}

impl Record {
    fn new(name: LockName, start: Instant) -> Self {
        Self { name, start, moments: AtomicU64::new(0), fence: Fence::new(), kept: Mutex::default() }
    }

    /// Takes the lock, or leaves when it takes too long; writes under it; enters it once more, when `twice`.
    async fn step(&self, taker: &Taker, patience: Option<Duration>, twice: bool) -> Result<()> {
        let Some(outer) = self.enter(taker, patience).await? else { return Ok(()) };
        sleep(WORK).await;
        self.write(outer.guard.token().get())?;
        if twice && let Some(inner) = self.enter(taker, patience).await? {
            self.write(inner.guard.token().get())?;
            self.leave(taker, inner).await?;
        }
        self.leave(taker, outer).await
    }

    async fn enter(&self, taker: &Taker, patience: Option<Duration>) -> Result<Option<Entered>> {
        let lock = taker.client.lock(self.name.as_str())?.reentrant(&taker.owner);
        let (called, asked) = (self.moment(), self.start.elapsed());
        let acquired = match patience {
            Some(patience) => lock.acquire_timeout(patience).await,
            None => lock.acquire().await.map(Some),
        };
        let guard = match acquired {
            Ok(Some(guard)) => guard,
            Ok(None) => return Ok(None),
            // In so short a time a loaded store may not have said a word.
            Err(error) if patience.is_some() && error.is_temporary() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let granted = self.start.elapsed();
        self.note(Call::Acquire { owner: taker.number }, called, Some(Answer::Granted(guard.token().get())));
        Ok(Some(Entered { guard, asked, granted }))
    }

    async fn leave(&self, taker: &Taker, entered: Entered) -> Result<()> {
        let Entered { guard, asked, granted } = entered;
        let (owner, token) = (taker.number, guard.token().get());
        let (called, ended) = (self.moment(), self.start.elapsed());
        guard.release().await?;
        let freed = self.start.elapsed();
        self.note(Call::Release { owner, token }, called, Some(Answer::Released));
        let held = self.held(owner, token, asked..granted, ended);
        let came = taker.cx.log().came(&self.name, FencingToken::new(token));
        let came = came.with_context(|| format!("nobody was granted the token {token}"))?;
        let mut kept = self.kept();
        kept.freed.push(Held { ended: freed, ..held.clone() });
        kept.served.push(Held {
            asked: asked.min(came.claimed.duration_since(self.start)),
            queued: came.queued.map(|at| at.duration_since(self.start)),
            ..held.clone()
        });
        kept.held.push(held);
        Ok(())
    }

    /// Takes the lock and is never heard of again; false when it was not granted in time.
    async fn fall_silent(&self, cx: &Cx) -> Result<bool> {
        // No taker has such a number, and none is used twice.
        let (called, asked, clock) = (self.moment(), self.start.elapsed(), cx.clock());
        let owner = u64::MAX - called;
        let session = match cx.backend()?.open_session(cx.short_ttl(), clock.clone()).await {
            Ok(session) => session,
            // Of so short a ttl a loaded store may leave nothing.
            Err(error) if error.is_temporary() => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        // Its session may end while it waits behind another silent one.
        let Ok(Acquired::Granted(grant)) = session.acquire(claim(&self.name, true).0).await else {
            return Ok(false);
        };
        let (token, granted) = (grant.token().get(), self.start.elapsed());
        self.note(Call::Acquire { owner }, called, Some(Answer::Granted(token)));
        self.note(Call::Expire { owner, token: Some(token) }, called, None);
        // What it may rely on counts from the sending that its lifetime began with. Read in this order, it is no longer.
        let ended =
            granted.saturating_sub(clock.now().since(grant.armed_at())) + cx.bounds(session.ttl()).validity;
        if granted < ended {
            let held = self.held(owner, token, asked..granted, ended);
            let mut kept = self.kept();
            kept.freed.push(held.clone());
            kept.held.push(held);
        }
        self.kept().silent.push(session);
        Ok(true)
    }

    fn write(&self, token: u64) -> Result<()> {
        let mut kept = self.kept();
        let applied = self.fence.admit(FencingToken::new(token));
        kept.writes.push(Write { token, applied });
        ensure!(applied, "the write of a holder was refused");
        Ok(())
    }

    fn moment(&self) -> Moment {
        self.moments.fetch_add(1, Ordering::SeqCst)
    }

    fn note(&self, call: Call, called: Moment, answer: Option<Answer>) {
        let answered = answer.map(|answer| (self.moment(), answer));
        let lock = self.name.to_string();
        self.kept().operations.push(Operation { lock, call, called, answered });
    }

    fn held(&self, client: u64, token: u64, acquire: Range<Duration>, ended: Duration) -> Held {
        let (lock, asked, granted) = (self.name.to_string(), acquire.start, acquire.end);
        Held { lock, client, token, asked, queued: None, granted, ended }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn judge(&self, cx: &Cx) -> Result<()> {
        let kept = self.kept();
        ensure!(!kept.held.is_empty(), "nobody was ever granted the lock");
        // The cheapest first: what they find, the last one may search for long.
        let found = |faults: Vec<String>| match faults.first() {
            Some(first) => Err(anyhow::anyhow!("{} faults; the first: {first}", faults.len())),
            None => Ok(()),
        };
        found(overlaps(&kept.held))?;
        found(token_order(&kept.freed))?;
        found(fenced_writes(&kept.writes))?;
        if cx.info().queue == QueueKind::Fifo {
            found(queue_order(&kept.served))?;
        }
        found(linearizable(&kept.operations))
    }
}
