//! The fuzz targets on their short corpora, and on small changes of them: what a fuzzer finds once is tried ever after.
#![allow(clippy::unwrap_used, reason = "helpers of tests are not seen as tests")]

use std::{
    collections::BTreeSet,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use lockkit::fuzzing::{TARGETS, Target};

/// Changed inputs per file.
const MUTATIONS: usize = 500;

/// Chance must not decide here.
const SEED: u64 = 42;

fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

fn names_in(folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(fuzz_folder().join(folder)).unwrap();
    entries.map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let mut files: Vec<PathBuf> = fs::read_dir(fuzz_folder().join("corpus").join(target))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

#[test]
fn every_target_has_a_corpus_and_a_program() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(targets, names_in("corpus"));
    assert_eq!(targets, names_in("fuzz_targets"));
    let manifest = fs::read_to_string(fuzz_folder().join("Cargo.toml")).unwrap();
    for target in &targets {
        assert!(!corpus(target).is_empty(), "{target} has an empty corpus");
        assert!(manifest.contains(&format!("name = \"{target}\"")), "{target} is in no [[bin]]");
        let program = fs::read_to_string(fuzz_folder().join(format!("fuzz_targets/{target}.rs"))).unwrap();
        assert!(program.contains(&format!("run(\"{target}\", bytes)")), "{target}.rs runs another target");
    }
}

#[test]
fn no_input_of_the_corpora_and_no_small_change_of_one_is_wrong() {
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut wrong = Vec::new();
    for (name, target) in TARGETS {
        let corpus = corpus(name);
        for file in &corpus {
            let changed = (0..MUTATIONS).map(|_| change(file, &corpus, &mut random));
            let inputs: Vec<Vec<u8>> = [file.clone()].into_iter().chain(changed).collect();
            // One of each file is enough to start with.
            wrong.extend(
                inputs
                    .iter()
                    .find(|input| !passes(*target, input))
                    .map(|input| format!("{name}: {:?}", String::from_utf8_lossy(input))),
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn passes(target: Target, input: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| target(input))).is_ok()
}

/// A few of the changes that fuzzers make.
fn change(input: &[u8], corpus: &[Vec<u8>], random: &mut fastrand::Rng) -> Vec<u8> {
    const TELLING: &[u8] = b"\0\n\"%&+-./0:@[\\]{}\x7f\xff";
    let mut bytes = input.to_vec();
    for _ in 0..random.usize(1..=4) {
        let place = random.usize(0..=bytes.len());
        match random.u8(0..6) {
            0 if place < bytes.len() => bytes[place] ^= 1 << random.u8(0..8),
            1 if place < bytes.len() => drop(bytes.remove(place)),
            2 => bytes.insert(place, TELLING[random.usize(0..TELLING.len())]),
            3 => bytes.truncate(place),
            4 => {
                let other = &corpus[random.usize(0..corpus.len())];
                bytes.extend_from_slice(&other[random.usize(0..=other.len())..]);
            }
            _ => bytes.splice(place..place, input.iter().copied().take(place)).for_each(drop),
        }
    }
    bytes
}
