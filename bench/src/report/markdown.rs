//! The report as text: for the terminal, and as Markdown as it is in `docs/performance/`.

use std::fmt::{self, Write};

use comfy_table::{Table, TableStyle, presets};

use super::{BackendReport, Report, plots::Plot, tables};
use crate::workload::Workload;

/// What the table of ratios shows.
const RATIOS: &str = "lockkit divided by the bare requests / by the best peer, medians of the rounds. W1 to W3: pairs per second, \
                      more is better. W3H: median handoff, W4 and W4L: time of all; less is better.";

/// Returns the report as Markdown.
pub(super) fn text(report: &Report, plots: &[Plot]) -> String {
    let style = presets::ASCII_MARKDOWN;
    let mut parts = vec!["# Benchmark\n".to_owned(), list(&report.conditions)];
    let image = |plot: &Plot| format!("![{}]({})\n", plot.title, plot.file);
    let plots_of = |name: Option<&str>| {
        let wanted = plots.iter().filter(move |plot| plot.backend == name);
        wanted.map(image).collect::<Vec<_>>().join("\n")
    };
    parts.push("## All backends, side by side\n".to_owned());
    parts.push(format!("{}\n", tables::side_by_side(report, style)));
    parts.push(format!("{RATIOS}\n\n{}\n", tables::ratios(report, style)));
    if let Some(table) = tables::holds(report, style) {
        parts.push(format!("W6: what the holds of one client cost.\n\n{table}\n"));
    }
    parts.push(plots_of(None));
    for backend in &report.backends {
        let name = backend.backend.name();
        parts.push(format!("## {name}\n\n{}", list(&backend.conditions)));
        for (title, table) in of_backend(backend, style) {
            parts.push(format!("### {title}\n\n{table}\n"));
        }
        parts.push(versions(backend));
        parts.push(plots_of(Some(name)));
    }
    for (title, found) in [("Not measured", report.impossible()), ("Errors", report.errors())] {
        let lines: String = found.iter().map(|line| format!("* {line}\n")).collect();
        if !lines.is_empty() {
            parts.push(format!("## {title}\n\n{lines}"));
        }
    }
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

/// Returns a title and a table for each workload.
fn of_backend(report: &BackendReport, style: TableStyle) -> impl Iterator<Item = (String, Table)> {
    Workload::OF_ROWS.into_iter().filter_map(move |workload| {
        let table = tables::workload(report, workload, style)?;
        Some((format!("{workload}: {}", workload.description()), table))
    })
}

fn list(conditions: &std::collections::BTreeMap<&'static str, String>) -> String {
    conditions.iter().map(|(what, value)| format!("* {what}: {value}\n")).collect()
}

/// Returns what each row is.
fn versions(report: &BackendReport) -> String {
    let mut rows: Vec<(&str, &str)> = Vec::new();
    for row in &report.rows {
        if let Some(run) = row.measured().next()
            && !rows.iter().any(|(name, _)| *name == row.name)
        {
            rows.push((&row.name, &run.version));
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let rows: Vec<String> = rows.iter().map(|(name, version)| format!("{name}: {version}")).collect();
    format!("Rows: {}.\n", rows.join("; "))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let style = presets::UTF8_FULL_CONDENSED;
        for backend in &self.backends {
            for (title, mut table) in of_backend(backend, style) {
                fit(&mut table);
                writeln!(f, "\n{} {title}\n{table}", backend.backend.name())?;
            }
        }
        if let Some(mut table) = tables::holds(self, style) {
            fit(&mut table);
            writeln!(f, "\nW6: {}\n{table}", Workload::W6.description())?;
        }
        let mut table = tables::side_by_side(self, style);
        fit(&mut table);
        writeln!(f, "\nlockkit on all backends\n{table}")?;
        writeln!(f, "\n{RATIOS}\n{}", tables::ratios(self, style))?;
        let mut conditions = String::new();
        for (what, value) in &self.conditions {
            write!(conditions, "{what}: {value}; ")?;
        }
        write!(f, "{}", conditions.trim_end_matches("; "))
    }
}

/// Wraps cells, so that the table is not wider than a large terminal.
fn fit(table: &mut Table) {
    const WIDTH: u16 = 180;
    table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic).set_width(WIDTH);
}
