//! Many tasks of one process that want the same lock: one of them holds it for all, for a bounded batch at a time.
//!
//! Each grant costs a round trip to the store. Where many tasks of a process change the same thing, they send their
//! jobs to one task. It acquires the lock, does the jobs that wait, and releases the lock after [`JOBS_MAX`] jobs or
//! [`BATCH_MAX`], whichever is first: other processes wait at most that long. Here each job adds 1 to a number in a
//! file. Start some of these:
//!
//! ```text
//! LOCKKIT_BACKEND=file:///tmp/locks cargo run -p lockkit-recipes --example batch_under_one_hold -- /tmp/number
//! ```
//!
//! All jobs of a batch have the same fencing token. That is enough, because one task does them one after another: a
//! resource that refuses older tokens refuses late writes of a former holder, and there is no other writer in here.

use std::{env, fs, io::ErrorKind, path::Path, time::Duration};

use anyhow::{Context, Result};
use lockkit::{Lock, LockGuard, RunError};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::Instant,
};

/// How many jobs are done in one hold, at most.
const JOBS_MAX: usize = 200;

/// After this time in one hold, no further job is begun.
const BATCH_MAX: Duration = Duration::from_millis(50);

/// How many tasks of this process have jobs.
const TASKS: usize = 20;

/// How many jobs each of them has, one after another.
const JOBS_EACH: usize = 50;

/// A job, and where its result goes: the new number.
type Job = oneshot::Sender<u64>;

#[tokio::main]
async fn main() -> Result<()> {
    let url = env::var("LOCKKIT_BACKEND").context("LOCKKIT_BACKEND is not set to the URL of a store")?;
    let file = env::args().nth(1).context("usage: batch_under_one_hold FILE")?;
    let client = lockkit::connect(url).await?;
    let (jobs, mut waiting) = mpsc::channel(JOBS_MAX);
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        tasks.spawn(add(jobs.clone()));
    }
    drop(jobs); // `waiting` ends when all tasks have ended
    let grants = serve(&client.lock("number")?, Path::new(&file), &mut waiting).await?;
    let added: Result<Vec<()>> = tasks.join_all().await.into_iter().collect();
    client.close().await?;
    println!("ADDED {} in {grants} grants", added?.len() * JOBS_EACH);
    Ok(())
}

/// One of the tasks: it knows nothing of the lock.
async fn add(jobs: mpsc::Sender<Job>) -> Result<()> {
    for _ in 0..JOBS_EACH {
        let (job, done) = oneshot::channel();
        jobs.send(job).await?;
        done.await?;
    }
    Ok(())
}

/// Does all jobs, in batches. Returns how many grants that took.
async fn serve(lock: &Lock, file: &Path, waiting: &mut mpsc::Receiver<Job>) -> Result<usize> {
    let mut grants = 0;
    while let Some(first) = waiting.recv().await {
        let guard = lock.acquire().await?;
        grants += 1;
        guard.run(batch(&guard, file, first, waiting)).await.map_err(RunError::into_error)??;
        guard.release().await?;
    }
    Ok(grants)
}

/// Does the first job and those that come while the lock is held.
async fn batch(guard: &LockGuard, file: &Path, first: Job, waiting: &mut mpsc::Receiver<Job>) -> Result<()> {
    let end = Instant::now() + BATCH_MAX;
    let mut number: u64 = match fs::read_to_string(file) {
        Ok(text) => text.trim().parse()?,
        Err(error) if error.kind() == ErrorKind::NotFound => 0, // the first job
        Err(error) => return Err(error.into()),
    };
    let (mut done, mut next) = (Vec::new(), Some(first));
    while let Some(job) = next {
        number += 1;
        done.push((job, number));
        // Lets the other tasks send their jobs.
        tokio::task::yield_now().await;
        let goes_on = done.len() < JOBS_MAX && Instant::now() < end;
        next = if goes_on { waiting.try_recv().ok() } else { None };
    }
    // One write for the batch. A database would also compare `guard.token()`: docs/fencing.md.
    guard.check()?;
    fs::write(file, number.to_string())?;
    for (job, number) in done {
        let _ = job.send(number); // its task may have ended
    }
    Ok(())
}
