//! Rows side by side: on the terminal, as text and as JSON.

use std::{collections::BTreeMap, fmt, fs, path::Path};

use anyhow::{Context, Result};
use comfy_table::{Table, TableStyle, presets};
use serde::Serialize;

use crate::{Plan, Store, measure::Measured, workload::Workload};

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    store: &'static str,
    /// What it ran on.
    conditions: BTreeMap<String, String>,
    rows: Vec<Runs>,
}

/// The runs of one row, one per round.
#[derive(Clone, Debug, Serialize)]
struct Runs {
    workload: Workload,
    row: &'static str,
    runs: Vec<Measured>,
}

/// A row beside the first one of its workload.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// What was done.
    pub workload: Workload,
    /// Who did it.
    pub row: &'static str,
    /// How many times as often as the first row of the same round.
    pub ratio: Spread,
}

/// The median of some rounds, and the least and the largest.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
        Self { median: at(values.len() / 2), min: at(0), max: at(values.len().saturating_sub(1)) }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.median < 10.0 { 2 } else { 0 };
        write!(f, "{:.digits$} [{:.digits$}-{:.digits$}]", self.median, self.min, self.max)
    }
}

impl Report {
    pub(crate) fn new(store: &dyn Store, plan: Plan) -> Self {
        let mut conditions: BTreeMap<_, _> = store.describes().into_iter().collect();
        let mut tell = |what: &str, value: String| drop(conditions.insert(what.to_owned(), value));
        tell("lockkit", env!("CARGO_PKG_VERSION").to_owned());
        tell("profile", if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned());
        tell("machine", machine());
        tell("rounds", format!("{} of {:?} each, in turns", plan.rounds, plan.each));
        Self { store: store.name(), conditions, rows: Vec::new() }
    }

    pub(crate) fn add(&mut self, workload: Workload, row: &'static str, measured: Measured) {
        match self.rows.iter_mut().find(|runs| runs.workload == workload && runs.row == row) {
            Some(found) => found.runs.push(measured),
            None => self.rows.push(Runs { workload, row, runs: vec![measured] }),
        }
    }

    /// Every row beside the first one of its workload.
    pub fn comparisons(&self) -> Vec<Comparison> {
        let beside = |runs: &Runs| {
            let first = self.rows.iter().find(|first| first.workload == runs.workload)?;
            let pairs = runs.runs.iter().zip(&first.runs);
            let ratio = Spread::of(pairs.map(|(run, first)| run.per_second / first.per_second));
            Some(Comparison { workload: runs.workload, row: runs.row, ratio })
        };
        self.rows.iter().filter_map(beside).collect()
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::write(folder.join("report.json"), serde_json::to_string_pretty(self)? + "\n")?;
        let conditions = self.conditions.iter().map(|(what, value)| format!("* {what}: {value}\n"));
        let table = self.table(presets::ASCII_MARKDOWN);
        let text = format!("# {}\n\n{}\n{table}\n", self.store, conditions.collect::<String>());
        Ok(fs::write(folder.join("report.md"), text)?)
    }

    fn table(&self, style: TableStyle) -> Table {
        let mut table = Table::new();
        table.load_style(style).set_header([
            "workload",
            "row",
            "grants/s",
            "times the first",
            "hand-over p50 / p99 us",
            "to self",
            "shares",
            "received, sent per grant",
            "CPU us client + server",
        ]);
        for (runs, comparison) in self.rows.iter().zip(self.comparisons()) {
            let median = |of: fn(&Measured) -> f64| Spread::of(runs.runs.iter().map(of)).median;
            table.add_row([
                runs.workload.to_string(),
                runs.row.to_owned(),
                Spread::of(runs.runs.iter().map(|run| run.per_second)).to_string(),
                comparison.ratio.to_string(),
                format!(
                    "{} / {}",
                    median(|run| run.hand_over.p50 as f64),
                    median(|run| run.hand_over.p99 as f64)
                ),
                format!("{:.2}", median(|run| run.to_self)),
                format!("{:.2}-{:.2}", median(|run| run.shares.0), median(|run| run.shares.1)),
                format!("{:.1}, {:.1}", median(|run| run.received), median(|run| run.sent)),
                format!("{:.0} + {:.0}", median(|run| run.client_cpu), median(|run| run.server_cpu)),
            ]);
        }
        table
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, value) in &self.conditions {
            writeln!(f, "{what}: {value}")?;
        }
        write!(f, "{}", self.table(presets::UTF8_FULL_CONDENSED))
    }
}

/// Processor and system, as far as Linux tells.
fn machine() -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let models = || cpus.lines().filter_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{} x {}, Linux {}", models().count(), models().next().unwrap_or("?"), kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_its_median_in_the_middle() {
        let spread = Spread::of([3.0, 1.0, 2.0].into_iter());
        assert_eq!(spread.to_string(), "2.00 [1.00-3.00]");
        assert_eq!(Spread::of([1000.4].into_iter()).to_string(), "1000 [1000-1000]");
    }
}
