//! What a run has shown: on the terminal, as JSON, and as a picture.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use comfy_table::{Table, presets};
use serde_json::json;

use crate::{
    schedule::{Cast, Schedule},
    timeline,
    verdict::{History, Verdict},
};

/// Of the table.
const COLUMNS: &str = "backend, seed, took, grants, waited, lost, overtaken, faults, noticed, refused, lost unfenced, \
                       lost fenced, in order, verdict";

/// Violations of one run on the terminal.
const VIOLATIONS_SHOWN_MAX: usize = 20;

/// Everything that a run has shown.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) backend: String,
    pub(crate) seed: u64,
    pub(crate) cast: Cast,
    pub(crate) start: Duration,
    pub(crate) took: Duration,
    pub(crate) schedule: Schedule,
    pub(crate) verdict: Verdict,
    pub(crate) history: History,
}

impl Outcome {
    /// Whether nothing was violated, and there was enough in it to show that.
    pub(crate) fn is_good(&self) -> bool {
        self.verdict.violations.is_empty() && self.verdict.missing.is_empty()
    }

    /// Writes the report and the timeline.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        let path = |extension| folder.join(format!("{}-{}.{extension}", self.backend, self.seed));
        let json = serde_json::to_string_pretty(&self.json())?;
        fs::write(path("json"), json).context("cannot write the report")?;
        fs::write(path("svg"), timeline::draw(self)).context("cannot write the timeline")
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "backend": self.backend,
            "seed": self.seed,
            "clients": self.cast.clients,
            "locks": self.cast.locks,
            "ttl_s": self.cast.ttl.as_secs_f64(),
            // All other times are on this clock: since the start of the machine.
            "start": self.start,
            "took_s": self.took.as_secs_f64(),
            "schedule": self.schedule,
            "verdict": self.verdict,
            "faults": self.history.faults,
            "holds": self.history.holds,
            "uses": self.history.uses,
            "reports": self.history.reports,
        })
    }
}

/// The figures of all runs, side by side, and what was violated or missing.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(COLUMNS.split(", "));
    for outcome in outcomes {
        let figures = &outcome.verdict.figures;
        let verdict = match (outcome.verdict.violations.len(), outcome.verdict.missing.len()) {
            (0, 0) => "ok".to_owned(),
            (0, _) => "had not enough in it".to_owned(),
            (count, _) => format!("{count} VIOLATIONS"),
        };
        let counts = [
            figures.grants,
            figures.contended,
            figures.losses,
            figures.overtaken,
            figures.faults,
            figures.hits,
            figures.refused,
            figures.lost_unfenced,
            figures.lost_fenced,
            figures.in_order,
        ];
        let first = [
            outcome.backend.clone(),
            outcome.seed.to_string(),
            format!("{:.0} s", outcome.took.as_secs_f64()),
        ];
        table.add_row(first.into_iter().chain(counts.map(|count| count.to_string())).chain([verdict]));
    }
    let mut text = format!("{table}\n");
    for outcome in outcomes {
        let verdict = &outcome.verdict;
        for violation in verdict.violations.iter().take(VIOLATIONS_SHOWN_MAX) {
            text += &format!("{}: VIOLATION: {violation}\n", outcome.backend);
        }
        if let Some(more) = verdict.violations.len().checked_sub(VIOLATIONS_SHOWN_MAX + 1) {
            text += &format!("{}: and {} more, in the report\n", outcome.backend, more + 1);
        }
        for missing in &verdict.missing {
            text += &format!("{}: had not enough in it: {missing}\n", outcome.backend);
        }
    }
    text
}
