//! `cargo xtask mutate`: removes one safety step at a time, and checks that the tests that guard it fail.
//!
//! A mutation is a file `xtask/mutations/NAME.patch`: a header that says what it removes and which tests must fail,
//! then the diff. One copy of the project contains all mutations behind a switch, so that its tests are built once.
//! Mutations that cannot be switched at run time are built in another copy, one after the other. The checkout is never
//! changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};

use self::{
    instrument::Instrumented,
    parallel::parallel_map,
    patch::Patch,
    programs::{Built, TestSelection, build},
    report::Outcome,
    scratch::{Scratch, make_equal},
    trial::{TrialResult, try_programs},
    verdict::Verdict,
};
use crate::{programs::Program, project::Project};

mod function_bodies;
mod instrument;
mod parallel;
mod patch;
mod programs;
mod report;
mod scratch;
mod selection;
mod switch;
mod trial;
mod verdict;

#[cfg(test)]
mod tests;

pub(crate) use self::selection::Selection;

/// Longest run of the tests of one `# red:` line, without compiling. A mutation that makes them wait forever exceeds
/// it.
const TEST_TIME_MAX: Duration = Duration::from_secs(120);

/// Tries the selected mutations, `jobs` at a time. An error unless every named test failed.
pub(crate) fn run(project: &Project, selection: &Selection, jobs: usize) -> Result<()> {
    let all = Patch::read(&project.root().join(&selection.folder))?;
    let chosen = selection.of(&all)?;
    let run = Run::prepare(project, &all, &chosen, TEST_TIME_MAX)?;
    let outcomes = run.try_all(jobs)?;
    print!("{}", report::of(&outcomes));
    if outcomes.iter().any(|outcome| !outcome.verdict.is_as_expected()) {
        bail!("a safety step is not guarded, or its mutation is out of date");
    }
    Ok(())
}

/// A run, with the programs that were built for it.
struct Run<'a> {
    project: &'a Project,
    scratch: Scratch,
    chosen: &'a [&'a Patch],
    time_max: Duration,
    /// The mutations that are not in the instrumented copy, and why.
    alone: BTreeMap<String, String>,
    programs: Vec<Program>,
}

