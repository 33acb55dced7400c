//! The queries of the dashboard: a sum of a gauge, of the growth of a counter, or a quantile of a histogram's growth.

use std::{collections::BTreeMap, time::Duration};

use crate::scrape::{Labels, Scrape};

/// Over how many scrapes a growth is measured (`$__rate_interval`).
pub(crate) const WINDOW: usize = 6;

/// A query.
#[derive(Debug)]
pub(crate) struct Query {
    series: String,
    by: Vec<String>,
    quantile: Option<f64>,
    growth: Growth,
    /// The name of a line, with `{{label}}` for the value of a label.
    legend: String,
}

#[derive(Debug, PartialEq)]
enum Growth {
    /// The value itself.
    No,
    Increase,
    PerSecond,
}

/// Points of each line, by its name.
pub(crate) type Lines = BTreeMap<String, Vec<(Duration, f64)>>;

impl Query {
    pub(crate) fn new(text: &str, legend: &str) -> Self {
        let quantile = text.strip_prefix("histogram_quantile(").and_then(|rest| rest.split(',').next());
        let by = text.split("by (").nth(1).and_then(|rest| rest.split(')').next()).unwrap_or_default();
        let series = text.find("lockkit_").and_then(|at| text[at..].split(['{', '[', ')']).next()).unwrap();
        let growth = match (text.contains("rate("), text.contains("increase(")) {
            (true, _) => Growth::PerSecond,
            (_, true) => Growth::Increase,
            _ => Growth::No,
        };
        Self {
            series: series.to_owned(),
            by: by.split(',').map(|label| label.trim().to_owned()).collect(),
            quantile: quantile.map(|quantile| quantile.parse().unwrap()),
            growth,
            legend: legend.to_owned(),
        }
    }

    /// Returns the points of each line.
    pub(crate) fn evaluate(&self, scrapes: &[Scrape]) -> Lines {
        let mut lines = Lines::new();
        for window in scrapes.windows(WINDOW + 1) {
            let (first, last) = (&window[0], &window[WINDOW]);
            let mut groups: BTreeMap<Labels, f64> = BTreeMap::new();
            for ((_, labels), value) in last.samples.iter().filter(|((name, _), _)| *name == self.series) {
                let before = first.samples.get(&(self.series.clone(), labels.clone()));
                let value = match (&self.growth, before) {
                    (Growth::No, _) => *value,
                    (Growth::Increase, Some(before)) => value - before,
                    (Growth::PerSecond, Some(before)) => {
                        (value - before) / (last.at - first.at).as_secs_f64()
                    }
                    // As in Prometheus: a growth needs two values.
                    (_, None) => continue,
                };
                let group = labels.iter().filter(|(label, _)| self.by.contains(label));
                *groups
                    .entry(group.map(|(label, value)| (label.clone(), value.clone())).collect())
                    .or_default() += value;
            }
            for (labels, value) in self.quantiles(groups) {
                let label = |legend: String, (name, value): (&String, &String)| {
                    legend.replace(&format!("{{{{{name}}}}}"), value)
                };
                lines
                    .entry(labels.iter().fold(self.legend.clone(), label))
                    .or_default()
                    .push((last.at, value));
            }
        }
        lines
    }

    /// Replaces the buckets of each histogram by its quantile; a histogram that has not grown has none.
    fn quantiles(&self, groups: BTreeMap<Labels, f64>) -> BTreeMap<Labels, f64> {
        let Some(quantile) = self.quantile else { return groups };
        let mut histograms: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
        for (mut labels, count) in groups {
            let bound = labels.remove("le").unwrap().replace("+Inf", "inf").parse().unwrap();
            histograms.entry(labels).or_default().push((bound, count));
        }
        let quantiles = histograms.into_iter().filter_map(|(labels, mut buckets)| {
            buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
            Some((labels, of_buckets(&buckets, quantile)?))
        });
        quantiles.collect()
    }
}

/// Interpolates within a bucket, as Prometheus does.
fn of_buckets(buckets: &[(f64, f64)], quantile: f64) -> Option<f64> {
    let rank = quantile * buckets.last().map(|last| last.1).filter(|total| *total > 0.0)?;
    let (mut from, mut below) = (0.0, 0.0);
    for (bound, count) in buckets {
        if *count >= rank {
            let share = if *count > below { (rank - below) / (count - below) } else { 1.0 };
            // What is beyond the last bound is shown as that bound.
            return Some(if bound.is_finite() { from + (bound - from) * share } else { from });
        }
        (from, below) = (*bound, *count);
    }
    None
}
