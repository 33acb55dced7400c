//! `cargo xtask guarantees`: what the conformance suite has shown of each backend, as tables between markers in
//! `docs/guarantees.md`, `docs/cases.md` and the README.
//!
//! The tables hold no times and nothing that chance decides, so they change with the suite and the backends only;
//! `conformance/tests/tables.rs` fails when they have fallen behind the suite.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{conformance, project::Project};

/// What the suite proves, in the order of the table.
const PROMISES: [(&str, &str); 15] = [
    ("P1", "two guards of one name are never both held"),
    ("P2", "the token orders writes, whatever clocks and pauses do"),
    ("P3", "tokens are distinct, and rise in the order of the grants"),
    ("P4", "a dead holder delays the next waiter for a bounded time"),
    ("P5", "no wake-up is lost"),
    ("P6", "an attempt without a grant leaves nothing"),
    ("P7", "a release touches its own hold only"),
    ("P8", "nothing renews a hold after its end"),
    ("P9", "re-entry by owner: n guards need n releases"),
    ("P10", "first come, first served"),
    ("P11", "a loss is noticed in a bounded time"),
    ("P12", "errors are true: unknown is never told as busy or granted"),
    ("P13", "nothing is left behind"),
    ("P14", "a fault of one lock ends no other"),
    ("Security", "names are independent, foreign data harmless, secrets kept"),
];

const BEGIN: &str = "<!-- written by `cargo xtask guarantees`: begin -->\n";
const END: &str = "<!-- end -->\n";

/// The last run of the suite on one backend.
#[derive(Debug)]
struct Run {
    backend: &'static str,
    claims: BTreeMap<String, String>,
    cases: BTreeMap<String, Outcome>,
}

#[derive(Clone, Debug)]
struct Outcome {
    properties: Vec<String>,
    /// Why it was ignored; `None` when it passed.
    ignored: Option<String>,
}

