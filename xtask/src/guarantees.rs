//! `cargo xtask guarantees`: writes the results of the conformance suite as tables between markers in
//! `docs/guarantees.md`, `docs/cases.md` and the README.
//!
//! The tables contain no times and nothing random, so they change only with the suite and the backends.
//! `conformance/tests/tables.rs` fails when they are older than the suite.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::{backends::BACKENDS, project::Project};

/// What the suite tests, in the order of the table: the property and its sentence.
const PROMISES: [(&str, &str); 20] = [
    ("TimedExclusion", "two guards of one name are never both held"),
    ("FencedExclusion", "the token orders writes, whatever clocks and pauses do"),
    ("TokenOrder", "tokens are distinct, and rise in the order of the grants"),
    ("BoundedTakeover", "a dead holder delays the next waiter for a bounded time"),
    ("NoLostWakeUp", "no wake-up is lost"),
    ("NoOrphan", "an attempt without a grant leaves nothing"),
    ("NoForeignRelease", "a release touches its own hold only"),
    ("NoLateRenewal", "nothing renews a hold after its end"),
    ("Reentry", "re-entry by owner: n guards need n releases"),
    ("Fifo", "first come, first served"),
    ("BoundedLoss", "a loss is noticed in a bounded time"),
    ("TruthfulErrors", "errors are true: an unknown outcome is never reported as busy or granted"),
    ("NoResidue", "nothing is left behind"),
    ("Isolation", "a fault of one lock ends no other"),
    ("SeenLeader", "observers see who leads and what it proposes, and nothing older after something newer"),
    ("OncePerPeriod", "work runs at most once per period"),
    ("MinimumHold", "a hold lasts at least as long as it was asked to, whatever becomes of its holder"),
    ("SeenHolder", "operators see who holds a lock and who waits for it, and find every lock that is used"),
    ("PreciseBreak", "a break ends the hold that it names and no other, and hands the lock over"),
    ("Security", "names are independent, foreign data harmless, secrets kept"),
];

const BEGIN: &str = "<!-- written by `cargo xtask guarantees`: begin -->\n";
const END: &str = "<!-- end -->\n";

/// The last run of the suite on one backend.
#[derive(Debug, Deserialize)]
struct SuiteRun {
    #[serde(skip)]
    backend: &'static str,
    claims: BTreeMap<String, String>,
    cases: BTreeMap<String, CaseRecord>,
}

#[derive(Debug, Deserialize)]
struct CaseRecord {
    properties: Vec<String>,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "outcome", content = "reason", rename_all = "lowercase")]
enum Outcome {
    Passed,
    Ignored(String),
    Failed(String),
}

/// Reads the reports of all backends and writes the tables.
pub(crate) fn run(project: &Project) -> Result<()> {
    let runs = BACKENDS.iter().map(|backend| read(project, backend.name)).collect::<Result<Vec<_>>>()?;
    // The memory backend, which is the first, has no cases of its own: its cases are the suite.
    let suite: Vec<&String> = runs[0].cases.keys().collect();
    for (file, table) in [
        ("docs/guarantees.md", promises(&runs, &suite)),
        ("docs/cases.md", cases(&runs, &suite)),
        ("README.md", backends(&runs, &suite)),
    ] {
        let path = project.root().join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {file}"))?;
        let text = between_markers(&text, &table).with_context(|| format!("{file} has no markers"))?;
        fs::write(&path, text)?;
        println!("{file}: {} cases, {} backends", suite.len(), runs.len());
    }
    Ok(())
}

fn read(project: &Project, backend: &'static str) -> Result<SuiteRun> {
    let path = project.root().join(format!("target/conformance/{backend}.json"));
    let text = fs::read_to_string(&path)
        .with_context(|| format!("{}: `cargo xtask conformance {backend}` writes it", path.display()))?;
    parse(backend, &text).with_context(|| path.display().to_string())
}

fn parse(backend: &'static str, report: &str) -> Result<SuiteRun> {
    let run: SuiteRun = serde_json::from_str(report).context("run the suite again")?;
    for (name, record) in &run.cases {
        if let Outcome::Failed(reason) = &record.outcome {
            bail!("{name} failed: {reason}");
        }
    }
    Ok(SuiteRun { backend, ..run })
}

impl CaseRecord {
    /// Why it was ignored; `None` if it passed.
    fn ignored(&self) -> Option<&String> {
        match &self.outcome {
            Outcome::Ignored(reason) => Some(reason),
            _ => None,
        }
    }
}

/// Promise x backend: how many cases passed and were ignored.
fn promises(runs: &[SuiteRun], suite: &[&String]) -> String {
    let mut table = heading(&["promise", "what it says", "cases"], runs);
    for (promise, says) in PROMISES {
        let proves = |record: &CaseRecord| record.properties.iter().any(|property| property == promise);
        let of_promise: Vec<&String> =
            suite.iter().copied().filter(|case| runs[0].cases.get(*case).is_some_and(proves)).collect();
        let _ = write!(table, "| {promise} | {says} | {} |", of_promise.len());
        for run in runs {
            let (passed, ignored) = counts(run, &of_promise);
            let _ = write!(table, " {passed} passed, {ignored} ignored |");
        }
        table.push('\n');
    }
    table
}

