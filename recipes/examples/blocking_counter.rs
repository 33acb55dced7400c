//! A program without async code: threads count up a number in a file, each time under a lock.
//!
//! ```text
//! LOCKKIT_BACKEND=file:///tmp/locks cargo run -p lockkit-recipes --example blocking_counter -- /tmp/number
//! ```
//!
//! Any number of these processes may run at the same time: none of their steps is lost.

use std::{env, fs, io::ErrorKind, path::Path, thread, time::Duration};

use anyhow::{Context, Result, anyhow};
use lockkit::blocking::Client;

const THREADS: usize = 4;

/// How often each thread counts.
const STEPS: usize = 25;

fn main() -> Result<()> {
    let url = env::var("LOCKKIT_BACKEND").context("LOCKKIT_BACKEND is not set to the URL of a store")?;
    let file = env::args().nth(1).context("usage: blocking_counter FILE")?;
    let client = lockkit::blocking::connect(url)?; // it renews on a thread of its own
    let ended = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|_| scope.spawn(|| count(&client, Path::new(&file)))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    });
    client.close()?; // before `main` returns, or others wait for the ttl
    ended
}

fn count(client: &Client, file: &Path) -> Result<()> {
    let lock = client.lock("number")?;
    for _ in 0..STEPS {
        let guard = lock.acquire()?; // blocks this thread
        let number: u64 = match fs::read_to_string(file) {
            Ok(text) => text.trim().parse()?,
            Err(error) if error.kind() == ErrorKind::NotFound => 0, // the first step
            Err(error) => return Err(error.into()),
        };
        thread::sleep(Duration::from_millis(1)); // the time that a remote store takes
        guard.check()?; // as late as possible; a store that compares tokens is sent `guard.token()` too
        fs::write(file, (number + 1).to_string())?;
        guard.release()?;
    }
    Ok(())
}
