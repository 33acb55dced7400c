//! Several processes of one example at a time: each must find what the lock prevents, and without it must not.

use std::{collections::BTreeSet, fs, path::Path, time::SystemTime};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::{
    processes::{Processes, run},
    stores::{self, NO_LOCK, Store},
};

/// How many processes compete.
const PROCESSES: usize = 3;

/// How often a race without a lock is run until it goes wrong: it may go well by chance.
const RACES_MAX: usize = 5;

/// Starts this many processes of an example at the same time.
fn start(example: &str, url: &str, arguments: &[&str]) -> Processes {
    let mut processes = Processes::of(url);
    for _ in 0..PROCESSES {
        processes.start(example, arguments);
    }
    processes
}

/// Runs this many processes of an example at the same time. Returns their lines.
fn race(example: &str, url: &str, arguments: &[&str]) -> Vec<String> {
    start(example, url, arguments).finish()
}

/// How many lines begin with this word.
fn count(lines: &[String], word: &str) -> usize {
    lines.iter().filter(|line| line.starts_with(word)).count()
}

#[test]
fn cron_job_begins_once_a_day() {
    stores::on_each(|Store { name, url, .. }| {
        let first_day = day();
        let lines = [race("cron_once", url, &[]), race("cron_once", url, &[])].concat();
        // One more where the test runs past midnight.
        let days = 1 + usize::try_from(day() - first_day).unwrap();
        let (sent, not_sent) = (count(&lines, "SENT 42"), count(&lines, "BEGUN ALREADY"));
        assert!((1..=days).contains(&sent) && sent + not_sent == 2 * PROCESSES, "{name}: {lines:?}");
    });
    let lines = race("cron_once", NO_LOCK, &[]);
    assert_eq!(count(&lines, "SENT 42"), PROCESSES, "without a lock: {lines:?}");
}

/// A pool with these jobs to do.
fn pool(jobs: impl Iterator<Item = String>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for part in ["todo", "done"] {
        fs::create_dir(folder.path().join(part)).unwrap();
    }
    for job in jobs {
        fs::write(folder.path().join("todo").join(job), "").unwrap();
    }
    folder
}

fn files_in(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn each_job_of_the_pool_is_done_by_one_worker() {
    const JOBS: usize = 20;
    let run = |url: &str| {
        let pool = pool((0..JOBS).map(|number| format!("job-{number}")));
        let lines = race("worker_pool", url, &[pool.path().to_str().unwrap()]);
        assert_eq!(files_in(&pool.path().join("todo")), BTreeSet::new());
        assert_eq!(files_in(&pool.path().join("done")).len(), JOBS);
        lines
    };
    stores::on_each(|Store { name, url, .. }| {
        let lines = run(url);
        assert_eq!((count(&lines, "START"), count(&lines, "DONE")), (JOBS, JOBS), "{name}: {lines:?}");
    });
    let is_one_done_twice = |_| count(&run(NO_LOCK), "START") > JOBS;
    assert!((0..RACES_MAX).any(is_one_done_twice), "without a lock, each job is begun once");
}

#[test]
fn job_of_a_killed_worker_is_taken_over() {
    stores::on_each(|Store { name, url, .. }| {
        // Long enough for the next worker on a busy machine, which must not lose its lock.
        let url = format!("{url}?ttl=8s");
        // The worker may finish the job before it is killed. Then another one is tried.
        let left = (0..5).find_map(|try_number| {
            let pool = pool([format!("takeover-{try_number}")].into_iter());
            let mut processes = Processes::of(&url);
            let worker = processes.start("worker_pool", &[pool.path().to_str().unwrap()]);
            processes.line("START");
            processes.signal(worker, Signal::KILL);
            drop(processes);
            (!files_in(&pool.path().join("todo")).is_empty()).then_some(pool)
        });
        let pool = left.unwrap_or_else(|| panic!("{name}: no worker was killed in time"));
        let lines = run("worker_pool", &url, &[pool.path().to_str().unwrap()]);
        assert_eq!((count(&lines, "START"), count(&lines, "DONE")), (1, 1), "{name}: {lines:?}");
        assert_eq!(files_in(&pool.path().join("todo")), BTreeSet::new(), "{name}");
    });
}

#[test]
fn transfers_keep_the_sum_of_all_accounts() {
    const ACCOUNTS: [&str; 3] = ["a", "b", "c"];
    // `None`: a process has read half of what another one was writing.
    let run = |url: &str| -> Option<u64> {
        let bank = tempfile::tempdir().unwrap();
        for account in ACCOUNTS {
            fs::write(bank.path().join(account), "1000").unwrap();
        }
        let (lines, success) = start("transfer", url, &[bank.path().to_str().unwrap()]).wait();
        assert!(!success || count(&lines, "TRANSFERRED") == PROCESSES, "{lines:?}");
        let balance = |account| fs::read_to_string(bank.path().join(account)).unwrap().parse::<u64>().ok();
        ACCOUNTS.into_iter().map(balance).sum::<Option<u64>>().filter(|_| success)
    };
    stores::on_each(|Store { name, url, .. }| {
        assert_eq!(run(url), Some(3000), "{name}");
    });
    assert!((0..RACES_MAX).any(|_| run(NO_LOCK) != Some(3000)), "without a lock, the sum is the same");
}

#[test]
fn no_step_of_a_blocking_program_is_lost() {
    let run = |url: &str| -> Option<u64> {
        let folder = tempfile::tempdir().unwrap();
        let number = folder.path().join("number");
        let (_, success) = start("blocking_counter", url, &[number.to_str().unwrap()]).wait();
        fs::read_to_string(number).unwrap().parse().ok().filter(|_| success)
    };
    stores::on_each(|Store { name, url, .. }| {
        assert_eq!(run(url), Some(300), "{name}");
    });
    assert!((0..RACES_MAX).any(|_| run(NO_LOCK) != Some(300)), "without a lock, all steps are counted");
}

#[test]
fn no_job_of_a_batch_is_lost_and_a_batch_is_one_grant() {
    const JOBS: usize = 1_000;
    let run = |url: &str| -> (Option<usize>, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let number = folder.path().join("number");
        let (lines, success) = start("batch_under_one_hold", url, &[number.to_str().unwrap()]).wait();
        (fs::read_to_string(number).unwrap().parse().ok().filter(|_| success), lines)
    };
    stores::on_each(|Store { name, url, .. }| {
        let (number, lines) = run(url);
        assert_eq!((number, lines.len()), (Some(PROCESSES * JOBS), PROCESSES), "{name}: {lines:?}");
        for line in lines {
            // While a process waits for the lock, each of its 20 tasks sends a job.
            let grants = line.strip_prefix("ADDED 1000 in ").and_then(|rest| rest.strip_suffix(" grants"));
            let grants: usize = grants.unwrap_or_else(|| panic!("{name}: {line}")).parse().unwrap();
            assert!((JOBS.div_ceil(200)..=JOBS / 4).contains(&grants), "{name}: {line}");
        }
    });
    let goes_wrong = |_| run(NO_LOCK).0 != Some(PROCESSES * JOBS);
    assert!((0..RACES_MAX).any(goes_wrong), "without a lock, all jobs are counted");
}

fn day() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() / (24 * 60 * 60)
}
