//! The report of a run, as tables.

use std::{collections::BTreeSet, fmt::Write, time::Duration};

use super::{
    patch::{CLASSES, Patch},
    verdict::Verdict,
};

/// The outcome of one mutation.
#[derive(Debug)]
pub(super) struct Outcome<'a> {
    pub(super) patch: &'a Patch,
    pub(super) verdict: Verdict,
    pub(super) took: Duration,
    /// Why it had a separate build.
    pub(super) alone: Option<String>,
}

/// Returns a row per mutation, the counts, and lists of the mutations that were built alone and of those that failed no
/// test.
pub(super) fn of(outcomes: &[Outcome<'_>]) -> String {
    let mut text = "\n| mutation | removes | tests | verdict | s |\n|---|---|---|---|---|\n".to_owned();
    for Outcome { patch, verdict, took, .. } in outcomes {
        let tests = patch.red.iter().map(|test| format!("`{test}`")).collect::<Vec<_>>().join(", ");
        let seconds = took.as_secs_f64();
        let _ = writeln!(text, "| {} | {} | {tests} | {verdict} | {seconds:.1} |", patch.name, patch.removes);
    }
    text.push_str(&counts(outcomes));
    let mut list = |title: &str, rows: Vec<(&str, &str)>| {
        if !rows.is_empty() {
            let _ = writeln!(text, "\n{title}:");
            text.extend(rows.iter().map(|(name, reason)| format!("  {name}: {reason}\n")));
        }
    };
    let alone = outcomes.iter().filter_map(|one| Some((one.patch.name.as_str(), one.alone.as_deref()?)));
    list("built alone", alone.collect());
    let survivors = outcomes.iter().filter(|one| !one.verdict.is_red());
    let reason = |patch: &'_ Patch| patch.survives.clone().unwrap_or_else(|| "no reason is known".to_owned());
    let survivors: Vec<_> = survivors.map(|one| (one.patch.name.as_str(), reason(one.patch))).collect();
    list("not red", survivors.iter().map(|(name, reason)| (*name, reason.as_str())).collect());
    let red = outcomes.iter().filter(|one| one.verdict.is_red()).count();
    let _ = writeln!(text, "\nmutations: {red} red, {} not", outcomes.len() - red);
    text
}

/// Returns the counts of red mutations and of all, by package and class.
fn counts(outcomes: &[Outcome<'_>]) -> String {
    let mut text =
        format!("\n| red of | {} | all |\n|---|{}---|\n", CLASSES.join(" | "), "---|".repeat(CLASSES.len()));
    let packages: BTreeSet<&str> = outcomes.iter().map(|one| one.patch.package.as_str()).collect();
    for package in packages.iter().map(Some).chain([None]) {
        let _ = write!(text, "| {} |", package.unwrap_or(&"all"));
        for class in CLASSES.iter().map(Some).chain([None]) {
            let counted = outcomes.iter().filter(|one| {
                package.is_none_or(|package| one.patch.package == *package)
                    && class.is_none_or(|class| one.patch.class == *class)
            });
            let (red, all) =
                counted.fold((0, 0), |(red, all), one| (red + usize::from(one.verdict.is_red()), all + 1));
            let _ = if all == 0 { write!(text, " |") } else { write!(text, " {red} of {all} |") };
        }
        text.push('\n');
    }
    text
}
