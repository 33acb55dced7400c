//! Plots (SVG): what each of them shows.

mod chart;

use std::path::Path;

use anyhow::Result;

pub(super) use self::chart::Plot;
use self::chart::{Axis, Chart, Line};
use super::{BackendReport, Kind, Report, Row};
use crate::{job::Counted, results::Measured, workload::Workload};

/// Draws all plots that have something to show.
pub(super) fn draw_all(report: &Report, folder: &Path) -> Result<Vec<Plot>> {
    let mut charts = vec![clients_of_all(report), holds_cpu(report), holds_requests(report)];
    for backend in &report.backends {
        charts.extend([
            distribution(backend, Workload::W1, "latency", "acquire + release", |run| &run.pairs_us),
            distribution(backend, Workload::W3, "contended", "acquire + release", |run| &run.pairs_us),
            distribution(backend, Workload::W3H, "handoff", "handoff", |run| &run.handoffs_us),
            clients(backend),
            waiters(backend, Workload::W4),
            waiters(backend, Workload::W4L),
        ]);
    }
    let charts = charts.into_iter().filter(|chart| chart.lines.iter().any(|line| line.points.len() > 1));
    charts.map(|chart| chart.draw(folder)).collect()
}

/// How many of the times are at most as long.
fn distribution(
    report: &BackendReport,
    workload: Workload,
    file: &str,
    what: &str,
    values: fn(&Measured) -> &Counted,
) -> Chart {
    let lines: Vec<Line> = report
        .rows_of(workload)
        .map(|row| Line { name: row.name.clone(), kind: row.kind, points: cumulated(row, values) })
        .collect();
    let longest = lines.iter().flat_map(|line| &line.points).map(|point| point.0);
    Chart {
        plot: Plot {
            file: format!("{file}-{}.svg", report.backend.name()),
            title: format!("{}: {what}, {workload} ({})", report.backend.name(), workload.description()),
            backend: Some(report.backend.name()),
        },
        x: Axis::decades(longest),
        y: Axis::linear(100.0, 20.0),
        x_name: "microseconds",
        y_name: "% at most as long",
        lines,
        is_marked: false,
    }
}

fn cumulated(row: &Row, values: fn(&Measured) -> &Counted) -> Vec<(f64, f64)> {
    let mut all: Counted = row.measured().flat_map(values).copied().collect();
    all.sort_unstable();
    let total: u64 = all.iter().map(|(_, count)| count).sum();
    let mut seen = 0;
    let points = all.into_iter().map(|(value, count)| {
        seen += count;
        (value.max(1) as f64, seen as f64 * 100.0 / total as f64)
    });
    thinned(points.collect())
}

/// Leaves out points that nobody would see.
fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let mut kept: Vec<(f64, f64)> = Vec::new();
    let last = points.last().copied();
    for point in points {
        let is_near = kept.last().is_some_and(|kept| point.1 - kept.1 < 0.2 && point.0 / kept.0 < 1.02);
        if !is_near {
            kept.push(point);
        }
    }
    kept.extend(last);
    kept
}

/// Throughput against the number of clients that want one lock.
fn clients(report: &BackendReport) -> Chart {
    let name = report.backend.name();
    let title = format!("{name}: one lock, 1 to 32 clients");
    let rows = report.rows.iter().filter(|row| row.workload == Workload::W3);
    clients_chart(format!("clients-{name}.svg"), title, Some(name), by_size(rows, |run| run.per_second))
}

/// The same for lockkit on all backends.
fn clients_of_all(report: &Report) -> Chart {
    let lines = report.backends.iter().flat_map(|backend| {
        let ours =
            backend.rows.iter().filter(|row| row.workload == Workload::W3 && row.kind == Kind::Lockkit);
        by_size(ours, |run| run.per_second).into_iter().map(|line| Line {
            name: backend.backend.name().to_owned(),
            kind: Kind::Peer,
            ..line
        })
    });
    let title = "lockkit: one lock, 1 to 32 clients".to_owned();
    clients_chart("clients.svg".to_owned(), title, None, lines.collect())
}

fn clients_chart(file: String, title: String, backend: Option<&'static str>, lines: Vec<Line>) -> Chart {
    let y = Axis::decades(lines.iter().flat_map(|line| &line.points).map(|point| point.1));
    Chart {
        plot: Plot { file, title, backend },
        x: Axis { from: 1.0, to: 32.0, is_log: true, ticks: vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0] },
        y,
        x_name: "clients",
        y_name: "pairs per second",
        lines,
        is_marked: true,
    }
}

/// The time of a grant against the number of waiters.
fn waiters(report: &BackendReport, workload: Workload) -> Chart {
    let name = report.backend.name();
    let rows = report.rows.iter().filter(|row| row.workload == workload);
    let lines = by_size(rows, |run| run.elapsed_us as f64 / run.pairs as f64);
    let of = if workload == Workload::W4 { "clients" } else { "tasks of one client" };
    Chart {
        plot: Plot {
            file: format!(
                "waiters-{}-{name}.svg",
                if workload == Workload::W4 { "clients" } else { "tasks" }
            ),
            title: format!("{name}: {of} that wait, {workload}"),
            backend: Some(name),
        },
        x: Axis { from: 50.0, to: 1_000.0, is_log: true, ticks: vec![50.0, 100.0, 200.0, 500.0, 1_000.0] },
        y: Axis::decades(lines.iter().flat_map(|line| &line.points).map(|point| point.1)),
        x_name: "waiters",
        y_name: "microseconds per grant",
        lines,
        is_marked: true,
    }
}

/// A line per row, with a point for each size.
fn by_size<'a>(rows: impl Iterator<Item = &'a Row>, value: fn(&Measured) -> f64) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let Some(median) = row.median(|run| Some(value(run))) else { continue };
        let point = (row.size as f64, median);
        match lines.iter_mut().find(|line| line.name == row.name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name: row.name.clone(), kind: row.kind, points: vec![point] }),
        }
    }
    for line in &mut lines {
        line.points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    lines
}

fn holds_cpu(report: &Report) -> Chart {
    holds_chart(report, "holds-cpu.svg", "% of a core, client", |holds| Some(holds.client_core * 100.0))
}

fn holds_requests(report: &Report) -> Chart {
    holds_chart(report, "holds-requests.svg", "requests per second", |holds| holds.requests_per_second)
}

fn holds_chart(
    report: &Report,
    file: &str,
    y_name: &'static str,
    value: fn(&crate::probe::holds::Holds) -> Option<f64>,
) -> Chart {
    let line = |backend: &BackendReport| Line {
        name: backend.backend.name().to_owned(),
        kind: Kind::Peer,
        points: backend
            .holds
            .iter()
            .filter_map(|holds| Some((holds.count as f64, value(holds)?)))
            .filter(|point| point.1 > 0.0)
            .collect(),
    };
    let lines: Vec<Line> = report.backends.iter().map(line).filter(|line| !line.points.is_empty()).collect();
    Chart {
        plot: Plot {
            file: file.to_owned(),
            title: format!("one client that keeps many locks, {y_name} (W6)"),
            backend: None,
        },
        x: Axis::decades(lines.iter().flat_map(|line| &line.points).map(|point| point.0)),
        y: Axis::decades(lines.iter().flat_map(|line| &line.points).map(|point| point.1)),
        x_name: "holds",
        y_name,
        lines,
        is_marked: true,
    }
}
