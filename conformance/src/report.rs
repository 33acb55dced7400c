//! What became of each case: printed by the runner, written as JSON for the tables.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use lockkit_core::backend::BackendInfo;
use serde::Serialize;

use crate::Case;

/// Where cargo puts test programs, and those of examples, below the folder of the profile.
const PROGRAMS: [&str; 2] = ["deps", "examples"];

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", content = "reason", rename_all = "lowercase")]
pub enum Outcome {
    /// The promise held.
    Passed,
    /// It did not, or something went wrong on the way.
    Failed(String),
    /// The backend does not claim it, or the harness cannot try it.
    Ignored(String),
}

/// One line of the report.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// The case.
    pub case: &'static str,
    /// The scenarios that it stands for.
    pub scenarios: &'static [&'static str],
    /// What it proves.
    pub properties: Vec<String>,
    /// Bugs of other clients that it would have caught.
    pub bugs: &'static [u8],
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// How long it took, in seconds of the machine's time.
    pub seconds: f64,
    /// What it has found out beside that, by the name of the figure with its unit.
    #[serde(skip_serializing_if = "Figures::is_empty")]
    pub figures: Figures,
}

/// Figures that a case publishes, by name.
pub type Figures = BTreeMap<&'static str, f64>;

impl Record {
    pub(crate) fn new(case: &Case, outcome: Outcome, took: Duration, figures: Figures) -> Self {
        Self {
            case: case.name,
            scenarios: case.scenarios,
            properties: case.properties.iter().map(ToString::to_string).collect(),
            bugs: case.bugs,
            outcome,
            seconds: took.as_secs_f64(),
            figures,
        }
    }

    /// The figures in one line; `None` without any.
    pub(crate) fn shown_figures(&self) -> Option<String> {
        let shown: Vec<_> = self.figures.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        (!shown.is_empty()).then(|| format!("figures of {}: {}", self.case, shown.join(", ")))
    }
}

#[derive(Serialize)]
struct Report<'a> {
    backend: &'a str,
    /// Replays the order of the cases and their chance.
    seed: u64,
    /// What the backend claims, in the words of [`BackendInfo`].
    claims: BTreeMap<&'static str, String>,
    cases: BTreeMap<&'static str, &'a Record>,
}

/// Writes the report of one backend below the target folder; where.
pub(crate) fn write(backend: &str, info: &BackendInfo, seed: u64, records: &[Record]) -> Result<PathBuf> {
    let cases = records.iter().map(|record| (record.case, record)).collect();
    let folder = target_folder()?.join("conformance");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join(format!("{backend}.json"));
    let json = serde_json::to_string_pretty(&Report { backend, seed, claims: claims(info), cases })?;
    fs::write(&path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn claims(info: &BackendInfo) -> BTreeMap<&'static str, String> {
    let BackendInfo { scheme, ttl_min, ttl_max, beat, lifetime, queue, token, loss, failover, .. } = info;
    BTreeMap::from([
        ("scheme", (*scheme).to_owned()),
        ("ttl_min", format!("{ttl_min:?}")),
        ("ttl_max", format!("{ttl_max:?}")),
        ("beat", format!("{beat:?}")),
        ("lifetime", format!("{lifetime:?}")),
        ("queue", format!("{queue:?}")),
        ("token", format!("{token:?}")),
        ("loss", format!("{loss:?}")),
        ("failover", format!("{failover:?}")),
    ])
}

/// The folder above `PROFILE/deps/PROGRAM`.
fn target_folder() -> Result<PathBuf> {
    let program = env::current_exe()?;
    // A copy elsewhere must not write wherever three folders up leads to.
    let is_cargos = program.parent().is_some_and(|folder| PROGRAMS.iter().any(|name| folder.ends_with(name)));
    let target = program.ancestors().nth(3).filter(|_| is_cargos).map(Path::to_owned);
    target.context("the test program does not lie in a target folder")
}
