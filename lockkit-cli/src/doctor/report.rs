//! What an examination has found.

use std::fmt::Write as _;

use lockkit::backend::{BackendUrl, Host};
use serde::Serialize;
use serde_json::json;

use super::health::Health;
use crate::exit::printable;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Fine,
    /// Worth knowing, and nothing to fix.
    Note,
    Warning,
    Fault,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Fault => "fault",
        }
    }
}

#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    level: Level,
    what: String,
    /// What to do; empty if there is nothing to do, or `what` says it.
    #[serde(rename = "do", skip_serializing_if = "str::is_empty")]
    remedy: &'static str,
}

/// All findings about a store.
#[derive(Debug)]
pub(super) struct Report {
    store: String,
    findings: Vec<Finding>,
    health: Option<Health>,
}

impl Report {
    pub(super) fn new(url: &BackendUrl) -> Self {
        Self { store: without_login(url), findings: Vec::new(), health: None }
    }

    pub(super) fn fine(&mut self, check: &'static str, what: impl Into<String>) {
        self.add(check, Level::Fine, what, "");
    }

    pub(super) fn add(
        &mut self,
        check: &'static str,
        level: Level,
        what: impl Into<String>,
        remedy: &'static str,
    ) {
        self.findings.push(Finding { check, level, what: printable(&what.into()), remedy });
    }

    pub(super) fn set_health(&mut self, health: Health) {
        self.health = Some(health);
    }

    /// Returns the exit status: 0 fine, 1 warnings, 2 faults.
    pub(super) fn status(&self) -> u8 {
        match self.worst() {
            Level::Fine | Level::Note => 0,
            Level::Warning => 1,
            Level::Fault => 2,
        }
    }

    fn worst(&self) -> Level {
        self.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Fine)
    }

    fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }

    /// One line per finding, and one for what to do.
    pub(super) fn as_text(&self) -> String {
        let mut text = format!("{}\n", self.store);
        for Finding { check, level, what, remedy } in &self.findings {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{:<8} {check}: {what}", level.word());
            if !remedy.is_empty() {
                let _ = writeln!(text, "         -> {remedy}");
            }
        }
        let (faults, warnings) = (self.count(Level::Fault), self.count(Level::Warning));
        let _ = write!(text, "faults: {faults}, warnings: {warnings}");
        text
    }

    pub(super) fn as_json(&self) -> String {
        let verdict = self.worst().max(Level::Note);
        let verdict = if verdict == Level::Note { Level::Fine } else { verdict };
        json!({
            "store": self.store, "verdict": verdict, "findings": self.findings, "health": self.health,
        })
        .to_string()
    }
}

/// Returns a URL without user, password and options.
fn without_login(url: &BackendUrl) -> String {
    let hosts: Vec<String> = url.hosts().iter().map(Host::to_string).collect();
    printable(&format!("{}://{}{}", url.scheme(), hosts.join(","), url.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_decides_and_secrets_are_left_out() {
        let url = BackendUrl::parse("etcd://me:hunter2@h1:1,h2/app?ttl=3s").unwrap();
        let mut report = Report::new(&url);
        report.fine("a", "one");
        report.add("b", Level::Note, "two", "");
        assert_eq!((report.status(), report.as_json().contains(r#""verdict":"fine""#)), (0, true));
        report.add("c", Level::Warning, "first\nsecond", "fix it");
        assert_eq!(report.status(), 1);
        report.add("d", Level::Fault, "four", "");
        assert_eq!(report.status(), 2);
        let text = "etcd://h1:1,h2/app\nfine     a: one\nnote     b: two\nwarning  c: first\\nsecond\n         -> fix it\n\
                    fault    d: four\nfaults: 1, warnings: 1";
        assert_eq!(report.as_text(), text);
        let json: serde_json::Value = serde_json::from_str(&report.as_json()).unwrap();
        assert_eq!((&json["verdict"], &json["findings"][2]["do"]), (&"fault".into(), &"fix it".into()));
    }
}