/// Reads the reports of all backends and writes the tables.
pub(crate) fn run(project: &Project) -> Result<()> {
    let runs = conformance::backends()
        .into_iter()
        .map(|(backend, ..)| read(project, backend))
        .collect::<Result<Vec<_>>>()?;
    // The memory backend has no cases of its own: what it was tried with is the suite.
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

fn read(project: &Project, backend: &'static str) -> Result<Run> {
    let path = project.root().join(format!("target/conformance/{backend}.json"));
    let text = fs::read_to_string(&path)
        .with_context(|| format!("{}: `cargo xtask conformance {backend}` writes it", path.display()))?;
    parse(backend, &serde_json::from_str(&text)?).with_context(|| path.display().to_string())
}

fn parse(backend: &'static str, report: &Value) -> Result<Run> {
    let text = |value: &Value| value.as_str().map(str::to_owned).context("a text is missing");
    let object =
        |key: &str| report[key].as_object().with_context(|| format!("no {key}: run the suite again"));
    let mut cases = BTreeMap::new();
    for (name, record) in object("cases")? {
        let properties = record["properties"].as_array().context("no properties")?;
        let properties = properties.iter().map(text).collect::<Result<_>>()?;
        let ignored = match record["outcome"].as_str() {
            Some("passed") => None,
            Some("ignored") => Some(text(&record["reason"])?),
            _ => bail!("{name} failed"),
        };
        cases.insert(name.clone(), Outcome { properties, ignored });
    }
    let claims = object("claims")?.iter().map(|(key, claim)| Ok((key.clone(), text(claim)?)));
    Ok(Run { backend, claims: claims.collect::<Result<_>>()?, cases })
}

/// Promise x backend: how many cases passed and were ignored.
fn promises(runs: &[Run], suite: &[&String]) -> String {
    let mut table = heading(&["promise", "what it says", "cases"], runs);
    for (promise, says) in PROMISES {
        let proves = |outcome: &Outcome| outcome.properties.iter().any(|property| property == promise);
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

/// Case x backend, with the reasons of those that were ignored below.
fn cases(runs: &[Run], suite: &[&String]) -> String {
    let outcomes = || runs.iter().flat_map(|run| suite.iter().filter_map(|case| run.cases.get(*case)));
    let reasons: BTreeSet<&String> = outcomes().filter_map(|outcome| outcome.ignored.as_ref()).collect();
    let reasons: Vec<&String> = reasons.into_iter().collect();
    let mut table = heading(&["case", "proves"], runs);
    for case in suite {
        let proves = runs[0].cases.get(*case).map(|outcome| outcome.properties.join(" ")).unwrap_or_default();
        let _ = write!(table, "| `{case}` | {proves} |");
        for run in runs {
            let told = match run.cases.get(*case) {
                None => "not run".to_owned(),
                Some(Outcome { ignored: None, .. }) => "passed".to_owned(),
                Some(Outcome { ignored: Some(reason), .. }) => {
                    let number = reasons.iter().position(|known| *known == reason).unwrap_or_default() + 1;
                    format!("ignored ({number})")
                }
            };
            let _ = write!(table, " {told} |");
        }
        table.push('\n');
    }
    table.push_str("\nIgnored, because:\n\n");
    for (number, reason) in reasons.iter().enumerate() {
        let _ = writeln!(table, "{}. {reason}", number + 1);
    }
    table
}

/// Backend x claims, and what the suite says.
fn backends(runs: &[Run], suite: &[&String]) -> String {
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

fn counts(run: &Run, cases: &[&String]) -> (usize, usize) {
    let outcomes: Vec<&Outcome> = cases.iter().filter_map(|case| run.cases.get(*case)).collect();
    let ignored = outcomes.iter().filter(|outcome| outcome.ignored.is_some()).count();
    (outcomes.len() - ignored, ignored)
}

fn heading(columns: &[&str], runs: &[Run]) -> String {
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

    fn run_of(backend: &'static str, outcomes: &[(&str, &str, Option<&str>)]) -> Run {
        let cases = outcomes.iter().map(|(case, property, ignored)| {
            let outcome = match ignored {
                None => serde_json::json!({ "properties": [property], "outcome": "passed" }),
                Some(why) => {
                    serde_json::json!({ "properties": [property], "outcome": "ignored", "reason": why })
                }
            };
            ((*case).to_owned(), outcome)
        });
        let cases: serde_json::Map<String, Value> = cases.collect();
        parse(backend, &serde_json::json!({ "claims": { "queue": "Fifo" }, "cases": cases })).unwrap()
    }

    #[test]
    fn tables_count_what_passed_and_name_the_reasons() {
        let runs = [
            run_of("one", &[("a_b_c", "P1", None), ("d_e_f", "P1", Some("why"))]),
            run_of(
                "two",
                &[("a_b_c", "P1", Some("because")), ("d_e_f", "P1", None), ("own_own_own", "P2", None)],
            ),
        ];
        let suite: Vec<&String> = runs[0].cases.keys().collect();
        let promises = promises(&runs, &suite);
        assert!(promises.contains("held | 2 | 1 passed, 1 ignored | 1 passed, 1 ignored |"), "{promises}");
        let cases = cases(&runs, &suite);
        assert!(
            cases
                .contains("| `a_b_c` | P1 | passed | ignored (1) |\n| `d_e_f` | P1 | ignored (2) | passed |"),
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
    fn a_failed_case_is_no_guarantee() {
        let failed = serde_json::json!({ "properties": ["P1"], "outcome": "failed", "reason": "x" });
        let report = serde_json::json!({ "claims": {}, "cases": { "a_b_c": failed } });
        assert!(parse("one", &report).unwrap_err().to_string().contains("a_b_c failed"));
    }

    #[test]
    fn only_what_stands_between_the_markers_is_replaced() {
        let text = format!("a\n{BEGIN}old\n{END}b\n");
        assert_eq!(between_markers(&text, "new\n").unwrap(), format!("a\n{BEGIN}new\n{END}b\n"));
        assert!(between_markers("a\n", "new\n").is_err());
    }
}
