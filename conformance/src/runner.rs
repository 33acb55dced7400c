//! The test program of a backend.

use std::{
    any::Any,
    collections::HashSet,
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use lockkit_core::support::lock;
use tokio::runtime::{Builder, Runtime};

use crate::{
    Case, CaseResult, Figures, Harness, Hook, Outcome, Rounds, Sharing, Time,
    case::Run,
    cases as all_cases,
    context::{Context, within},
    report, residue, worker,
};

/// The names of the backends to test, separated by commas; all when unset.
const BACKENDS: &str = "LOCKKIT_BACKENDS";

/// The backends of this project: name, package and test program of each. `cargo xtask` reads it too.
const OURS: &str = include_str!("../backends.txt");

/// The seed of the order of the cases and of their random numbers.
const SEED: &str = "LOCKKIT_SEED";

/// The time after which a case counts as hanging; a bound against hangs only.
const CASE_MAX: Duration = Duration::from_secs(300);

/// The same on a paused clock, whose time costs little, and where many rounds are requested.
const LONG_CASE_MAX: Duration = Duration::from_secs(30 * 60);

/// How long a case's runtime may take to end.
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);

/// Returns every case, in a stable order.
pub fn cases() -> Vec<Case> {
    all_cases::all()
}

/// Runs the suite on one backend, as the `main` of its test program. It accepts the usual arguments (`--list`, a
/// filter, ...) and `--seed N`.
///
/// Prints one line per case and, at the end, `conformance NAME: 61 passed, 0 failed, 3 ignored`. Writes
/// `target/conformance/NAME.json` when all cases ran.
///
/// * `LOCKKIT_BACKENDS=memory,file` runs these backends only. A name that is neither a backend of this project nor
///   [known to the harness](Harness::siblings) is an error.
/// * `--seed N` or `LOCKKIT_SEED=N` repeats the order and the random numbers of an earlier run.
/// * `LOCKKIT_ROUNDS=many` repeats randomized steps on a real store as often as in memory, which takes hours.
pub fn main(harness: impl Harness) -> ExitCode {
    main_of(vec![Box::new(harness)])
}

/// Runs the suite on several forms of one backend, side by side in one program: their cases wait in parallel. Cases of
/// the first keep their names, those of another one have its name before them: `NAME::CASE`. Each form has a report and
/// a closing line of its own, as with [`main`]. The first connects to the [addresses](crate::Store::address) of all.
pub fn main_of(harnesses: Vec<Box<dyn Harness>>) -> ExitCode {
    let harnesses: Vec<Arc<dyn Harness>> = harnesses.into_iter().map(Arc::from).collect();
    if let Some(exit) = harnesses.first().and_then(|first| worker::serve_if_worker(&**first)) {
        return exit;
    }
    let requested = requested_seed(env::args().collect(), env::var(SEED).ok());
    let wanted = env::var(BACKENDS).ok().map_or_else(
        || Ok(vec![true; harnesses.len()]),
        |wanted| harnesses.iter().map(|harness| is_wanted(&wanted, &**harness)).collect(),
    );
    let requested = requested.and_then(|requested| Rounds::asked_for().map(|_| requested));
    let ((arguments, seed), wanted) = match requested.and_then(|requested| Ok((requested, wanted?))) {
        Ok(((arguments, seed), wanted)) => ((Arguments::from_iter(arguments), seed), wanted),
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::FAILURE;
        }
    };
    let mut forms = Vec::new();
    for (place, (harness, is_wanted)) in harnesses.into_iter().zip(wanted).enumerate() {
        if is_wanted {
            let prefix = if place == 0 { String::new() } else { format!("{}::", harness.name()) };
            forms.push(Form { harness, prefix, results: CaseResults::default(), count: 0 });
        } else {
            println!("conformance {}: not run: {BACKENDS} does not list it", harness.name());
        }
    }
    run(forms, arguments, seed.unwrap_or_else(|| fastrand::u64(..)))
}

