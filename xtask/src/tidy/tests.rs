//! Each rule, with text that keeps it and text that breaks it.

use std::{fs, path::Path};

use super::{Finding, Rule, check_source, check_text, run, source::Kind};
use crate::project::Project;

/// The lines on which the source breaks the rule.
fn broken_lines(rule: Rule, kind: Kind, source: &str) -> Vec<usize> {
    let findings = check_source(source, kind).unwrap();
    findings.into_iter().filter(|finding| finding.rule == rule).map(|finding| finding.line).collect()
}

#[track_caller]
fn keeps(rule: Rule, kind: Kind, source: &str) {
    assert_eq!(broken_lines(rule, kind, source), [0; 0], "{source}");
}

/// The source breaks the rule once, in its second line.
#[track_caller]
fn breaks(rule: Rule, kind: Kind, source: &str) {
    assert_eq!(broken_lines(rule, kind, source), [2], "{source}");
}

#[test]
fn generated_code_keeps_no_rule() {
    let waiting = "pub async fn f() {}";
    breaks(Rule::CancelSafety, Kind::PublishedLibrary, &format!("\n{waiting}"));
    keeps(Rule::CancelSafety, Kind::PublishedLibrary, &format!("// This file is @generated.\n{waiting}"));
}

#[test]
fn public_functions_that_wait_need_the_section() {
    for waiting in [
        "pub async fn f() {}",
        "pub fn f() -> impl Future<Output = ()> + Send {}",
        "pub fn f(&self) -> WaitForCancellationFuture<'_> {}",
        "pub fn f() -> Pin<Box<dyn Future<Output = ()>>> {}",
        "pub fn f() -> BoxFuture<'static, ()> {}",
    ] {
        for (open, close) in [("", ""), ("impl Lock {", "}"), ("mod inner {", "}")] {
            breaks(Rule::CancelSafety, Kind::PublishedLibrary, &format!("{open}\n{waiting}{close}"));
            let documented =
                format!("{open}\n/// Waits.\n///\n/// # Cancel safety\n///\n/// Yes.\n{waiting}{close}");
            keeps(Rule::CancelSafety, Kind::PublishedLibrary, &documented);
        }
    }
}

#[test]
fn traits_need_the_section_once_or_at_each_method() {
    let body = "\nasync fn f(&self);\n}";
    breaks(Rule::CancelSafety, Kind::PublishedLibrary, &format!("pub trait T {{{body}"));
    keeps(Rule::CancelSafety, Kind::PublishedLibrary, &format!("/// # Cancel safety\npub trait T {{{body}"));
    keeps(Rule::CancelSafety, Kind::PublishedLibrary, &format!("trait T {{{body}"));
    keeps(
        Rule::CancelSafety,
        Kind::PublishedLibrary,
        "pub trait T {\n/// # Cancel safety\nasync fn f(&self);\n}",
    );
}

#[test]
fn other_functions_do_not_need_the_section() {
    for source in [
        "\npub fn f() -> usize {}",
        "\nasync fn f() {}",
        "\npub(crate) async fn f() {}",
        "impl T for X {\nasync fn f(&self) {}\n}",
        "#[cfg(test)] mod tests {\npub async fn f() {}\n}",
    ] {
        keeps(Rule::CancelSafety, Kind::PublishedLibrary, source);
    }
    keeps(Rule::CancelSafety, Kind::Other, "\npub async fn f() {}");
}

#[test]
fn tests_do_not_return_before_their_end() {
    for source in [
        "#[test] fn t() {\nif std::env::var(\"X\").is_err() { return; }\n}",
        "#[tokio::test(start_paused = true)] async fn t() -> Result<()> {\nif no_server() { return Ok(()); } Ok(())\n}",
        "#[test] fn t() {\nlet Some(etcd) = etcd() else { return };\n}",
        "#[test] fn t() { block_on(async {\nif which(\"etcd\").is_err() { return; }\n}) }",
        "#[test] fn t() { with(|| {\nlet Some(x) = var_os(\"X\") else { return };\n}) }",
        "#[test] fn t() { with(|| match server_available() {\nfalse => return,\ntrue => {}\n}) }",
        "mod inner { #[test] fn t() {\nreturn;\n} }",
    ] {
        breaks(Rule::NoSkip, Kind::Other, source);
    }
    for source in [
        "#[test] fn t() { spawn(async { if done() { return; } }); assert!(true) }",
        "#[test] fn t() { fn helper() -> usize { return 1; } assert_eq!(helper(), 1) }",
        "fn not_a_test() { if std::env::var(\"X\").is_err() { return; } }",
    ] {
        keeps(Rule::NoSkip, Kind::Other, source);
    }
}

