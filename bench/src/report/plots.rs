//! Plots (SVG).

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::{
    coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter},
    prelude::*,
};

use super::{BackendReport, Kind, Report, Row, compare::number};
use crate::{job::Counted, results::Measured, workload::Workload};

const SIZE: (u32, u32) = (900, 460);

/// The width of the legend.
const LEGEND: i32 = 190;

/// Colours that most people can tell apart; the first ones for the raw row and for lockkit.
const RAW: RGBColor = RGBColor(0x77, 0x77, 0x77);
const LOCKKIT: RGBColor = RGBColor(0xcc, 0x33, 0x11);
const OTHERS: [RGBColor; 8] = [
    RGBColor(0x44, 0x77, 0xaa),
    RGBColor(0x22, 0x88, 0x33),
    RGBColor(0xcc, 0xbb, 0x44),
    RGBColor(0xaa, 0x33, 0x77),
    RGBColor(0x66, 0xcc, 0xee),
    RGBColor(0x7a, 0x52, 0x30),
    RGBColor(0x00, 0x00, 0x00),
    RGBColor(0xee, 0x88, 0x66),
];

/// A plot that was written.
#[derive(Debug)]
pub(super) struct Plot {
    /// In the folder of the report.
    pub(super) file: String,
    pub(super) title: String,
    /// Nothing if it shows all backends.
    pub(super) backend: Option<&'static str>,
}

/// A line of a plot.
struct Line {
    name: String,
    kind: Kind,
    points: Vec<(f64, f64)>,
}

/// What a plot shows.
struct Chart {
    plot: Plot,
    x: Axis,
    y: Axis,
    x_name: &'static str,
    y_name: &'static str,
    lines: Vec<Line>,
    /// Whether each point is marked.
    is_marked: bool,
}

/// Draws all plots that have something to show.
pub(super) fn draw_all(report: &Report, folder: &Path) -> Result<Vec<Plot>> {
    let mut charts = vec![clients_of_all(report), holds_cpu(report), holds_requests(report)];
    for backend in &report.backends {
        charts.extend([
            distribution(backend, Workload::W1, "latency", "acquire + release", |run| &run.pairs_us),
            distribution(backend, Workload::W3, "contended", "acquire + release", |run| &run.pairs_us),
            distribution(backend, Workload::W3H, "handover", "hand-over", |run| &run.handoffs_us),
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

/// An axis with the ticks that it is given.
#[derive(Clone, Debug)]
struct Axis {
    from: f64,
    to: f64,
    is_log: bool,
    ticks: Vec<f64>,
}

impl Axis {
    /// A logarithmic axis of whole decades around all values.
    fn decades(values: impl Iterator<Item = f64> + Clone) -> Self {
        let low = values.clone().fold(f64::MAX, f64::min).max(1e-6).log10().floor() as i32;
        let high = (values.fold(1e-6, f64::max).log10().ceil() as i32).max(low + 1);
        let ticks = (low..=high).map(|power| 10f64.powi(power)).collect();
        Self { from: 10f64.powi(low), to: 10f64.powi(high), is_log: true, ticks }
    }

    fn linear(to: f64, step: f64) -> Self {
        let ticks = (0..=(to / step) as u32).map(|number| f64::from(number) * step).collect();
        Self { from: 0.0, to, is_log: false, ticks }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let at = |value: f64| if self.is_log { value.ln() } else { value };
        let part = (at(*value) - at(self.from)) / (at(self.to) - at(self.from));
        limit.0 + (part * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(value: &f64) -> String {
        tick(*value)
    }
}

/// A number as at an axis: 10,000 and not 10000.00.
fn tick(value: f64) -> String {
    if value > 0.0 && value < 1.0 {
        return number(value);
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl Chart {
    fn draw(self, folder: &Path) -> Result<Plot> {
        let path = folder.join(&self.plot.file);
        self.draw_to(&path).map_err(|error| anyhow!("{}: {error}", path.display()))?;
        Ok(self.plot)
    }

    fn draw_to(&self, path: &Path) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.plot.title, ("sans-serif", 18))
            .margin(12)
            .margin_right(LEGEND)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        chart
            .configure_mesh()
            .x_desc(self.x_name)
            .y_desc(self.y_name)
            .label_style(("sans-serif", 13))
            .axis_desc_style(("sans-serif", 14))
            .light_line_style(TRANSPARENT)
            .bold_line_style(RGBColor(0xdd, 0xdd, 0xdd))
            .draw()?;
        let mut others = OTHERS.iter().cycle();
        // The legend is beside the plot, where it hides no line.
        let mut legend = (SIZE.0 as i32 - LEGEND + 12, 60);
        for line in self.lines.iter().filter(|line| !line.points.is_empty()) {
            let colour = match line.kind {
                Kind::Raw => RAW,
                Kind::Lockkit => LOCKKIT,
                Kind::Peer => *others.next().unwrap_or(&BLACK),
            };
            let style = colour.stroke_width(if line.kind == Kind::Lockkit { 3 } else { 2 });
            chart.draw_series(LineSeries::new(line.points.iter().copied(), style))?;
            area.draw(&PathElement::new([legend, (legend.0 + 20, legend.1)], style))?;
            area.draw(&Text::new(line.name.as_str(), (legend.0 + 26, legend.1 - 6), ("sans-serif", 13)))?;
            legend.1 += 22;
            if self.is_marked {
                let mark = |point: &(f64, f64)| Circle::new(*point, 4, colour.filled());
                chart.draw_series(line.points.iter().map(mark))?;
            }
        }
        area.present()
    }
}
