//! Work on several threads.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::{Context, Result};

use crate::sync::{into_inner, lock};

/// Calls `work` for each item, on `jobs` threads. Returns the results in the order of the items, or the first error
/// among them.
pub(super) fn parallel_map<T: Sync, R: Send>(
    jobs: usize,
    items: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<R>>>> = items.iter().map(|_| Mutex::new(None)).collect();
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(item), Some(result)) = (items.get(index), results.get(index)) else { break };
                    *lock(result) = Some(work(item));
                }
            });
        }
    });
    results.into_iter().map(|result| into_inner(result).context("work without a result")?).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use anyhow::bail;

    use super::*;

    /// Each call waits until another one runs.
    #[test]
    fn as_many_items_run_at_a_time_as_there_are_jobs() {
        let barrier = Barrier::new(2);
        let squares = parallel_map(2, &[1, 2, 3, 4], |number| {
            barrier.wait();
            Ok(number * number)
        });
        assert_eq!(squares.unwrap(), [1, 4, 9, 16]);
    }

    #[test]
    fn error_does_not_stop_other_work() {
        let done = AtomicUsize::new(0);
        let result = parallel_map(1, &[1, 2, 3], |number| {
            done.fetch_add(1, Ordering::Relaxed);
            if *number == 1 { bail!("one") } else { Ok(()) }
        });
        assert_eq!(result.unwrap_err().to_string(), "one");
        assert_eq!(done.into_inner(), 3);
    }
}
