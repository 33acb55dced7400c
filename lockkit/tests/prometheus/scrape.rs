//! What Prometheus would read: the text format, as far as the exporter writes it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// One scrape.
#[derive(Clone, Debug)]
pub(crate) struct Scrape {
    /// Since the start.
    pub(crate) at: Duration,
    /// The names of lockkit's metrics.
    pub(crate) metrics: BTreeSet<String>,
    /// Values by name and labels.
    pub(crate) samples: BTreeMap<(String, Labels), f64>,
}

pub(crate) type Labels = BTreeMap<String, String>;

impl Scrape {
    /// Parses a response. Names and values of lockkit's labels contain no quotes, commas or spaces.
    pub(crate) fn parse(at: Duration, text: &str) -> Self {
        let mut samples = BTreeMap::new();
        for line in text.lines().filter(|line| line.starts_with("lockkit_")) {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let labels = labels.trim_end_matches('}').split(',').filter_map(|label| label.split_once('='));
            let labels = labels.map(|(label, value)| (label.to_owned(), value.trim_matches('"').to_owned()));
            samples.insert((name.to_owned(), labels.collect()), value.parse().unwrap());
        }
        let metrics = text.lines().filter_map(|line| line.strip_prefix("# TYPE lockkit_"));
        let metrics = metrics.filter_map(|rest| Some(format!("lockkit_{}", rest.split(' ').next()?)));
        Self { at, metrics: metrics.collect(), samples }
    }
}

/// Returns the name of the metric that a series belongs to.
pub(crate) fn metric_of(series: &str) -> &str {
    let suffixes = ["_bucket", "_count", "_sum"];
    suffixes.iter().find_map(|suffix| series.strip_suffix(suffix)).unwrap_or(series)
}
