//! One plot: axes, lines and a legend.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::{
    coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter},
    prelude::*,
};

use crate::report::{Kind, compare::number};

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
pub(in crate::report) struct Plot {
    /// In the folder of the report.
    pub(in crate::report) file: String,
    pub(in crate::report) title: String,
    /// Nothing if it shows all backends.
    pub(in crate::report) backend: Option<&'static str>,
}

/// A line of a plot.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) points: Vec<(f64, f64)>,
}

/// What a plot shows.
pub(super) struct Chart {
    pub(super) plot: Plot,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) x_name: &'static str,
    pub(super) y_name: &'static str,
    pub(super) lines: Vec<Line>,
    /// Whether each point is marked.
    pub(super) is_marked: bool,
}

/// An axis with the ticks that it is given.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) is_log: bool,
    pub(super) ticks: Vec<f64>,
}

impl Axis {
    /// A logarithmic axis of whole decades around all values.
    pub(super) fn decades(values: impl Iterator<Item = f64> + Clone) -> Self {
        let low = values.clone().fold(f64::MAX, f64::min).max(1e-6).log10().floor() as i32;
        let high = (values.fold(1e-6, f64::max).log10().ceil() as i32).max(low + 1);
        let ticks = (low..=high).map(|power| 10f64.powi(power)).collect();
        Self { from: 10f64.powi(low), to: 10f64.powi(high), is_log: true, ticks }
    }

    pub(super) fn linear(to: f64, step: f64) -> Self {
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
    pub(super) fn draw(self, folder: &Path) -> Result<Plot> {
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
        // The legend is at the right of the plot, where it hides no line.
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
