//! Holders and waiters, as text and as JSON.

use std::{
    fmt::Write as _,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockkit::{
    LockName, Metadata,
    backend::{Contender, Inspection},
};
use serde_json::{Value, json};

use crate::exit::printable;

/// Describes a contender, safe to print: text that others have stored is escaped.
pub(crate) fn describe(contender: &Contender) -> String {
    let mut text = match &contender.metadata {
        Some(metadata) => describe_metadata(metadata),
        None => format!("another program (entry {:?})", contender.entry),
    };
    if let Some(data) = &contender.data {
        text += &format!(", data {data:?}");
    }
    if let Some(token) = contender.token {
        text += &format!(", token {token}");
    }
    if let Some(session) = &contender.session {
        text += &format!(", session {}", printable(session));
    }
    text
}

fn describe_metadata(metadata: &Metadata) -> String {
    let mut text = format!("host {}, pid {}", metadata.host.escape_debug(), metadata.pid);
    if let Some(label) = &metadata.label {
        text += &format!(", label {label:?}");
    }
    if let Some(since) = since(metadata) {
        let ago = seconds(since.elapsed().unwrap_or_default());
        text += &format!(", since {} ({ago})", rfc3339(since));
    }
    text
}

/// Describes the holder and the lifetime of its entry; `None` if nobody holds the lock.
pub(crate) fn describe_holder(found: &Inspection) -> Option<String> {
    let holder = found.holder.as_ref()?;
    let mut text = describe(holder);
    if let Some(remaining) = holder.remaining {
        text += &format!("; expires in {} unless renewed", seconds(remaining));
    }
    Some(text)
}

/// Describes the holder in a message about a lock that was not acquired.
pub(crate) fn held_by(found: &Inspection) -> String {
    match &found.holder {
        Some(holder) => format!("held by {}", describe(holder)),
        None => "its holder is unknown, or has just released it".into(),
    }
}

/// Returns the holder and the waiters of a lock as JSON.
pub(crate) fn as_json(name: &LockName, found: &Inspection) -> Value {
    json!({
        "name": name.as_str(),
        "holder": found.holder.as_ref().map(contender_as_json),
        "waiters": found.waiters.iter().map(contender_as_json).collect::<Vec<_>>(),
    })
}

/// Returns JSON in one line, safe to print. `serde_json` escapes control characters up to U+001F only. For readers of
/// JSON, a text with escapes is the same text.
pub(crate) fn printable_json(value: &Value) -> String {
    let mut line = String::new();
    for letter in value.to_string().chars() {
        if letter.is_control() {
            // Writing to a string cannot fail.
            let _ = write!(line, "\\u{:04x}", u32::from(letter));
        } else {
            line.push(letter);
        }
    }
    line
}

fn contender_as_json(contender: &Contender) -> Value {
    let metadata = contender.metadata.as_ref();
    json!({
        "entry": contender.entry,
        "token": contender.token.map(|token| token.get()),
        "host": metadata.map(|metadata| &metadata.host),
        "pid": metadata.map(|metadata| metadata.pid),
        "label": metadata.and_then(|metadata| metadata.label.as_ref()),
        "since": metadata.and_then(since).map(rfc3339),
        "session": contender.session,
        "remaining_ms": contender.remaining.map(|remaining| u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX)),
        "data": contender.data,
    })
}

/// Whether a contender is of the same process as these metadata.
pub(crate) fn is_of(contender: &Contender, own: &Metadata) -> bool {
    contender.metadata.as_ref().is_some_and(|metadata| (&metadata.host, metadata.pid) == (&own.host, own.pid))
}

/// What distinguishes two inspections: who holds and who waits, not how long they still may.
pub(crate) fn identity(found: &Inspection) -> Vec<(&str, Option<u64>, Option<&Metadata>)> {
    let of = |contender: &'_ Contender| contender.token.map(|token| token.get());
    let holder = found.holder.iter().map(|holder| (&*holder.entry, of(holder), holder.metadata.as_ref()));
    let waiters = found.waiters.iter().map(|waiter| (&*waiter.entry, None, waiter.metadata.as_ref()));
    holder.chain(waiters).collect()
}

/// Returns when the claim was made; none for a moment beyond the calendar.
pub(crate) fn since(metadata: &Metadata) -> Option<SystemTime> {
    /// The end of the year 9999, beyond which RFC 3339 has no dates.
    const END_MS: u64 = 253_402_300_800_000;
    (metadata.since_ms < END_MS).then(|| UNIX_EPOCH + Duration::from_millis(metadata.since_ms))
}

