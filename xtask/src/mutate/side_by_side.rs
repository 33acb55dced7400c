//! Work that may run at the same time.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::{Context, Result};

/// Does the work for each item, `jobs` at a time; the results in the order of the items, or the first error of them.
pub(super) fn side_by_side<T: Sync, R: Send>(
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
                    *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(work(item));
                }
            });
        }
    });
    let result = |result: Mutex<Option<Result<R>>>| {
        result.into_inner().unwrap_or_else(PoisonError::into_inner).context("work without a result")?
    };
    results.into_iter().map(result).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use anyhow::bail;

    use super::*;

    /// Each waits for another one.
    #[test]
    fn as_many_run_at_once_as_there_are_jobs() {
        let barrier = Barrier::new(2);
        let squares = side_by_side(2, &[1, 2, 3, 4], |number| {
            barrier.wait();
            Ok(number * number)
        });
        assert_eq!(squares.unwrap(), [1, 4, 9, 16]);
    }

    #[test]
    fn error_ends_no_other_work() {
        let done = AtomicUsize::new(0);
        let result = side_by_side(1, &[1, 2, 3], |number| {
            done.fetch_add(1, Ordering::Relaxed);
            if *number == 1 { bail!("one") } else { Ok(()) }
        });
        assert_eq!(result.unwrap_err().to_string(), "one");
        assert_eq!(done.into_inner(), 3);
    }
}