/// Whether this backend is to be tested. An unknown name is an error, since with a typo nothing would run and the run
/// would pass.
fn is_wanted(wanted: &str, harness: &dyn Harness) -> Result<bool> {
    let own = harness.name();
    let ours = OURS.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned);
    let mut known: Vec<String> = ours.chain(harness.siblings()).collect();
    if !known.contains(&own) {
        known.push(own.clone());
    }
    let wanted: Vec<&str> = wanted.split(',').map(str::trim).collect();
    match wanted.iter().find(|wanted| known.iter().all(|known| known != *wanted)) {
        Some(unknown) => bail!("{BACKENDS}: unknown backend {unknown:?}; known are {}", known.join(", ")),
        None => Ok(wanted.contains(&own.as_str())),
    }
}

/// Removes `--seed N` or `--seed=N` from the arguments, and returns the others with that seed or the environment's.
fn requested_seed(arguments: Vec<String>, environment: Option<String>) -> Result<(Vec<String>, Option<u64>)> {
    let (mut others, mut seed) = (Vec::new(), environment);
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.strip_prefix("--seed") {
            Some("") => seed = Some(arguments.next().context("--seed takes a number")?),
            Some(value) if value.starts_with('=') => seed = Some(value[1..].to_owned()),
            _ => others.push(argument),
        }
    }
    // An invalid seed must not become a run with a random one.
    let number = |text: String| text.parse().with_context(|| format!("the seed {text:?} is not a number"));
    Ok((others, seed.map(number).transpose()?))
}

type CaseResults = Arc<Mutex<Vec<CaseResult>>>;

/// A form of the backend in this program, with what its cases have recorded.
struct Form {
    harness: Arc<dyn Harness>,
    /// Comes before the names of its cases.
    prefix: String,
    results: CaseResults,
    /// How many cases it has.
    count: usize,
}

/// Returns one trial per case in the order of the seed; each adds a result.
fn trials(harness: &Arc<dyn Harness>, prefix: &str, seed: u64, results: &CaseResults) -> Vec<Trial> {
    let mut cases = all_cases::all();
    cases.extend(harness.own_cases());
    fastrand::Rng::with_seed(seed).shuffle(&mut cases);
    let trial = |case: Case| {
        let (harness, results) = (Arc::clone(harness), Arc::clone(results));
        Trial::ignorable_test(format!("{prefix}{}", case.name), move || {
            let result = run_case(&harness, case, seed);
            let outcome = result.outcome.clone();
            lock(&results).push(result);
            match outcome {
                Outcome::Passed => Ok(Completion::Completed),
                Outcome::Ignored(reason) => Ok(Completion::ignored_with(reason)),
                Outcome::Failed(reason) => Err(Failed::from(reason)),
            }
        })
        .with_kind(case.label())
    };
    cases.into_iter().map(trial).collect()
}

