//! The report: on the terminal, as text and as JSON.

use std::{collections::BTreeMap, fmt, fs, path::Path};

use anyhow::{Context, Result};
use comfy_table::{Table, TableStyle, presets};
use serde::Serialize;

use crate::{Plan, Store, measure::Measured, workload::Workload};

/// The measurements on one store.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    store: &'static str,
    /// Versions, machine and the like.
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

/// A row in comparison with the first one of its workload.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// The workload of both rows.
    pub workload: Workload,
    /// The name of the row.
    pub row: &'static str,
    /// Grants per second, divided by those of the first row in the same round.
    pub ratio: Spread,
}

/// Median, minimum and maximum of all rounds.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
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
        let mut conditions: BTreeMap<_, _> = store.conditions().into_iter().collect();
        let mut add = |what: &str, value: String| drop(conditions.insert(what.to_owned(), value));
        add("lockkit", env!("CARGO_PKG_VERSION").to_owned());
        add("profile", if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned());
        add("machine", machine());
        add("rounds", format!("{} of {:?} each, in turns", plan.rounds, plan.each));
        Self { store: store.name(), conditions, rows: Vec::new() }
    }

    pub(crate) fn add(&mut self, workload: Workload, row: &'static str, measured: Measured) {
        match self.rows.iter_mut().find(|runs| runs.workload == workload && runs.row == row) {
            Some(found) => found.runs.push(measured),
            None => self.rows.push(Runs { workload, row, runs: vec![measured] }),
        }
    }

    /// Compares every row with the first one of its workload.
    pub fn comparisons(&self) -> Vec<Comparison> {
        let compare = |runs: &Runs| {
            let first = self.rows.iter().find(|first| first.workload == runs.workload)?;
            let pairs = runs.runs.iter().zip(&first.runs);
            let ratio = Spread::of(pairs.map(|(run, first)| run.per_second / first.per_second));
            Some(Comparison { workload: runs.workload, row: runs.row, ratio })
        };
        self.rows.iter().filter_map(compare).collect()
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
            "ratio to the first",
            "handoff p50 / p99 us",
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
                    median(|run| run.handoff.p50 as f64),
                    median(|run| run.handoff.p99 as f64)
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

/// Returns processor and system, as far as Linux reports them.
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
    fn spread_shows_median_minimum_and_maximum() {
        let spread = Spread::of([3.0, 1.0, 2.0].into_iter());
        assert_eq!(spread.to_string(), "2.00 [1.00-3.00]");
        assert_eq!(Spread::of([1000.4].into_iter()).to_string(), "1000 [1000-1000]");
    }
}