#[test]
fn tests_do_not_print_that_they_skip() {
    breaks(Rule::NoSkip, Kind::Test, "fn helper() {\nprintln!(\"Skipping: no etcd\");\n}");
    breaks(Rule::NoSkip, Kind::Other, "#[test] fn t() {\neprintln!(\"test skipped\");\n}");
    breaks(
        Rule::NoSkip,
        Kind::Other,
        "#[cfg(all(test, unix))] mod tests {\nfn f() { println!(\"skip\"); }\n}",
    );
    keeps(Rule::NoSkip, Kind::Other, "fn f() {\nprintln!(\"1 skipped\");\n}");
    keeps(Rule::NoSkip, Kind::Test, "fn f() {\nprintln!(\"done\");\n}");
}

#[test]
fn ignored_tests_need_a_reason() {
    breaks(Rule::IgnoreReason, Kind::Other, "#[test]\n#[ignore]\nfn t() {}");
    breaks(Rule::IgnoreReason, Kind::Other, "#[test]\n#[cfg_attr(windows, ignore)]\nfn t() {}");
    keeps(Rule::IgnoreReason, Kind::Other, "#[test]\n#[ignore = \"needs root\"]\nfn t() {}");
    keeps(Rule::IgnoreReason, Kind::Other, "#[test]\n#[cfg_attr(windows, ignore = \"no fork\")]\nfn t() {}");
}

#[test]
fn unfinished_code_is_found() {
    for leftover in [
        concat!("// TO", "DO: later"),
        concat!("/* FIX", "ME */"),
        concat!("fn f() { to", "do!() }"),
        concat!("fn f() { unimpl", "emented!() }"),
        concat!("fn f() { db", "g!(1); }"),
    ] {
        breaks(Rule::NoLeftover, Kind::Other, &format!("\n{leftover}"));
    }
    keeps(Rule::NoLeftover, Kind::Other, concat!("\n// TO", "DOS is a place"));
    let found = check_text(Path::new("README.md"), concat!("a\nb TO", "DO\n"));
    assert_eq!(found, [Finding::new(Rule::NoLeftover, 2, concat!("`TO", "DO`"))]);
}

#[test]
fn packages_must_use_the_lints_of_the_workspace() {
    let breaks = |manifest| {
        let findings = check_text(Path::new("a/Cargo.toml"), manifest);
        findings.iter().any(|finding| finding.rule == Rule::Lints)
    };
    assert!(breaks("[package]\nname = \"a\"\n"));
    assert!(breaks("[package]\n[lints]\n[other]\nworkspace = true\n"));
    assert!(breaks("[package]\n[lints]\n# workspace = true\n"));
    assert!(!breaks("[package]\n[lints]\nworkspace = true\n"));
    assert!(!breaks("[workspace]\n"));
}

#[test]
fn long_files_and_functions_are_found() {
    let lines = |count| "\n".repeat(count);
    assert_eq!(broken_lines(Rule::Size, Kind::Other, &lines(400)), [0; 0]);
    assert_eq!(broken_lines(Rule::Size, Kind::Other, &lines(401)), [1]);
    keeps(Rule::Size, Kind::Other, &format!("\nfn f() {{{}}}", lines(59)));
    breaks(Rule::Size, Kind::Other, &format!("\nfn f() {{{}}}", lines(60)));
    breaks(Rule::Size, Kind::Other, &format!("impl T {{\nfn f() {{{}}}\n}}", lines(60)));
}

/// The same function in a published library, in one that is not published, and in tests.
#[test]
fn packages_decide_which_rules_apply() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let waiting = "pub async fn f() {}";
    write("Cargo.toml", "[workspace]\n");
    write("inside/Cargo.toml", "[package]\npublish = false\n[lints]\nworkspace = true\n");
    write("inside/src/lib.rs", waiting);
    write("shown/Cargo.toml", "[package]\n[lints]\nworkspace = true\n");
    write("shown/tests/t.rs", waiting);
    write("shown/src/lib.rs", "");
    write("shown/src/inner/more.rs", "");
    run(&Project::at(folder.path())).unwrap();

    write("shown/src/inner/more.rs", waiting);
    let error = run(&Project::at(folder.path())).unwrap_err();
    assert_eq!(error.to_string(), "1 findings");
}
