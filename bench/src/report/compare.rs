//! Ratios of rows that ran in the same round.

use std::fmt;

use super::{BackendReport, Kind, Row};

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
    /// Returns nothing for no values.
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        Some(Self { median: *values.get(values.len() / 2)?, min: *values.first()?, max: *values.last()? })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", number(self.median))?;
        if self.min < self.max {
            write!(f, " [{}-{}]", number(self.min), number(self.max))?;
        }
        Ok(())
    }
}

/// A number with about three digits.
pub(super) fn number(value: f64) -> String {
    let digits = match value.abs() {
        large if large >= 100.0 => 0,
        middle if middle >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

impl Row {
    /// Compares this row with another one, round by round.
    pub fn ratio(&self, reference: &Self) -> Option<Spread> {
        let by = self.workload.compared_by();
        let pairs = self.runs.iter().zip(&reference.runs);
        Spread::of(pairs.filter_map(|(run, reference)| {
            Some(run.as_ref()?.compared(by)? / reference.as_ref()?.compared(by)?)
        }))
    }
}

impl BackendReport {
    /// Returns the bare requests that a row is compared with.
    pub(super) fn raw_for(&self, row: &Row) -> Option<&Row> {
        self.in_turn_with(row).find(|other| other.kind == Kind::Raw)
    }

    /// Returns the best peer that a row is compared with.
    pub(super) fn best_peer_for(&self, row: &Row) -> Option<&Row> {
        let by = row.workload.compared_by();
        let value = |peer: &Row| peer.median(|run| run.compared(by));
        let more_is_better = by == crate::workload::ComparedBy::Rate;
        let peers = self.in_turn_with(row).filter(|other| other.kind == Kind::Peer && value(other).is_some());
        peers.max_by(|one, other| {
            let order = value(one).unwrap_or(f64::NAN).total_cmp(&value(other).unwrap_or(f64::NAN));
            if more_is_better { order } else { order.reverse() }
        })
    }

    /// The rows that took turns with this one.
    fn in_turn_with(&self, row: &Row) -> impl Iterator<Item = &Row> {
        let (workload, size) = (row.workload, row.size);
        self.rows.iter().filter(move |other| other.workload == workload && other.size == size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_shows_median_minimum_and_maximum() {
        let spread = Spread::of([3.0, 1.0, 2.0].into_iter()).unwrap();
        assert_eq!(spread.to_string(), "2.00 [1.00-3.00]");
        assert_eq!(Spread::of([1000.4].into_iter()).unwrap().to_string(), "1000");
        assert!(Spread::of([].into_iter()).is_none());
    }

    #[test]
    fn numbers_have_about_three_digits() {
        assert_eq!([0.123, 12.34, 123.4, -44.56].map(number), ["0.12", "12.3", "123", "-44.6"]);
    }
}
