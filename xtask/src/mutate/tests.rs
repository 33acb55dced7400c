//! Tests on a small crate, with one mutation per verdict.

use std::{fs, path::Path, process::Command};

use super::*;

/// The library that the patches change.
const LIBRARY: &str = "pub fn admits(highest: u64, token: u64) -> bool {
    token > highest
}

const LIMIT: u64 = 3;

pub fn below(limit: u64) -> impl Fn(u64) -> bool {
    move |token| token < limit
}

pub fn unused() -> u64 {
    1
}

pub const RULE: &str = include_str!(\"rule.lua\");

static SCRIPT: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| include_str!(\"say.lua\").to_owned());

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

    #[test]
    fn limit_is_kept() {
        assert!(!super::below(super::LIMIT)(3));
    }

    #[test]
    fn script_says_yes() {
        assert_eq!(super::SCRIPT.as_str(), \"return 'yes'\\n\");
    }

    #[test]
    fn rule_is_no() {
        assert_eq!(super::RULE, \"return 'no'\\n\");
    }

    #[test]
    fn child_without_environment_admits_nothing_old() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let child = child.env_clear().args([\"--exact\", \"tests::old_is_refused\"]).output().unwrap();
        assert!(child.status.success());
    }
}
";

/// A package without dependencies, in a git repository as the project is.
fn fixture() -> (tempfile::TempDir, Project) {
    let folder = tempfile::tempdir().unwrap();
    let project = Project::at(folder.path());
    write(&project, "Cargo.toml", "[package]\nname = \"fixture\"\nedition = \"2024\"\n");
    write(&project, "src/lib.rs", LIBRARY);
    write(&project, "src/say.lua", "return 'yes'\n");
    write(&project, "src/rule.lua", "return 'no'\n");
    let init = Command::new("git").args(["init", "--quiet"]).current_dir(folder.path()).status().unwrap();
    assert!(init.success());
    (folder, project)
}

fn write(project: &Project, path: &str, text: &str) {
    let path = project.root().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A patch that replaces one line of the library; `was` is the line that it expects.
fn patch(project: &Project, name: &str, was: &str, becomes: &str, red: &[&str]) -> Patch {
    patch_of(project, "src/lib.rs", name, was, becomes, red)
}

fn patch_of(project: &Project, file: &str, name: &str, was: &str, becomes: &str, red: &[&str]) -> Patch {
    let red: String = red.iter().map(|test| format!("# red: {test}\n")).collect();
    let text = fs::read_to_string(project.root().join(file)).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    // An expected line that does not exist takes the place of the second.
    let index = lines.iter().position(|line| *line == was).unwrap_or(1);
    let around =
        |index: Option<usize>| index.and_then(|index| lines.get(index)).map(|line| format!(" {line}\n"));
    let (before, after) = (around(index.checked_sub(1)), around(Some(index + 1)));
    let first = index + usize::from(before.is_none());
    let length = 1 + usize::from(before.is_some()) + usize::from(after.is_some());
    let diff = format!(
        "diff --git a/{file} b/{file}\n--- a/{file}\n+++ b/{file}\n@@ -{first},{length} +{first},{length} @@\n\
         {}-{was}\n+{becomes}\n{}",
        before.unwrap_or_default(),
        after.unwrap_or_default()
    );
    write(
        project,
        &format!("xtask/mutations/{name}.patch"),
        &format!("# removes: a step\n# no case: no suite\n{red}{diff}"),
    );
    let all = Patch::read(&project.root().join("xtask/mutations")).unwrap();
    all.into_iter().find(|patch| patch.name == name).unwrap()
}

fn outcomes(project: &Project, patches: &[Patch], time_max: Duration) -> Vec<(Verdict, bool)> {
    let chosen: Vec<&Patch> = patches.iter().collect();
    let run = Run::prepare(project, patches, &chosen, time_max).unwrap();
    let outcomes = run.try_all(2).unwrap();
    let of = |patch: &Patch| outcomes.iter().find(|one| one.patch.name == patch.name).unwrap();
    patches.iter().map(of).map(|one| (one.verdict, one.alone.is_none())).collect()
}

#[test]
fn each_verdict_has_its_mutation() {
    let (_folder, project) = fixture();
    let patch = |name, was, becomes, red: &[&str]| patch(&project, name, was, becomes, red);
    let (is, always) = ("    token > highest", "    true");
    let lua = |name, says: &str, red| patch_of(&project, "src/say.lua", name, "return 'yes'", says, red);
    let rule = |name, says: &str, red| patch_of(&project, "src/rule.lua", name, "return 'no'", says, red);
    // Each with its verdict, and whether it can be switched.
    let patches = [
        (patch("good", is, always, &["old_is_refused"]), (Verdict::Red, true)),
        (patch("exact", is, always, &["--lib -- --exact tests::old_is_refused"]), (Verdict::Red, true)),
        (patch("half", is, always, &["old_is_refused", "new_is_admitted"]), (Verdict::StillGreen, true)),
        (patch("unreached", "    1", "    2", &["old_is_refused"]), (Verdict::NeverReached, true)),
        (
            patch("outdated", "    token >= highest", always, &["old_is_refused"]),
            (Verdict::DoesNotApply, false),
        ),
        (patch("nonsense", is, "    token.highest", &["old_is_refused"]), (Verdict::DoesNotCompile, false)),
        (patch("renamed", is, always, &["old_was_refused"]), (Verdict::NoSuchTest, true)),
        (patch("spoiled", is, always, &["always_red"]), (Verdict::RedWithoutMutation, true)),
        (
            patch("closure", "    move |token| token < limit", "    move |_| true", &["limit_is_kept"]),
            (Verdict::Red, false),
        ),
        (
            patch(
                "closure-body",
                "    move |token| token < limit",
                "    move |token| token <= limit",
                &["limit_is_kept"],
            ),
            (Verdict::Red, true),
        ),
        (
            patch("constant", "const LIMIT: u64 = 3;", "const LIMIT: u64 = 4;", &["limit_is_kept"]),
            (Verdict::Red, false),
        ),
        (lua("script", "return 'no'", &["script_says_yes"]), (Verdict::Red, true)),
        (lua("script-comment", "return 'yes' -- indeed", &["script_says_yes"]), (Verdict::Red, true)),
        // A constant has its value before the switch is read.
        (rule("script-in-a-constant", "return 'yes'", &["rule_is_no"]), (Verdict::Red, false)),
        (patch("child", is, always, &["child_without_environment_admits_nothing_old"]), (Verdict::Red, true)),
        (
            Patch {
                survives: Some("for a reason".into()),
                ..patch("known", is, always, &["new_is_admitted"])
            },
            (Verdict::Survives, true),
        ),
    ];
    let (patches, expected): (Vec<Patch>, Vec<(Verdict, bool)>) = patches.into_iter().unzip();
    let shown = outcomes(&project, &patches, TEST_TIME_MAX);
    for ((patch, expected), shown) in patches.iter().zip(expected).zip(shown) {
        assert_eq!(shown, expected, "{}", patch.name);
    }
    assert_eq!(
        fs::read_to_string(project.root().join("src/lib.rs")).unwrap(),
        LIBRARY,
        "the checkout was changed"
    );
}

#[test]
fn only_selected_mutations_are_tried() {
    let (_folder, project) = fixture();
    for (name, red) in [("a", "old_is_refused"), ("b", "old_is_refused"), ("c", "new_is_admitted")] {
        patch(&project, name, "    token > highest", "    true", &[red]);
    }
    let all = Patch::read(&project.root().join("xtask/mutations")).unwrap();
    let chosen = |names: &[&str], sample| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let chosen = Selection { names, sample, seed: Some(1), ..Selection::default() }.of(&all)?;
        anyhow::Ok(chosen.into_iter().map(|patch| patch.name.clone()).collect::<Vec<_>>())
    };
    assert_eq!(chosen(&[], None).unwrap(), ["a", "b", "c"]);
    assert_eq!(chosen(&["c", "a"], None).unwrap(), ["a", "c"]);
    assert_eq!(chosen(&["c", "a"], Some(1)).unwrap().len(), 1);
    assert_eq!(chosen(&[], Some(2)).unwrap(), chosen(&[], Some(2)).unwrap());
    let part = |shard: &str| {
        let selection = Selection { shard: Some(shard.parse().unwrap()), ..Selection::default() };
        let chosen = selection.of(&all).unwrap();
        chosen.into_iter().map(|patch| patch.name.as_str()).collect::<Vec<_>>()
    };
    assert_eq!((part("1/2"), part("2/2")), (vec!["a", "c"], vec!["b"]));
    let unknown = chosen(&["d"], None).unwrap_err().to_string();
    assert!(unknown.ends_with("there are: a, b, c"), "{unknown}");

    let selection = |names: &[&str]| Selection {
        folder: "xtask/mutations".into(),
        names: names.iter().map(|name| (*name).into()).collect(),
        ..Selection::default()
    };
    run(&project, &selection(&["a", "b"]), 2).unwrap();
    run(&project, &selection(&["a", "c"]), 2).unwrap_err();
}

/// Its program is killed, with its child processes.
#[test]
fn hanging_mutation_exceeds_the_time_limit() {
    let (_folder, project) = fixture();
    let hang = "loop { std::thread::park() }";
    let patches = [patch(&project, "hang", "    token > highest", hang, &["old_is_refused"])];
    let shown = outcomes(&project, &patches, Duration::from_secs(1));
    assert_eq!(shown, [(Verdict::RedByTimeout, true)]);
    assert!(shown[0].0.is_red());
    // The program is killed, but the kernel may not have removed it yet.
    let start = Instant::now();
    while is_running(&project.root().join("target/mutate/build")) {
        assert!(start.elapsed() < TEST_TIME_MAX, "the test program still runs");
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
    let first = Scratch::of(&project).unwrap();
    assert!(Scratch::of(&project).unwrap_err().to_string().contains("another `cargo xtask mutate`"));
    drop(first);
    Scratch::of(&project).unwrap();
}
