//! Times on the command line and in the configuration.

use std::time::Duration;

/// Parses seconds, such as `90` or `0.5`, or a time with units, such as `1m 30s`.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    match text.trim().parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => humantime::parse_duration(text).ok(),
    }
    .ok_or_else(|| "not a time, such as 90, 0.5 or 1m30s".into())
}

/// The least `--max-hold`: a shorter hold would often end before its job starts, and then be acquired again.
const MAX_HOLD_MIN: Duration = Duration::from_secs(1);

pub(crate) fn parse_max_hold(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    if time < MAX_HOLD_MIN { Err(format!("shorter than {MAX_HOLD_MIN:?}")) } else { Ok(time) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_units_are_times() {
        let times =
            [("0", 0), ("90", 90_000), ("0.5", 500), ("1m30s", 90_000), ("2 h", 7_200_000), ("250ms", 250)];
        for (text, milliseconds) in times {
            assert_eq!(parse_time(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "soon", "-1", "inf", "NaN", "1e300", "5 apples"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn hold_of_less_than_a_second_is_refused() {
        assert_eq!(parse_max_hold("1"), Ok(Duration::from_secs(1)));
        for text in ["0", "999ms", "soon"] {
            assert!(parse_max_hold(text).is_err(), "{text}");
        }
    }
}