fn run(mut forms: Vec<Form>, mut arguments: Arguments, seed: u64) -> ExitCode {
    let parallel = forms.iter().map(|form| form.harness.parallel()).sum();
    arguments.test_threads.get_or_insert(parallel);
    let mut all = Vec::new();
    for form in &mut forms {
        let trials = trials(&form.harness, &form.prefix, seed, &form.results);
        form.count = trials.len();
        all.extend(trials);
    }
    if forms.len() > 1 {
        fastrand::Rng::with_seed(seed).shuffle(&mut all);
    }
    if !arguments.list {
        println!("seed: {seed} (--seed {seed} repeats this run)");
    }
    let conclusion = libtest_mimic::run(&arguments, all);
    if arguments.list {
        return ExitCode::SUCCESS;
    }
    let mut well = !conclusion.has_failed();
    for form in &forms {
        well &= conclude(form, seed);
    }
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes the report of one form and prints its closing line. Returns whether all went well.
fn conclude(form: &Form, seed: u64) -> bool {
    let (name, results) = (form.harness.name(), lock(&form.results));
    for figures in results.iter().filter_map(CaseResult::shown_figures) {
        println!("{figures}");
    }
    let count = |ended: fn(&Outcome) -> bool| results.iter().filter(|result| ended(&result.outcome)).count();
    let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
    let mut well = failed == 0;
    if results.len() == form.count
        && let Err(error) = report::write(&*form.harness, seed, &results)
    {
        println!("no report: {error:#}");
        well = false;
    }
    // Residue after a failed case proves nothing.
    if well && let Err(error) = check_shared_store(&form.harness, &results) {
        println!("after the last case: {error:#}");
        well = false;
    }
    let passed = count(|outcome| matches!(outcome, Outcome::Passed));
    let ignored = count(|outcome| matches!(outcome, Outcome::Ignored(_)));
    println!("conformance {name}: {passed} passed, {failed} failed, {ignored} ignored");
    well
}

/// Checks the shared store for residue, if a case has used it.
fn check_shared_store(harness: &Arc<dyn Harness>, results: &[CaseResult]) -> Result<()> {
    let shares = |case: &Case| matches!(case.run, Run::Suite(_)) && case.sharing() == Sharing::Shared;
    let sharing: HashSet<_> =
        all_cases::all().iter().filter(|case| shares(case)).map(|case| case.name).collect();
    let has_run = |result: &CaseResult| result.outcome == Outcome::Passed && sharing.contains(result.case);
    if harness.hooks().contains(&Hook::Contents) && results.iter().any(has_run) {
        let (runtime, longest) = runtime(harness.time())?;
        return runtime.block_on(within(
            longest,
            "the check of the shared store",
            residue::check_shared(harness),
        ))?;
    }
    Ok(())
}

/// Runs one case on one backend.
pub fn run_case(harness: &Arc<dyn Harness>, case: Case, seed: u64) -> CaseResult {
    if let Some(reason) = case.unmet(&**harness) {
        return CaseResult::new(&case, Outcome::Ignored(reason), Duration::ZERO, Figures::new());
    }
    let start = Instant::now();
    let driven = catch_unwind(AssertUnwindSafe(|| drive(harness, case, seed)));
    let driven = driven.unwrap_or_else(|panic| Err(anyhow!("the case panicked: {}", message_of(&*panic))));
    let (outcome, figures) = match driven {
        Ok(figures) => (Outcome::Passed, figures),
        Err(error) => (Outcome::Failed(format!("{error:#}")), Figures::new()),
    };
    CaseResult::new(&case, outcome, start.elapsed(), figures)
}

/// Returns the message of a panic, unless its payload is not a text.
fn message_of(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a text")
}

fn drive(harness: &Arc<dyn Harness>, case: Case, seed: u64) -> Result<Figures> {
    let (runtime, longest) = runtime(harness.time())?;
    // Until the runtime has ended, clients may use the store, which may go to another case then.
    let mut context = None;
    let outcome = runtime.block_on(async {
        match case.run {
            Run::Own(run) => within(longest, "the case", run()).await?.map(|()| Figures::new()),
            Run::Suite(run) => {
                // Before the time limit starts: starting a server has a bound of its own.
                let context = context.insert(Context::new(harness, case, seed)?);
                within(longest, "the case", residue::run_and_check(run, context)).await??;
                Ok(context.figures())
            }
        }
    });
    runtime.shutdown_timeout(SHUTDOWN_MAX);
    outcome
}

/// Makes a runtime for one case, and returns its time limit too.
fn runtime(time: Time) -> std::io::Result<(Runtime, Duration)> {
    match time {
        Time::Paused => {
            let runtime = Builder::new_current_thread().enable_all().start_paused(true).build()?;
            Ok((runtime, LONG_CASE_MAX))
        }
        Time::Real => {
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            let is_long = matches!(Rounds::asked_for(), Ok(Some(Rounds::Many)));
            Ok((runtime, if is_long { LONG_CASE_MAX } else { CASE_MAX }))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use anyhow::ensure;
    use lockkit_core::memory::MemoryServer;

    use super::*;
    use crate::{AnyBackend, Plain, case::case, context::Cx, memory::MemoryHarness, own_case};

    fn memory() -> Arc<dyn Harness> {
        Arc::new(MemoryHarness)
    }

    async fn one_is_one() -> Result<()> {
        Ok(())
    }

    async fn one_is_two() -> Result<()> {
        ensure!(1 == 2, "one is not two");
        Ok(())
    }

    async fn a_case_that_panics(_: Cx) -> Result<()> {
        let number = 42;
        panic!("the reason is {number}")
    }

    async fn a_case_with_a_figure(cx: Cx) -> Result<()> {
        cx.publish("turns", 3.0);
        Ok(())
    }

    #[test]
    fn own_cases_of_a_backend_run_like_those_of_the_suite() {
        let cases = [own_case!(one_is_one: TimedExclusion NoResidue), own_case!(one_is_two: FencedExclusion)];
        assert_eq!(cases.map(|case| case.label()), ["TimedExclusion NoResidue", "FencedExclusion"]);
        let outcomes = cases.map(|case| run_case(&memory(), case, 1).outcome);
        assert_eq!(outcomes, [Outcome::Passed, Outcome::Failed("one is not two".to_owned())]);
    }

    #[test]
    fn panic_is_reported_with_its_message() {
        let result = run_case(&memory(), case!(a_case_that_panics: TimedExclusion), 1);
        assert_eq!(result.outcome, Outcome::Failed("the case panicked: the reason is 42".to_owned()));
    }

    #[test]
    fn figure_is_in_the_result_and_printed() {
        let result = run_case(&memory(), case!(a_case_with_a_figure: Fifo), 1);
        assert_eq!(result.shown_figures().unwrap(), "figures of a_case_with_a_figure: turns: 3");
        let json = serde_json::to_value(&result).unwrap();
        assert_eq!(json["figures"]["turns"], 3.0);
        assert_eq!((&json["outcome"], &json["case"]), (&"passed".into(), &"a_case_with_a_figure".into()));
        assert!(json["seconds"].is_number() && json["properties"] == serde_json::json!(["Fifo"]), "{json}");
    }

    #[test]
    fn each_case_is_listed_once_in_the_order_of_the_seed() {
        let listed = |seed| {
            let trials = trials(&memory(), "", seed, &CaseResults::default());
            trials.iter().map(|trial| (trial.name().to_owned(), trial.kind().to_owned())).collect::<Vec<_>>()
        };
        let labels = |listed: Vec<(String, String)>| listed.into_iter().collect::<BTreeMap<_, _>>();
        let (first, all) = (listed(1), cases());
        assert_eq!(first.len(), all.len());
        let due = all.iter().map(|case| (case.name.to_owned(), case.label())).collect();
        assert_eq!(labels(first.clone()), due);
        assert_eq!(first, listed(1), "a seed repeats the order");
        assert_ne!(first, listed(2), "another one changes it");
    }

    #[test]
    fn backend_is_selected_by_name_and_an_unknown_name_is_an_error() {
        for (wanted, is_one) in [("memory", true), ("file, memory", true), ("file,redlock-3,zk", false)] {
            assert_eq!(is_wanted(wanted, &MemoryHarness).unwrap(), is_one, "{wanted}");
        }
        for typo in ["memori", "Memory", "memory,fiel", "", "memory,"] {
            let error = is_wanted(typo, &MemoryHarness).unwrap_err().to_string();
            assert!(error.contains("known are memory, file, etcd, etcd-single"), "{typo}: {error}");
        }
    }

    #[test]
    fn third_party_backends_know_their_own_name_and_their_siblings() {
        let connect = |_: &str| Ok(AnyBackend::new(MemoryServer::new().backend()));
        let mine = Plain::new("mine", "", connect).unwrap();
        assert!(is_wanted("mine", &mine).unwrap() && is_wanted("etcd,mine", &mine).unwrap());
        assert!(!is_wanted("etcd", &mine).unwrap());
        let error = is_wanted("yours", &mine).unwrap_err().to_string();
        assert!(error.ends_with("redlock-3, zk, mine"), "{error}");
        assert!(!is_wanted("yours", &mine.sibling("yours")).unwrap());
    }

    #[test]
    fn seed_comes_from_the_arguments_or_the_environment() {
        let asked = |arguments: &[&str], environment: Option<&str>| {
            let arguments = arguments.iter().map(ToString::to_string).collect();
            requested_seed(arguments, environment.map(str::to_owned))
        };
        let others = vec!["program".to_owned(), "filter".to_owned()];
        for arguments in [["program", "--seed", "7", "filter"].as_slice(), &["program", "--seed=7", "filter"]]
        {
            assert_eq!(asked(arguments, Some("8")).unwrap(), (others.clone(), Some(7)));
        }
        assert_eq!(asked(&["program", "filter"], Some("8")).unwrap(), (others.clone(), Some(8)));
        assert_eq!(asked(&["program", "filter"], None).unwrap(), (others, None));
        for (arguments, environment) in [(["p", "--seed"].as_slice(), None), (&["p"], Some("x"))] {
            assert!(asked(arguments, environment).is_err(), "{arguments:?}");
        }
    }
}
