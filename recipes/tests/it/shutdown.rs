//! A service that is told to stop.

use rustix::process::Signal;

use crate::{
    processes::Processes,
    stores::{self, NO_LOCK, Store},
};

/// Whether each order ends before the next one begins.
fn is_serial(lines: &[String]) -> bool {
    lines.chunks(2).all(|order| match order {
        [begin, end] => {
            begin.strip_prefix("BEGIN").is_some_and(|begin| end.strip_prefix("END") == Some(begin))
        }
        _ => false,
    })
}

#[test]
fn service_that_is_told_to_stop_finishes_its_order_and_passes_its_lock_on() {
    stores::on_each(|Store { name, url, .. }| {
        // A lock that was not released would be free after the end of the test only.
        let mut services = Processes::of(&format!("{url}?ttl={}", if *name == "zk" { "10s" } else { "2m" }));
        let stopped = services.start("graceful_shutdown", &[]);
        let token = services.line("BEGIN");
        services.signal(stopped, Signal::TERM);
        let successor = services.start("graceful_shutdown", &[]);
        assert_eq!(services.line("END"), token, "{name}");
        services.line("BEGIN");
        services.signal(successor, Signal::TERM);
        let lines = services.finish();
        assert!(lines.len() >= 4 && is_serial(&lines), "{name}: {lines:?}");
    });
}

#[test]
fn services_without_a_common_lock_work_at_the_same_time() {
    const LINES_MAX: usize = 1000;
    let mut services = Processes::of(NO_LOCK);
    let numbers = [(); 2].map(|()| services.start("graceful_shutdown", &[]));
    // The second one may start late.
    let mut is_begun = false;
    let both_work = (0..LINES_MAX).any(|_| {
        let was_begun = is_begun;
        is_begun = services.line("").starts_with("BEGIN");
        was_begun && is_begun
    });
    assert!(both_work, "never at the same time");
    for number in numbers {
        services.signal(number, Signal::TERM);
    }
    assert!(!is_serial(&services.finish()));
}
