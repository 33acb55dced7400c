//! The outcome of each case: printed by the runner, and written as JSON for the tables.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use lockkit_core::backend::{BackendInfo, Promises};
use serde::Serialize;

use crate::{Case, Harness};

/// The folders of test programs and examples below cargo's profile folder.
const PROGRAMS: [&str; 2] = ["deps", "examples"];

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", content = "reason", rename_all = "lowercase")]
#[non_exhaustive]
pub enum Outcome {
    /// The promise held.
    Passed,
    /// The promise did not hold, or the case could not run to its end.
    Failed(String),
    /// The backend does not claim it, or the harness cannot test it.
    Ignored(String),
}

/// One line of the report.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CaseResult {
    /// The case.
    pub case: &'static str,
    /// The properties that it proves.
    pub properties: Vec<String>,
    /// Bugs of other clients and servers that it would have caught, see [`Case::bugs`].
    pub bugs: &'static [u8],
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// How long it took, in seconds of the machine's time.
    pub seconds: f64,
    /// The figures that it has measured, by name and unit.
    #[serde(skip_serializing_if = "Figures::is_empty")]
    pub figures: Figures,
}

/// Figures that a case publishes, by name.
pub type Figures = BTreeMap<&'static str, f64>;

impl CaseResult {
    pub(crate) fn new(case: &Case, outcome: Outcome, took: Duration, figures: Figures) -> Self {
        Self {
            case: case.name,
            properties: case.properties.iter().map(ToString::to_string).collect(),
            bugs: case.bugs,
            outcome,
            seconds: took.as_secs_f64(),
            figures,
        }
    }

    /// Returns the figures in one line; `None` without any.
    pub(crate) fn shown_figures(&self) -> Option<String> {
        let shown: Vec<_> = self.figures.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        (!shown.is_empty()).then(|| format!("figures of {}: {}", self.case, shown.join(", ")))
    }
}

#[derive(Serialize)]
struct Report<'a> {
    backend: &'a str,
    /// Repeats the order of the cases and their random numbers.
    seed: u64,
    /// The fields of [`BackendInfo`] and [`Promises`].
    claims: BTreeMap<&'static str, String>,
    cases: BTreeMap<&'static str, &'a CaseResult>,
}

/// Writes the report of one backend below the target folder, and returns its path.
pub(crate) fn write(harness: &dyn Harness, seed: u64, results: &[CaseResult]) -> Result<PathBuf> {
    let backend = harness.name();
    let cases = results.iter().map(|result| (result.case, result)).collect();
    let folder = target_folder()?.join("conformance");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join(format!("{backend}.json"));
    let claims = claims(&harness.info(), &harness.promises());
    let json = serde_json::to_string_pretty(&Report { backend: &backend, seed, claims, cases })?;
    fs::write(&path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn claims(info: &BackendInfo, promises: &Promises) -> BTreeMap<&'static str, String> {
    let BackendInfo { scheme, ttl_min, ttl_max, heartbeat, lifetime, .. } = info;
    let Promises { queue, token, loss, failover, .. } = promises;
    BTreeMap::from([
        ("scheme", (*scheme).to_owned()),
        ("ttl_min", format!("{ttl_min:?}")),
        ("ttl_max", format!("{ttl_max:?}")),
        ("heartbeat", format!("{heartbeat:?}")),
        ("lifetime", format!("{lifetime:?}")),
        ("queue", format!("{queue:?}")),
        ("token", format!("{token:?}")),
        ("loss", format!("{loss:?}")),
        ("failover", format!("{failover:?}")),
    ])
}

/// Returns the folder above `PROFILE/deps/PROGRAM`.
fn target_folder() -> Result<PathBuf> {
    let program = env::current_exe()?;
    // A copy in another folder must not write three folders above it.
    let is_in_target =
        program.parent().is_some_and(|folder| PROGRAMS.iter().any(|name| folder.ends_with(name)));
    let target = program.ancestors().nth(3).filter(|_| is_in_target).map(Path::to_owned);
    target.context("the test program is not in a target folder")
}
