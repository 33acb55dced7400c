//! Draws the panels of the dashboard from scraped data (SVG). Grafana draws them in its own way.

use std::{fmt::Write, time::Duration};

use serde_json::Value;

use crate::{
    query::{Lines, Query},
    scrape::Scrape,
};

/// The run that is drawn: its ttl, and how long the store is stopped.
pub(crate) const TTL: Duration = Duration::from_secs(5);
pub(crate) const OUTAGES: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(7)];

/// Sizes in pixels.
const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 210.0;
const LEFT: f64 = 52.0;
const TOP: f64 = 28.0;
/// Of the plot, without title, axes and legend.
const PLOT: [f64; 2] = [350.0, 120.0];
const HEAD: f64 = 44.0;
const COLUMNS: usize = 3;

const COLOURS: [&str; 8] =
    ["#4477aa", "#cc3311", "#228833", "#ee8866", "#aa3377", "#66ccee", "#7a5230", "#777777"];

/// A panel of the dashboard.
pub(crate) struct Panel {
    pub(crate) title: String,
    unit: String,
    pub(crate) queries: Vec<Query>,
}

impl Panel {
    pub(crate) fn new(panel: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let query = |target: &Value| Query::new(&text(&target["expr"]), &text(&target["legendFormat"]));
        Self {
            title: text(&panel["title"]),
            unit: text(&panel["fieldConfig"]["defaults"]["unit"]),
            queries: panel["targets"].as_array().unwrap().iter().map(query).collect(),
        }
    }

    fn lines(&self, scrapes: &[Scrape]) -> Lines {
        let mut lines: Lines = self.queries.iter().flat_map(|query| query.evaluate(scrapes)).collect();
        // The many reasons that did not occur would hide the others in the legend.
        if lines.len() > COLOURS.len() / 2 {
            lines.retain(|_, points| points.iter().any(|(_, value)| *value > 0.0));
        }
        lines
    }
}

/// Draws all panels.
pub(crate) fn draw(panels: &[Panel], scrapes: &[Scrape]) -> String {
    let end = scrapes.last().map_or(1.0, |scrape| scrape.at.as_secs_f64());
    let (width, rows) = (WIDTH * COLUMNS as f64, panels.len().div_ceil(COLUMNS) as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"10\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        height = HEAD + rows * HEIGHT
    );
    text(&mut svg, [12.0, 20.0], "font-size=\"15\" font-weight=\"bold\"", "The example prometheus on Redis");
    let what = format!(
        "Drawn by lockkit's tests from {} scrapes and the dashboard's queries, not by Grafana. With a ttl of {TTL:?}, the \
         server was stopped for {:?} and then for {:?}.",
        scrapes.len(),
        OUTAGES[0],
        OUTAGES[1]
    );
    text(&mut svg, [12.0, 36.0], "fill=\"#555\"", &what);
    for (number, panel) in panels.iter().enumerate() {
        let (x, y) = ((number % COLUMNS) as f64 * WIDTH, HEAD + (number / COLUMNS) as f64 * HEIGHT);
        let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
        draw_panel(&mut svg, panel, &panel.lines(scrapes), end);
        svg += "</g>\n";
    }
    svg + "</svg>\n"
}

fn draw_panel(svg: &mut String, panel: &Panel, lines: &Lines, end: f64) {
    text(svg, [12.0, 16.0], "font-size=\"12\" font-weight=\"bold\"", &panel.title);
    let top = round_up(lines.values().flatten().map(|(_, value)| *value).fold(0.0, f64::max));
    let [width, height] = PLOT;
    for step in 0..=4 {
        let share = f64::from(step) / 4.0;
        let (x, y) = (LEFT + share * width, TOP + height * (1.0 - share));
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {y}h{width}\" stroke=\"#{}\"/>",
            if step == 0 { "888" } else { "ddd" }
        );
        let style = "fill=\"#555\" text-anchor=\"end\"";
        text(svg, [LEFT - 5.0, y + 3.0], style, &label(top * share, &panel.unit));
        text(svg, [x + 8.0, TOP + height + 13.0], style, &format!("{:.0} s", end * share));
    }
    let mut x = LEFT;
    let mut y = TOP + height + 30.0;
    for (number, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let mut path = String::new();
        // A gap of the data is a gap of the line.
        let mut last = f64::NEG_INFINITY;
        for (at, value) in points {
            let at = at.as_secs_f64();
            let command = if at - last > 2.0 { 'M' } else { 'L' };
            let (x, y) = (LEFT + at / end * width, TOP + height * (1.0 - value / top));
            let _ = write!(path, "{command}{x:.1} {y:.1}");
            last = at;
        }
        let _ = writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.4\"/>");
        let length = 22.0 + 5.4 * name.len() as f64;
        if x + length > WIDTH {
            (x, y) = (LEFT, y + 13.0);
        }
        let _ = writeln!(svg, "<path d=\"M{x} {}h10\" stroke=\"{colour}\" stroke-width=\"3\"/>", y - 3.5);
        text(svg, [x + 14.0, y], "", name);
        x += length;
    }
}

/// Returns the next of 1, 2, 4 and 8 with a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.max(0.001).log10().floor());
    [1.0, 2.0, 4.0, 8.0, 10.0].into_iter().map(|step| step * power).find(|step| *step >= value).unwrap_or(1.0)
}

fn label(value: f64, unit: &str) -> String {
    match unit {
        "s" if value > 0.0 && value < 1.0 => format!("{:.0} ms", value * 1_000.0),
        "s" => format!("{value} s"),
        "ops" => format!("{value}/s"),
        _ => format!("{value}"),
    }
}

fn text(svg: &mut String, [x, y]: [f64; 2], style: &str, what: &str) {
    let what = what.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{what}</text>");
}