/// Case x backend, followed by the reasons of ignored cases.
fn cases(runs: &[SuiteRun], suite: &[&String]) -> String {
    let records = runs.iter().flat_map(|run| suite.iter().filter_map(|case| run.cases.get(*case)));
    let reasons: BTreeSet<&String> = records.filter_map(CaseRecord::ignored).collect();
    let reasons: Vec<&String> = reasons.into_iter().collect();
    let mut table = heading(&["case", "proves"], runs);
    for case in suite {
        let proves = runs[0].cases.get(*case).map(|record| record.properties.join(" ")).unwrap_or_default();
        let _ = write!(table, "| `{case}` | {proves} |");
        for run in runs {
            let outcome = match run.cases.get(*case).map(CaseRecord::ignored) {
                None => "not run".to_owned(),
                Some(None) => "passed".to_owned(),
                Some(Some(reason)) => {
                    let number = reasons.iter().position(|known| *known == reason).unwrap_or_default() + 1;
                    format!("ignored ({number})")
                }
            };
            let _ = write!(table, " {outcome} |");
        }
        table.push('\n');
    }
    table.push_str("\nIgnored, because:\n\n");
    for (number, reason) in reasons.iter().enumerate() {
        let _ = writeln!(table, "{}. {reason}", number + 1);
    }
    table
}

/// Backend x claims, and the counts of the suite.
fn backends(runs: &[SuiteRun], suite: &[&String]) -> String {
    const CLAIMS: [&str; 5] = ["queue", "lifetime", "loss", "token", "failover"];
    let mut table =
        format!("| backend | {} | conformance |\n|{}\n", CLAIMS.join(" | "), "---|".repeat(CLAIMS.len() + 2));
    for run in runs {
        let _ = write!(table, "| {} |", run.backend);
        for claim in CLAIMS {
            let _ = write!(table, " {} |", run.claims.get(claim).map_or("", String::as_str));
        }
        let (passed, ignored) = counts(run, suite);
        let own = run.cases.len() - (passed + ignored);
        let own = if own == 0 { String::new() } else { format!("; and {own} of its own") };
        let _ = writeln!(table, " {passed} passed, 0 failed, {ignored} ignored{own} |");
    }
    table
}

fn counts(run: &SuiteRun, cases: &[&String]) -> (usize, usize) {
    let records: Vec<&CaseRecord> = cases.iter().filter_map(|case| run.cases.get(*case)).collect();
    let ignored = records.iter().filter(|record| record.ignored().is_some()).count();
    (records.len() - ignored, ignored)
}

fn heading(columns: &[&str], runs: &[SuiteRun]) -> String {
    let columns: Vec<&str> = columns.iter().copied().chain(runs.iter().map(|run| run.backend)).collect();
    format!("| {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len()))
}

fn between_markers(text: &str, table: &str) -> Result<String> {
    let (before, rest) = text.split_once(BEGIN).context("no begin")?;
    let (_, after) = rest.split_once(END).context("no end")?;
    ensure!(!after.contains(BEGIN), "more than one");
    Ok(format!("{before}{BEGIN}{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_of(backend: &'static str, outcomes: &[(&str, &str, Option<&str>)]) -> SuiteRun {
        let cases = outcomes.iter().map(|(case, property, ignored)| {
            let outcome = match ignored {
                None => serde_json::json!({ "properties": [property], "outcome": "passed" }),
                Some(why) => {
                    serde_json::json!({ "properties": [property], "outcome": "ignored", "reason": why })
                }
            };
            ((*case).to_owned(), outcome)
        });
        let cases: serde_json::Map<String, serde_json::Value> = cases.collect();
        let report = serde_json::json!({ "claims": { "queue": "Fifo" }, "cases": cases });
        parse(backend, &report.to_string()).unwrap()
    }

    #[test]
    fn tables_count_what_passed_and_name_the_reasons() {
        let runs = [
            run_of("one", &[("a_b_c", "TimedExclusion", None), ("d_e_f", "TimedExclusion", Some("why"))]),
            run_of(
                "two",
                &[
                    ("a_b_c", "TimedExclusion", Some("because")),
                    ("d_e_f", "TimedExclusion", None),
                    ("own_own_own", "FencedExclusion", None),
                ],
            ),
        ];
        let suite: Vec<&String> = runs[0].cases.keys().collect();
        let promises = promises(&runs, &suite);
        assert!(promises.contains("held | 2 | 1 passed, 1 ignored | 1 passed, 1 ignored |"), "{promises}");
        let cases = cases(&runs, &suite);
        assert!(
            cases
                .contains("| `a_b_c` | TimedExclusion | passed | ignored (1) |\n| `d_e_f` | TimedExclusion | ignored (2) | passed |"),
            "{cases}"
        );
        assert!(cases.ends_with("1. because\n2. why\n"), "{cases}");
        let backends = backends(&runs, &suite);
        assert!(
            backends.contains("| two | Fifo |  |  |  |  | 1 passed, 0 failed, 1 ignored; and 1 of its own |"),
            "{backends}"
        );
    }

    #[test]
    fn failed_case_is_an_error() {
        let failed =
            serde_json::json!({ "properties": ["TimedExclusion"], "outcome": "failed", "reason": "x" });
        let report = serde_json::json!({ "claims": {}, "cases": { "a_b_c": failed } });
        assert!(parse("one", &report.to_string()).unwrap_err().to_string().contains("a_b_c failed"));
    }

    #[test]
    fn only_text_between_the_markers_is_replaced() {
        let text = format!("a\n{BEGIN}old\n{END}b\n");
        assert_eq!(between_markers(&text, "new\n").unwrap(), format!("a\n{BEGIN}new\n{END}b\n"));
        assert!(between_markers("a\n", "new\n").is_err());
    }
}