impl<'a> Run<'a> {
    /// Builds the tests that the chosen mutations name, with all mutations in one copy.
    fn prepare(
        project: &'a Project,
        all: &[Patch],
        chosen: &'a [&'a Patch],
        time_max: Duration,
    ) -> Result<Self> {
        let (start, scratch) = (Instant::now(), Scratch::of(project)?);
        let (mut mutations, mut alone) = (BTreeMap::new(), BTreeMap::new());
        for patch in all {
            match scratch.changes(patch)? {
                Some(changes) => drop(mutations.insert(patch.name.clone(), changes)),
                None => drop(alone.insert(patch.name.clone(), "it does not apply".to_owned())),
            }
        }
        let tests: Vec<TestSelection> =
            chosen.iter().flat_map(|patch| &patch.red).map(|line| TestSelection::of(line)).collect();
        let programs = loop {
            let copy = Instrumented::of(project, &mutations, alone)?;
            make_equal(&scratch.switched, project, &copy.files)?;
            println!("building: {} mutations with switches", all.len() - copy.left_out.len());
            let culprits = match build(&scratch, &scratch.switched, &tests, "build")? {
                Built::Programs(programs) => {
                    alone = copy.left_out;
                    break programs;
                }
                Built::Errors(places) => copy.at(&places),
            };
            ensure!(!culprits.is_empty(), "the tests do not compile, see {}", scratch.log("build").display());
            let reason = |name| (name, "it does not compile together with the others".to_owned());
            alone = copy.left_out.into_iter().chain(culprits.into_iter().map(reason)).collect();
        };
        println!("built in {:.0} s, except for {} mutations", start.elapsed().as_secs_f64(), alone.len());
        Ok(Self { project, scratch, chosen, time_max, alone, programs })
    }

    /// Returns one outcome per mutation. The tests run without any mutation first: those that fail or do not exist
    /// prove nothing.
    fn try_all(&self, jobs: usize) -> Result<Vec<Outcome<'a>>> {
        let lines: BTreeSet<&String> = self.chosen.iter().flat_map(|patch| &patch.red).collect();
        let lines: Vec<(usize, &String)> = lines.into_iter().enumerate().collect();
        let unfit_tests = parallel_map(jobs, &lines, |(number, line)| {
            let start = Instant::now();
            let verdict = self.without_mutation(line, &format!("unmutated-{}", number + 1))?;
            let shown = verdict.map_or_else(|| "green".to_owned(), |verdict| verdict.to_string());
            println!("without mutation: {shown}: {line} ({:.1} s)", start.elapsed().as_secs_f64());
            Ok((line.as_str(), verdict))
        })?;
        let unfit: BTreeMap<&str, Option<Verdict>> = unfit_tests.into_iter().collect();
        let is_switched = |patch: &&Patch| !self.alone.contains_key(&patch.name);
        let (switched, alone): (Vec<_>, Vec<_>) = self.chosen.iter().copied().partition(is_switched);
        let tried = parallel_map(jobs, &switched, |patch| self.outcome(patch, None, &unfit))?;
        // A script that is a constant, such as a public one, cannot be switched: it seems never reached.
        let is_settled =
            |outcome: &Outcome<'_>| outcome.verdict != Verdict::NeverReached || !outcome.patch.has_script;
        let (mut outcomes, unreached): (Vec<_>, Vec<_>) = tried.into_iter().partition(is_settled);
        let constant = || "its script is a constant".to_owned();
        let alone = alone.into_iter().map(|patch| (patch, self.alone[&patch.name].clone()));
        for (patch, reason) in alone.chain(unreached.into_iter().map(|outcome| (outcome.patch, constant()))) {
            outcomes.push(self.outcome(patch, Some(reason), &unfit)?);
        }
        outcomes.sort_by_key(|outcome| outcome.patch.name.as_str());
        Ok(outcomes)
    }

    /// Runs tests without a mutation. `None` if they pass, and so can show a mutation by failing.
    fn without_mutation(&self, line: &str, log_name: &str) -> Result<Option<Verdict>> {
        Ok(match self.try_line(&self.programs, line, None, log_name, TEST_TIME_MAX)? {
            TrialResult::Passed => None,
            TrialResult::NoTest => Some(Verdict::NoSuchTest),
            TrialResult::Failed | TrialResult::TimedOut => Some(Verdict::RedWithoutMutation),
        })
    }

    /// Tries a mutation, in a separate build if `alone` says why it needs one.
    fn outcome(
        &self,
        patch: &'a Patch,
        alone: Option<String>,
        unfit: &BTreeMap<&str, Option<Verdict>>,
    ) -> Result<Outcome<'a>> {
        let start = Instant::now();
        let verdict = match patch.red.iter().filter_map(|line| unfit[line.as_str()]).max() {
            Some(verdict) => verdict,
            None if alone.is_some() => self.verdict_alone(patch)?,
            None => self.verdict_switched(patch)?,
        };
        let verdict = match verdict {
            Verdict::StillGreen | Verdict::NeverReached if patch.survives.is_some() => Verdict::Survives,
            verdict => verdict,
        };
        let took = start.elapsed();
        println!("{}: {verdict} ({:.1} s)", patch.name, took.as_secs_f64());
        Ok(Outcome { patch, verdict, took, alone })
    }

    fn verdict_switched(&self, patch: &Patch) -> Result<Verdict> {
        let reached = self.scratch.reached(&patch.name);
        let _ = fs::remove_file(&reached);
        let verdict = worst(patch, |line, log_name| {
            self.try_line(&self.programs, line, Some(patch.name.as_str()), log_name, self.time_max)
        })?;
        Ok(match verdict {
            Verdict::StillGreen if !reached.exists() => Verdict::NeverReached,
            verdict => verdict,
        })
    }

    fn verdict_alone(&self, patch: &Patch) -> Result<Verdict> {
        if !self.scratch.apply(patch)? {
            return Ok(Verdict::DoesNotApply);
        }
        let lines: Vec<TestSelection> = patch.red.iter().map(|line| TestSelection::of(line)).collect();
        let log_name = format!("{}-build", patch.name);
        let verdict = match build(&self.scratch, &self.scratch.plain, &lines, &log_name)? {
            Built::Errors(_) => Verdict::DoesNotCompile,
            Built::Programs(programs) => {
                worst(patch, |line, log_name| self.try_line(&programs, line, None, log_name, self.time_max))?
            }
        };
        self.scratch.restore(self.project)?;
        Ok(verdict)
    }

    fn try_line(
        &self,
        programs: &[Program],
        line: &str,
        mutation: Option<&str>,
        log_name: &str,
        time_max: Duration,
    ) -> Result<TrialResult> {
        let tests = TestSelection::of(line);
        let programs: Vec<&Program> = programs.iter().filter(|program| tests.select(program)).collect();
        try_programs(&self.scratch, &programs, &tests.arguments, mutation, log_name, time_max)
    }
}

/// Returns the worst verdict of all tests of a patch.
fn worst(patch: &Patch, try_line: impl Fn(&str, &str) -> Result<TrialResult>) -> Result<Verdict> {
    let mut worst = Verdict::Red;
    for (number, line) in patch.red.iter().enumerate() {
        let verdict = match try_line(line, &format!("{}-{}", patch.name, number + 1))? {
            TrialResult::Failed => Verdict::Red,
            TrialResult::TimedOut => Verdict::RedByTimeout,
            TrialResult::Passed => Verdict::StillGreen,
            TrialResult::NoTest => Verdict::NoSuchTest,
        };
        println!("  {}: {verdict}: {line}", patch.name);
        worst = worst.max(verdict);
    }
    Ok(worst)
}
