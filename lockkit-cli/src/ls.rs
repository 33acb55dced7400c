//! `lockkit ls`: lists the locks that are held or waited for.

use std::collections::HashSet;

use lockkit::{
    LockClient, LockName,
    backend::{Inspection, ListedLock},
};
use serde_json::{Value, json};

use crate::{
    args::LsArguments,
    configured_store::ConfiguredStore,
    describe::{as_json, describe, printable_json},
    exit::{Failure, print, printable},
    store::Store,
};

/// Most locks that are remembered as listed: a store may list one twice. Beyond that number it is printed twice.
const REMEMBERED_MAX: usize = 1_000_000;

/// Prints the locks page by page.
pub(crate) async fn ls(arguments: LsArguments) -> Result<u8, Failure> {
    let client = ConfiguredStore::to(&Store::from(&arguments.store)?, None, None)?.open().await?;
    let outcome = list(&client, &arguments, print).await;
    let _ = client.close().await;
    outcome.map(|()| 0)
}

async fn list(
    client: &LockClient,
    arguments: &LsArguments,
    mut print: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut listing = client.list(&arguments.prefix);
    let mut listed = Listed { entries: HashSet::new(), entries_max: REMEMBERED_MAX };
    while let Some(page) = listing.next_page().await? {
        for lock in page {
            if !listed.is_first(&lock.entry) {
                continue;
            }
            let found = match &lock.name {
                Some(name) if arguments.long => Some(client.inspect(name.as_str()).await?),
                _ => None,
            };
            print(&if arguments.json {
                json_line(&lock, found.as_ref())
            } else {
                text_line(&lock, found.as_ref())
            })?;
        }
    }
    Ok(())
}

/// The entries that were listed, up to a bound.
struct Listed {
    entries: HashSet<String>,
    entries_max: usize,
}

impl Listed {
    /// Whether the entry is not known as listed; it is known from now on.
    fn is_first(&mut self, entry: &str) -> bool {
        if self.entries.contains(entry) {
            return false;
        }
        if self.entries.len() < self.entries_max {
            self.entries.insert(entry.to_owned());
        }
        true
    }
}

fn json_line(lock: &ListedLock, found: Option<&Inspection>) -> String {
    let mut value = match (&lock.name, found) {
        (Some(name), Some(found)) => as_json(name, found),
        (name, _) => json!({ "name": name.as_ref().map(LockName::as_str) }),
    };
    if let Value::Object(fields) = &mut value {
        fields.insert("entry".into(), lock.entry.clone().into());
    }
    printable_json(&value)
}

fn text_line(lock: &ListedLock, found: Option<&Inspection>) -> String {
    let Some(name) = &lock.name else {
        return format!("(name unknown, entry {:?})", lock.entry);
    };
    let name = quoted(name.as_str());
    let Some(found) = found else { return name };
    let holder = match &found.holder {
        Some(holder) => format!("held by {}", describe(holder)),
        None => "free".into(),
    };
    match found.waiters.len() {
        0 => format!("{name}: {holder}"),
        waiters => format!("{name}: {holder}; waiting: {waiters}"),
    }
}

/// Returns a name as it is, or in quotes if it could be mistaken for something else.
fn quoted(name: &str) -> String {
    let is_plain =
        printable(name) == name && !name.contains(char::is_whitespace) && !name.starts_with(['"', '(']);
    if is_plain { name.into() } else { format!("{name:?}") }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use lockkit::{limits::LISTED_PER_PAGE, memory::MemoryServer};

    use super::*;
    use crate::args::{Action, Arguments};

    async fn lines(client: &LockClient, arguments: &[&str]) -> Vec<String> {
        let arguments = Arguments::try_parse_from([&["lockkit", "ls"], arguments].concat()).unwrap();
        let Action::Ls(arguments) = arguments.action else { panic!("not ls") };
        let mut lines = Vec::new();
        let keep = |line: &str| {
            lines.push(line.to_owned());
            Ok(())
        };
        list(client, &arguments, keep).await.unwrap();
        lines
    }

    #[tokio::test]
    async fn every_page_is_printed_with_its_holders() {
        let client = LockClient::builder(MemoryServer::new().backend()).label("x").build().await.unwrap();
        assert_eq!(lines(&client, &[]).await, Vec::<String>::new());
        let mut guards = Vec::new();
        for number in 0..=LISTED_PER_PAGE {
            guards.push(client.lock(format!("orders/{number}")).unwrap().acquire().await.unwrap());
        }
        guards.push(client.lock("odd\nname").unwrap().acquire().await.unwrap());
        assert_eq!(lines(&client, &["orders/"]).await.len(), LISTED_PER_PAGE + 1);
        assert_eq!(lines(&client, &["odd"]).await, ["\"odd\\nname\""]);

        let second = client.lock("orders/7").unwrap();
        let waiter = tokio::spawn(async move { second.acquire().await });
        while client.inspect("orders/7").await.unwrap().waiters.is_empty() {
            tokio::task::yield_now().await;
        }
        let long = lines(&client, &["-l", "orders/7"]).await;
        assert!(long[0].starts_with("orders/7: held by host") && long[0].contains("label \"x\""), "{long:?}");
        assert!(long[0].ends_with("; waiting: 1"), "{long:?}");
        let json = lines(&client, &["-l", "--json", "orders/7"]).await;
        let json: Value = serde_json::from_str(&json[0]).unwrap();
        assert_eq!((&json["name"], &json["holder"]["label"]), (&"orders/7".into(), &"x".into()));
        assert!(json["waiters"].as_array().unwrap().len() == 1 && json["entry"].is_string(), "{json}");
        waiter.abort();
    }

    #[test]
    fn entry_is_listed_once_while_it_is_remembered() {
        let mut listed = Listed { entries: HashSet::new(), entries_max: 2 };
        assert_eq!(
            ["a", "b", "a", "b", "c", "c"].map(|entry| listed.is_first(entry)),
            [true, true, false, false, true, true]
        );
        assert_eq!(listed.entries.len(), 2);
    }

    #[test]
    fn name_that_looks_like_something_else_is_in_quotes() {
        for name in ["a", "orders/1", "a(b)", "x\"y"] {
            assert_eq!(quoted(name), name);
        }
        for name in ["(name", "\"a\"", "a b", "a\u{7f}"] {
            assert_eq!(quoted(name), format!("{name:?}"));
        }
    }

    #[test]
    fn lock_without_a_name_is_shown_by_its_entry() {
        let lock = ListedLock::new(None, "abc\u{7}");
        assert_eq!(text_line(&lock, None), "(name unknown, entry \"abc\\u{7}\")");
        assert_eq!(json_line(&lock, None), r#"{"entry":"abc\u0007","name":null}"#);
    }
}
