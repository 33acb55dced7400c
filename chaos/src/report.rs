//! The result of a run: on the terminal, as JSON, and as a picture.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use comfy_table::{Table, presets};
use serde_json::json;

#[cfg(test)]
use crate::verdict::Requirements;
use crate::{
    schedule::{Scale, Schedule},
    timeline,
    verdict::{History, Verdict},
};

/// Columns of the table.
const COLUMNS: &str = "backend, seed, took, grants, waited, lost, overtaken, faults, noticed, refused, lost unfenced, \
                       lost fenced, in order, verdict";

/// Maximum number of violations of one run on the terminal.
const VIOLATIONS_SHOWN_MAX: usize = 20;

/// The result of a run.
#[derive(Debug)]
pub(crate) struct RunResult {
    pub(crate) backend: String,
    pub(crate) seed: u64,
    pub(crate) scale: Scale,
    pub(crate) start: Duration,
    pub(crate) took: Duration,
    pub(crate) schedule: Schedule,
    pub(crate) verdict: Verdict,
    pub(crate) history: History,
}

impl RunResult {
    /// Whether nothing was violated and the requirements were met.
    pub(crate) fn passed(&self) -> bool {
        self.verdict.violations.is_empty() && self.verdict.missing.is_empty()
    }

    /// Judges a history that was not recorded in a run: two clients, one lock, a second.
    #[cfg(test)]
    pub(crate) fn by_hand(history: History, required: Requirements) -> Self {
        let scale = Scale { clients: 2, locks: 1, ttl: history.ttl };
        let verdict = history.judge(required, Vec::new());
        let (start, took) = (Duration::ZERO, Duration::from_secs(1));
        Self {
            backend: "redis".to_owned(),
            seed: 1,
            scale,
            start,
            took,
            schedule: Schedule(Vec::new()),
            verdict,
            history,
        }
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
            "clients": self.scale.clients,
            "locks": self.scale.locks,
            "ttl_s": self.scale.ttl.as_secs_f64(),
            // All other times are on the same clock: since the start of the machine.
            "start": self.start,
            "took_s": self.took.as_secs_f64(),
            "schedule": self.schedule,
            "verdict": self.verdict,
            "faults": self.history.faults,
            "holds": self.history.holds,
            "accesses": self.history.accesses,
            "reports": self.history.reports,
        })
    }
}

/// Formats the figures of all runs as a table, with the violations and unmet requirements.
pub(crate) fn table(results: &[RunResult]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(COLUMNS.split(", "));
    for result in results {
        let figures = &result.verdict.figures;
        let verdict = match (result.verdict.violations.len(), result.verdict.missing.len()) {
            (0, 0) => "ok".to_owned(),
            (0, _) => "inconclusive".to_owned(),
            (count, _) => format!("{count} VIOLATIONS"),
        };
        let counts = [
            figures.grants,
            figures.contended,
            figures.losses,
            figures.overtaken,
            figures.faults,
            figures.noticed,
            figures.refused,
            figures.lost_unfenced,
            figures.lost_fenced,
            figures.in_order,
        ];
        let first =
            [result.backend.clone(), result.seed.to_string(), format!("{:.0} s", result.took.as_secs_f64())];
        table.add_row(first.into_iter().chain(counts.map(|count| count.to_string())).chain([verdict]));
    }
    let mut text = format!("{table}\n");
    for result in results {
        let verdict = &result.verdict;
        for violation in verdict.violations.iter().take(VIOLATIONS_SHOWN_MAX) {
            text += &format!("{}: VIOLATION: {violation}\n", result.backend);
        }
        if let Some(more) = verdict.violations.len().checked_sub(VIOLATIONS_SHOWN_MAX + 1) {
            text += &format!("{}: and {} more, in the report\n", result.backend, more + 1);
        }
        for missing in &verdict.missing {
            text += &format!("{}: inconclusive: {missing}\n", result.backend);
        }
    }
    text
}
