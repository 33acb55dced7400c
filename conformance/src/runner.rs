//! The test program of a backend.

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tokio::runtime::{Builder, Runtime};

use crate::{
    Case, Harness, Outcome, Record, Time,
    case::Run,
    cases as all_cases,
    context::{Context, within},
    report, worker,
};

/// Names the backends to test, separated by commas; all when it is not set.
const BACKENDS: &str = "LOCKKIT_BACKENDS";

/// A seed to repeat: the order of the cases, and their chance.
const SEED: &str = "LOCKKIT_SEED";

/// Longest time that a case may take before it counts as hanging.
const CASE_MAX: Duration = Duration::from_secs(120);

/// The same on a paused clock, whose time costs little.
const PAUSED_CASE_MAX: Duration = Duration::from_secs(30 * 60);

/// Longest time that a case's runtime may take to end.
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);

/// Every case, in a stable order.
pub fn cases() -> Vec<Case> {
    all_cases::all()
}

/// Runs the suite on one backend, as its test program: takes the usual arguments of one (`--list`, a filter, ...).
///
/// Prints one line per case and, at the end, `conformance NAME: 61 passed, 0 failed, 3 ignored`; writes
/// `target/conformance/NAME.json` when all cases ran. `LOCKKIT_BACKENDS=memory,file` narrows a run on purpose;
/// `LOCKKIT_SEED` repeats the order and the chance of an earlier one.
pub fn main(harness: impl Harness) -> ExitCode {
    if let Some(exit) = worker::serve_if_asked(&harness) {
        return exit;
    }
    let arguments = Arguments::from_args();
    let name = harness.name();
    if let Ok(wanted) = env::var(BACKENDS)
        && !wanted.split(',').any(|wanted| wanted.trim() == name)
    {
        println!("conformance {name}: not run: {BACKENDS}={wanted}");
        return ExitCode::SUCCESS;
    }
    run(&(Arc::new(harness) as Arc<dyn Harness>), arguments)
}

fn run(harness: &Arc<dyn Harness>, mut arguments: Arguments) -> ExitCode {
    let seed = env::var(SEED).ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    arguments.test_threads.get_or_insert(harness.parallel());
    let records = Arc::new(Mutex::new(Vec::new()));
    let mut cases = all_cases::all();
    cases.extend(harness.own_cases());
    let count = cases.len();
    if !arguments.list {
        println!("seed: {SEED}={seed}");
        fastrand::Rng::with_seed(seed).shuffle(&mut cases);
    }
    let trials = cases.into_iter().map(|case| {
        let (harness, records) = (Arc::clone(harness), Arc::clone(&records));
        Trial::ignorable_test(case.name, move || {
            let record = run_case(&harness, case, seed);
            let outcome = record.outcome.clone();
            records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
            match outcome {
                Outcome::Passed => Ok(Completion::Completed),
                Outcome::Ignored(reason) => Ok(Completion::ignored_with(reason)),
                Outcome::Failed(reason) => Err(Failed::from(reason)),
            }
        })
        .with_kind(case.label())
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if arguments.list {
        return ExitCode::SUCCESS;
    }
    let name = harness.name();
    let records = records.lock().unwrap_or_else(PoisonError::into_inner);
    let mut well = !conclusion.has_failed();
    if records.len() == count
        && let Err(error) = report::write(&name, seed, &records)
    {
        println!("no report: {error:#}");
        well = false;
    }
    println!(
        "conformance {name}: {} passed, {} failed, {} ignored",
        conclusion.num_passed, conclusion.num_failed, conclusion.num_ignored
    );
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one case on one backend.
pub fn run_case(harness: &Arc<dyn Harness>, case: Case, seed: u64) -> Record {
    if let Some(reason) = case.unmet(&**harness) {
        return Record::new(&case, Outcome::Ignored(reason), Duration::ZERO);
    }
    let start = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| drive(harness, case, seed)));
    let outcome = outcome.unwrap_or_else(|_| Err(anyhow!("the case panicked")));
    let outcome = match outcome {
        Ok(()) => Outcome::Passed,
        Err(error) => Outcome::Failed(format!("{error:#}")),
    };
    Record::new(&case, outcome, start.elapsed())
}

fn drive(harness: &Arc<dyn Harness>, case: Case, seed: u64) -> Result<()> {
    let (runtime, longest) = runtime(harness.time())?;
    let outcome = runtime.block_on(async {
        let work = async {
            match case.run {
                Run::Own(run) => run().await,
                Run::Suite(run) => {
                    let context = Context::new(harness, case, seed)?;
                    run(Arc::clone(&context)).await?;
                    context.look_for_residue().await
                }
            }
        };
        within(longest, "the case", work).await?
    });
    runtime.shutdown_timeout(SHUTDOWN_MAX);
    outcome
}

/// A runtime of the case's own.
fn runtime(time: Time) -> std::io::Result<(Runtime, Duration)> {
    match time {
        Time::Paused => {
            let runtime = Builder::new_current_thread().enable_all().start_paused(true).build()?;
            Ok((runtime, PAUSED_CASE_MAX))
        }
        Time::Real => {
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            Ok((runtime, CASE_MAX))
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::ensure;

    use super::*;
    use crate::{memory::MemoryHarness, own_case};

    async fn one_is_one() -> Result<()> {
        Ok(())
    }

    async fn one_is_two() -> Result<()> {
        ensure!(1 == 2, "one is not two");
        Ok(())
    }

    #[test]
    fn a_backends_own_cases_are_judged_like_those_of_the_suite() {
        let harness: Arc<dyn Harness> = Arc::new(MemoryHarness);
        let cases = [own_case!(one_is_one: Z1 Z2, P1 P13), own_case!(one_is_two: Z3, P2)];
        assert_eq!(cases.map(|case| case.label()), ["Z1 Z2 P1 P13", "Z3 P2"]);
        let outcomes = cases.map(|case| run_case(&harness, case, 1).outcome);
        assert_eq!(outcomes, [Outcome::Passed, Outcome::Failed("one is not two".to_owned())]);
    }
}
