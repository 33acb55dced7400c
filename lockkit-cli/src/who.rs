//! `lockkit who`: shows who holds a lock, and who waits for it.

use std::{
    fmt::Write as _,
    io::Write as _,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockkit::{
    LockName, Metadata,
    backend::{Contender, Inspection},
};
use serde_json::{Value, json};

use crate::{args::WhoArguments, connection::Connection, exit::Failure, store::Store};

/// Prints the answer on stdout.
pub(crate) async fn who(arguments: WhoArguments) -> Result<u8, Failure> {
    let name = LockName::new(&arguments.name)?;
    let store = Store::from(&arguments.store)?;
    let client = Connection::to(&store, None, None)?.open().await?;
    let found = client.inspect(name.as_str()).await;
    let _ = client.close().await;
    let found = found?;
    let answer = if arguments.json { as_json(&name, &found).to_string() } else { as_text(&name, &found) };
    writeln!(std::io::stdout(), "{}", answer.trim_end())
        .map_err(|cause| Failure::system("write the answer", cause))?;
    Ok(0)
}

/// One line for the holder, one for each waiter.
fn as_text(name: &LockName, found: &Inspection) -> String {
    let mut text = match &found.holder {
        Some(holder) => format!("{:?} is held by {}\n", name.as_str(), describe(holder)),
        None => format!("{:?} is free\n", name.as_str()),
    };
    for (place, waiter) in found.waiters.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}. waits: {}", place + 1, describe(waiter));
    }
    text
}

fn as_json(name: &LockName, found: &Inspection) -> Value {
    json!({
        "name": name.as_str(),
        "holder": found.holder.as_ref().map(contender_as_json),
        "waiters": found.waiters.iter().map(contender_as_json).collect::<Vec<_>>(),
    })
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
    })
}

/// Describes a contender, safe to print: text that others have stored is escaped.
pub(crate) fn describe(contender: &Contender) -> String {
    let Some(metadata) = &contender.metadata else {
        return format!("another program (entry {:?})", contender.entry);
    };
    let mut text = format!("host {}, pid {}", metadata.host.escape_debug(), metadata.pid);
    if let Some(label) = &metadata.label {
        text += &format!(", label {label:?}");
    }
    if let Some(since) = since(metadata) {
        let for_seconds = since.elapsed().unwrap_or_default().as_secs();
        let ago = humantime::format_duration(Duration::from_secs(for_seconds));
        text += &format!(", since {} ({ago})", rfc3339(since));
    }
    if let Some(token) = contender.token {
        text += &format!(", token {token}");
    }
    text
}

/// Returns when the claim was made; none for a moment beyond the calendar.
fn since(metadata: &Metadata) -> Option<SystemTime> {
    /// The end of the year 9999, beyond which RFC 3339 has no dates.
    const END_MS: u64 = 253_402_300_800_000;
    (metadata.since_ms < END_MS).then(|| UNIX_EPOCH + Duration::from_millis(metadata.since_ms))
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
            let text = describe(&contender("\u{1b}]0;owned\u{7}\nline", since_ms));
            assert!(!text.contains(char::is_control), "{text:?}");
            assert!(text.contains("pid 7") && text.contains("token 42"));
        }
    }

    #[test]
    fn json_has_holder_and_queue() {
        let found = Inspection::new(Some(contender("nightly", 1_000)), vec![Contender::new("k", None, None)]);
        let value = as_json(&LockName::new("a b").unwrap(), &found);
        assert_eq!(value["name"], "a b");
        assert_eq!(value["holder"]["label"], "nightly");
        assert_eq!(value["holder"]["since"], "1970-01-01T00:00:01Z");
        assert_eq!(value["holder"]["token"], 42);
        assert_eq!(value["waiters"][0]["pid"], Value::Null);
        assert_eq!(as_json(&LockName::new("a").unwrap(), &Inspection::default())["holder"], Value::Null);
    }
}
