//! A PATH without one of its programs.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::Result;

/// Returns this PATH without one program. A folder that has it is replaced by one with links to all the others.
pub(super) fn without(program: &str, path: &OsStr, links: &Path) -> Result<OsString> {
    let mut folders = Vec::new();
    for (number, folder) in env::split_paths(path).enumerate() {
        folders.push(if folder.join(program).exists() {
            let replacement = links.join(number.to_string());
            link_all_but(program, &folder, &replacement)?;
            replacement
        } else {
            folder
        });
    }
    Ok(env::join_paths(folders)?)
}

fn link_all_but(program: &str, folder: &Path, links: &PathBuf) -> io::Result<()> {
    fs::create_dir_all(links)?;
    let entries = fs::read_dir(folder.canonicalize()?)?;
    for entry in entries {
        let entry = entry?;
        if entry.file_name() != program {
            symlink(entry.path(), links.join(entry.file_name()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_program_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let [with, other, links] = ["with", "other", "links"].map(|name| folder.path().join(name));
        for file in [with.join("tool"), with.join("cc"), other.join("ld")] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        let path = without("tool", &env::join_paths([&with, &other]).unwrap(), &links).unwrap();
        let has = |name: &str| env::split_paths(&path).any(|folder| folder.join(name).exists());
        assert_eq!([has("tool"), has("cc"), has("ld")], [false, true, true]);
    }
}
