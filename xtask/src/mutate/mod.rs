//! `cargo xtask mutate`: removes one safety step at a time and sees whether the tests that guard it turn red.
//!
//! A mutation is a file `xtask/mutations/NAME.patch`: lines that say what it removes and which tests must notice, then
//! the diff. It is applied to a scratch copy; the checkout is never touched.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use self::{
    patch::Patch,
    scratch::Scratch,
    trial::{Ending, try_test},
};
use crate::project::Project;

mod patch;
mod scratch;
mod trial;

#[cfg(test)]
mod tests;

/// Longest run of the tests named in one `# red:` line, compiling not counted. A mutation that makes them wait for
/// ever is found as well.
const TEST_TIME_MAX: Duration = Duration::from_secs(120);

/// What a mutation showed; the later, the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// The tests failed, as they should.
    Red,
    /// They were still running after the time limit.
    RedByTimeout,
    /// They passed: nothing guards the step that was removed.
    StillGreen,
    /// The code has moved away from under the patch.
    DoesNotApply,
    DoesNotCompile,
    /// The line `# red:` matches no test.
    NoSuchTest,
    /// The tests fail without the mutation too, and so prove nothing.
    RedWithoutMutation,
}

impl Verdict {
    fn is_red(self) -> bool {
        matches!(self, Self::Red | Self::RedByTimeout)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Red => "red",
            Self::RedByTimeout => "red (timeout)",
            Self::StillGreen => "STILL GREEN",
            Self::DoesNotApply => "PATCH DOES NOT APPLY",
            Self::DoesNotCompile => "DOES NOT COMPILE",
            Self::NoSuchTest => "NO SUCH TEST",
            Self::RedWithoutMutation => "RED WITHOUT MUTATION",
        })
    }
}

/// Tries the mutation of this name, or all; an error unless every test that is named turned red.
pub(crate) fn run(project: &Project, name: Option<&str>) -> Result<()> {
    let patches = Patch::read(&project.root().join("xtask/mutations"), name)?;
    let verdicts = try_all(project, &patches, TEST_TIME_MAX)?;
    println!("\n| mutation | removes | tests | verdict |\n|---|---|---|---|");
    for (patch, verdict) in patches.iter().zip(&verdicts) {
        let tests = patch.red.iter().map(|test| format!("`{test}`")).collect::<Vec<_>>().join(", ");
        println!("| {} | {} | {tests} | {verdict} |", patch.name, patch.removes);
    }
    let red = verdicts.iter().filter(|verdict| verdict.is_red()).count();
    println!("\nmutations: {red} red, {} not", verdicts.len() - red);
    if red < verdicts.len() {
        bail!("a safety step is not guarded, or its mutation is out of date");
    }
    Ok(())
}

/// One verdict per patch. The tests run without any mutation first: those that fail or do not exist prove nothing.
fn try_all(project: &Project, patches: &[Patch], time_max: Duration) -> Result<Vec<Verdict>> {
    let scratch = Scratch::of(project)?;
    let mut unfit = BTreeMap::new();
    for test in patches.iter().flat_map(|patch| &patch.red) {
        if !unfit.contains_key(test) {
            println!("without mutation: {test}");
            unfit.insert(test, without_mutation(&scratch, test, &format!("unmutated-{}", unfit.len() + 1))?);
        }
    }
    let mut verdicts = Vec::new();
    for patch in patches {
        let start = Instant::now();
        let verdict = match patch.red.iter().filter_map(|test| unfit[test]).max() {
            Some(verdict) => verdict,
            None => with_mutation(project, &scratch, patch, time_max)?,
        };
        println!("{}: {verdict} ({:.1} s)", patch.name, start.elapsed().as_secs_f64());
        verdicts.push(verdict);
    }
    Ok(verdicts)
}

/// `None` for tests that pass, and so can turn red.
fn without_mutation(scratch: &Scratch, test: &str, log_name: &str) -> Result<Option<Verdict>> {
    Ok(match try_test(scratch, test, log_name, TEST_TIME_MAX)? {
        Ending::Passed => None,
        Ending::NoTest => Some(Verdict::NoSuchTest),
        Ending::Failed | Ending::TimedOut => Some(Verdict::RedWithoutMutation),
        Ending::DoesNotCompile => Some(Verdict::DoesNotCompile),
    })
}

/// The worst that one of the tests shows.
fn with_mutation(project: &Project, scratch: &Scratch, patch: &Patch, time_max: Duration) -> Result<Verdict> {
    if !scratch.apply(patch)? {
        return Ok(Verdict::DoesNotApply);
    }
    let mut worst = Verdict::Red;
    for (number, test) in patch.red.iter().enumerate() {
        let verdict = match try_test(scratch, test, &format!("{}-{}", patch.name, number + 1), time_max)? {
            Ending::Failed => Verdict::Red,
            Ending::TimedOut => Verdict::RedByTimeout,
            Ending::Passed => Verdict::StillGreen,
            Ending::NoTest => Verdict::NoSuchTest,
            Ending::DoesNotCompile => Verdict::DoesNotCompile,
        };
        println!("  {verdict}: {test}");
        worst = worst.max(verdict);
    }
    scratch.restore(project)?;
    Ok(worst)
}
