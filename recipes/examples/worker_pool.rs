//! A pool of workers on several hosts: each job is done under a lock of its own, by one worker at a time.
//!
//! A job is a file in `FOLDER/todo`, which the workers move to `FOLDER/done`. A real pool has a table of jobs instead.
//! Start some of these; more may join at any time, and any of them may be killed:
//!
//! ```text
//! mkdir -p /tmp/pool/todo /tmp/pool/done; touch /tmp/pool/todo/job-{1..100}
//! LOCKKIT_BACKEND=file:///tmp/locks cargo run -p lockkit-recipes --example worker_pool -- /tmp/pool
//! ```
//!
//! A worker that is killed leaves its job in `todo`. Another worker gets the lock after a ttl, and does the job.

use std::{env, fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use lockkit::{ErrorKind, Lock, LockClient, LockGuard, RunError};
use tokio::{task::JoinSet, time::sleep};

/// How many jobs a process does at a time.
const WORKERS: usize = 4;

/// The pause between two looks at jobs that other workers have locked.
const PAUSE: Duration = Duration::from_millis(200);

#[tokio::main]
async fn main() -> Result<()> {
    let url = env::var("LOCKKIT_BACKEND").context("LOCKKIT_BACKEND is not set to the URL of a store")?;
    let folder = env::args().nth(1).context("usage: worker_pool FOLDER")?;
    let client = lockkit::connect(url).await?;
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (client, folder) = (client.clone(), folder.clone());
        workers.spawn(async move { work(&client, Path::new(&folder)).await });
    }
    let ended: Result<Vec<()>> = workers.join_all().await.into_iter().collect();
    client.close().await?;
    ended.map(drop)
}

/// Does jobs until none is left.
async fn work(client: &LockClient, folder: &Path) -> Result<()> {
    loop {
        let jobs = fs::read_dir(folder.join("todo"))?.collect::<Result<Vec<_>, _>>()?;
        if jobs.is_empty() {
            return Ok(());
        }
        for job in jobs {
            let name = job.file_name().to_string_lossy().into_owned();
            match attempt(&client.lock(format!("jobs/{name}"))?, folder, &name).await {
                // The store is away, or this worker lost the lock: the job is still there.
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Lost) => {
                    eprintln!("{name}: {error:#}");
                }
                ended => ended?,
            }
        }
        sleep(PAUSE).await;
    }
}

/// Does a job unless another worker is at it.
async fn attempt(lock: &Lock, folder: &Path, name: &str) -> lockkit::Result<()> {
    let Some(guard) = lock.try_acquire().await? else { return Ok(()) };
    // Look again: another worker may have done the job since this one has listed it.
    if folder.join("todo").join(name).exists() {
        println!("START {name}");
        guard.run(finish(&guard, folder, name)).await.map_err(RunError::into_error)?;
    }
    guard.release().await
}

async fn finish(guard: &LockGuard, folder: &Path, name: &str) {
    sleep(Duration::from_millis(300)).await; // the work
    // With a table of jobs: UPDATE ... WHERE token <= guard.token(), see docs/fencing.md.
    match fs::rename(folder.join("todo").join(name), folder.join("done").join(name)) {
        Ok(()) => println!("DONE {name} {}", guard.token()),
        Err(error) => eprintln!("{name}: {error}"),
    }
}
