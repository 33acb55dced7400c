//! What people copy first.
#![allow(clippy::unwrap_used, reason = "helpers of tests are not seen as tests")]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The sources of all packages of the library, and the README.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = vec![root.join("README.md")];
    let mut folders: Vec<PathBuf> = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path().join("src"))
        .filter(|folder| folder.is_dir() && folder.to_string_lossy().contains("lockkit-"))
        .chain([root.join("lockkit/src")])
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path),
            }
        }
    }
    found
}

/// The code between fences in a text, or in the comments of a source.
fn code_blocks(text: &str) -> Vec<String> {
    let is_source = !text.starts_with('#');
    let lines = text.lines().map(str::trim_start).filter_map(|line| match is_source {
        true => line.strip_prefix("///").or(line.strip_prefix("//!")).map(str::trim_start),
        false => Some(line),
    });
    let mut blocks = Vec::new();
    let mut block: Option<String> = None;
    for line in lines {
        match (&mut block, line.starts_with("```")) {
            (Some(_), true) => blocks.extend(block.take()),
            (Some(block), false) => *block += line,
            (None, true) => block = Some(String::new()),
            (None, false) => {}
        }
    }
    blocks
}

/// A client that is dropped at the end of `main` sends nothing any more, and others wait for its locks.
#[test]
fn every_example_that_connects_closes_its_client() {
    let mut seen = 0;
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        let calls = ["lockkit::connect(", ".build().await", "blocking::connect(", ".build_blocking()"];
        let connects = |code: &String| calls.iter().any(|call| code.contains(call));
        for code in code_blocks(&text).iter().filter(|code| connects(code)) {
            seen += 1;
            let closes = code.contains(".close()") || code.contains(".drain(");
            assert!(closes, "{}: {code}", path.display());
        }
    }
    assert!(seen >= 8, "only {seen} examples were found");
}
