//! Work on several threads.

use std::{
    iter, panic,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::Result;

/// Calls `work` for each item, on `jobs` threads. Returns the results in the order of the items, or the first error
/// among them.
pub(super) fn parallel_map<T: Sync, R: Send>(
    jobs: usize,
    items: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let work_on_next = || {
        let place = next.fetch_add(1, Ordering::Relaxed);
        Some((place, work(items.get(place)?)))
    };
    let worker = || iter::from_fn(work_on_next).collect::<Vec<_>>();
    let mut results: Vec<(usize, Result<R>)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(worker)).collect();
        let results = workers.into_iter().map(thread::ScopedJoinHandle::join);
        results.flat_map(|results| results.unwrap_or_else(|payload| panic::resume_unwind(payload))).collect()
    });
    results.sort_unstable_by_key(|(place, _)| *place);
    results.into_iter().map(|(_, result)| result).collect()
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