/// Returns a duration in whole seconds.
pub(crate) fn seconds(duration: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(Duration::from_secs(duration.as_secs()))
}

fn rfc3339(moment: SystemTime) -> String {
    humantime::format_rfc3339_seconds(moment).to_string()
}

#[cfg(test)]
mod tests {
    use lockkit::FencingToken;

    use super::*;

    fn contender(label: &str, since_ms: u64) -> Contender {
        let mut metadata = Metadata::of_this_process(Some(label));
        (metadata.host, metadata.pid, metadata.since_ms) = ("web\u{1b}[2J".into(), 7, since_ms);
        Contender::new("k", Some(FencingToken::new(42)), Some(metadata))
    }

    #[test]
    fn stored_text_cannot_control_the_terminal() {
        for since_ms in [0, u64::MAX] {
            let stored =
                contender("\u{1b}]0;owned\u{7}\nline", since_ms).with_session("\u{1b}7").with_data("\n\u{7}");
            let text = describe(&stored);
            assert!(!text.contains(char::is_control), "{text:?}");
            assert!(text.contains("pid 7") && text.contains("token 42"));
        }
    }

    #[test]
    fn json_has_holder_and_queue() {
        let holder = contender("nightly", 1_000).with_remaining(Duration::from_secs(3)).with_session("5f");
        let found = Inspection::new(Some(holder), vec![Contender::new("k", None, None).with_data("x")]);
        let value = as_json(&LockName::new("a b").unwrap(), &found);
        assert_eq!(value["name"], "a b");
        assert_eq!(value["holder"]["label"], "nightly");
        assert_eq!(value["holder"]["since"], "1970-01-01T00:00:01Z");
        assert_eq!(value["holder"]["token"], 42);
        assert_eq!(
            (&value["holder"]["remaining_ms"], &value["holder"]["session"]),
            (&3000.into(), &"5f".into())
        );
        assert_eq!((&value["waiters"][0]["pid"], &value["waiters"][0]["data"]), (&Value::Null, &"x".into()));
        assert_eq!(as_json(&LockName::new("a").unwrap(), &Inspection::default())["holder"], Value::Null);
    }

    #[test]
    fn json_cannot_control_the_terminal_and_has_the_same_text() {
        let (name, label) = ("a\u{85}", "x\n\u{7f}\u{9b}2J");
        let found = Inspection::new(Some(contender(label, 1)), Vec::new());
        let line = printable_json(&as_json(&LockName::new(name).unwrap(), &found));
        assert!(!line.contains(char::is_control), "{line:?}");
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&value["name"], &value["holder"]["label"]), (&name.into(), &label.into()));
    }

    #[test]
    fn the_remaining_lifetime_is_no_change() {
        let found =
            |remaining| Inspection::new(Some(contender("x", 1).with_remaining(remaining)), Vec::new());
        let (early, late) = (found(Duration::from_secs(3)), found(Duration::from_secs(1)));
        assert_eq!(identity(&early), identity(&late));
        let next = Inspection::new(Some(contender("y", 1)), Vec::new());
        assert_ne!(identity(&early), identity(&next));
    }

    #[test]
    fn another_token_and_another_waiter_are_changes() {
        let found = |token, waiters: &[&str]| {
            let holder = Contender::new("k", Some(FencingToken::new(token)), None);
            let waiters = waiters.iter().map(|entry| Contender::new(*entry, None, None));
            Inspection::new(Some(holder), waiters.collect())
        };
        let before = found(7, &["a"]);
        assert_eq!(identity(&before), identity(&found(7, &["a"])));
        for after in [found(8, &["a"]), found(7, &[]), found(7, &["b"]), found(7, &["a", "b"])] {
            assert_ne!(identity(&before), identity(&after), "{after:?}");
        }
    }

    #[test]
    fn moment_beyond_the_calendar_is_not_shown() {
        let since = |since_ms| contender_as_json(&contender("x", since_ms))["since"].clone();
        assert_eq!(since(253_402_300_799_999), "9999-12-31T23:59:59Z");
        assert_eq!(since(253_402_300_800_000), Value::Null);
    }

    #[test]
    fn lifetime_of_the_holder_is_shown() {
        let holder = Contender::new("k", None, None).with_remaining(Duration::from_millis(3_900));
        let text = describe_holder(&Inspection::new(Some(holder), Vec::new())).unwrap();
        assert_eq!(text, "another program (entry \"k\"); expires in 3s unless renewed");
        assert_eq!(describe_holder(&Inspection::default()), None);
    }
}
