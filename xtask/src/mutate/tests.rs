//! The machinery on a small crate of its own, with one mutation per verdict.

use std::{fs, path::Path, process::Command};

use super::*;

const LIBRARY: &str = "pub fn admits(highest: u64, token: u64) -> bool {
    token > highest
}

#[cfg(test)]
mod tests {
    use super::admits;

    #[test]
    fn old_is_refused() {
        assert!(!admits(2, 1));
    }

    #[test]
    fn new_is_admitted() {
        assert!(admits(1, 2));
    }

    #[test]
    fn always_red() {
        assert!(admits(1, 0));
    }
}
";

/// A package without dependencies, in a git repository as the project is.
fn fixture() -> (tempfile::TempDir, Project) {
    let folder = tempfile::tempdir().unwrap();
    let project = Project::at(folder.path());
    write(&project, "Cargo.toml", "[package]\nname = \"fixture\"\nedition = \"2024\"\n");
    write(&project, "src/lib.rs", LIBRARY);
    let init = Command::new("git").args(["init", "--quiet"]).current_dir(folder.path()).status().unwrap();
    assert!(init.success());
    (folder, project)
}

fn write(project: &Project, path: &str, text: &str) {
    let path = project.root().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A patch that replaces the body of `admits`; `was` is what it believes to find there.
fn patch(project: &Project, name: &str, was: &str, becomes: &str, red: &[&str]) -> Patch {
    let path = format!("xtask/mutations/{name}.patch");
    let red: String = red.iter().map(|test| format!("# red: {test}\n")).collect();
    let diff = format!(
        "diff --git a/src/lib.rs b/src/lib.rs\n--- a/src/lib.rs\n+++ b/src/lib.rs\n@@ -1,3 +1,3 @@\n \
         pub fn admits(highest: u64, token: u64) -> bool {{\n-    {was}\n+    {becomes}\n }}\n"
    );
    write(project, &path, &format!("# removes: the comparison\n{red}{diff}"));
    Patch::read(&project.root().join("xtask/mutations"), Some(name)).unwrap().remove(0)
}

#[test]
fn each_verdict_has_its_mutation() {
    let (_folder, project) = fixture();
    let is = "token > highest";
    let patches = [
        (patch(&project, "good", is, "true", &["old_is_refused"]), Verdict::Red),
        (patch(&project, "exact", is, "true", &["--lib -- --exact tests::old_is_refused"]), Verdict::Red),
        (
            patch(&project, "unguarded", is, "true", &["old_is_refused", "new_is_admitted"]),
            Verdict::StillGreen,
        ),
        (patch(&project, "outdated", "token >= highest", "true", &["old_is_refused"]), Verdict::DoesNotApply),
        (patch(&project, "nonsense", is, "token.highest", &["old_is_refused"]), Verdict::DoesNotCompile),
        (patch(&project, "renamed", is, "true", &["old_was_refused"]), Verdict::NoSuchTest),
        (patch(&project, "spoiled", is, "true", &["always_red"]), Verdict::RedWithoutMutation),
        (patch(&project, "good-again", is, "true", &["old_is_refused"]), Verdict::Red),
    ];
    let (patches, expected): (Vec<Patch>, Vec<Verdict>) = patches.into_iter().unzip();
    assert_eq!(try_all(&project, &patches, TEST_TIME_MAX).unwrap(), expected);
    assert_eq!(
        fs::read_to_string(project.root().join("src/lib.rs")).unwrap(),
        LIBRARY,
        "the checkout is not touched"
    );

    run(&project, Some("good")).unwrap();
    for (name, verdict) in patches.iter().map(|patch| &patch.name).zip(expected) {
        assert_eq!(run(&project, Some(name)).is_ok(), verdict.is_red(), "{name}");
    }
}

/// Ended with all that it started, long before its own end.
#[test]
fn mutation_that_hangs_is_found_by_the_time_limit() {
    let (_folder, project) = fixture();
    let hang = "loop { std::thread::park() }";
    let patches = [patch(&project, "hang", "token > highest", hang, &["old_is_refused"])];
    let verdicts = try_all(&project, &patches, Duration::from_secs(1)).unwrap();
    assert_eq!(verdicts, [Verdict::RedByTimeout]);
    assert!(verdicts[0].is_red());
    // Killed, but the kernel may still be at it.
    let start = Instant::now();
    while is_running(&project.root().join("target/mutate/build")) {
        assert!(start.elapsed() < TEST_TIME_MAX, "the test program lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process runs a program below the folder.
fn is_running(folder: &Path) -> bool {
    let folder = folder.canonicalize().unwrap();
    let programs = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|process| fs::read_link(process.ok()?.path().join("exe")).ok());
    programs.into_iter().any(|program| program.starts_with(&folder))
}

#[test]
fn two_runs_do_not_share_the_copy() {
    let (_folder, project) = fixture();
    let first = scratch::Scratch::of(&project).unwrap();
    assert!(scratch::Scratch::of(&project).unwrap_err().to_string().contains("another `cargo xtask mutate`"));
    drop(first);
    scratch::Scratch::of(&project).unwrap();
}
