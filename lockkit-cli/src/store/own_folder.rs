//! The default store: lock files in the user's own state folder.

use std::{
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt},
    },
    path::Path,
};

use etcetera::BaseStrategy;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rustix::process::geteuid;

use crate::exit::{CONFIG, Failure};

/// What is encoded in the path of a URL: whatever a person would not read in it.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns the URL of the user's own lock folder; creates it if it is missing. Without HOME, the folder is that of the
/// user database.
pub(super) fn url() -> Result<String, Failure> {
    let base = etcetera::choose_base_strategy().map_err(unusable)?;
    let folder = base.state_dir().unwrap_or_else(|| base.data_dir()).join("lockkit").join("locks");
    if folder.is_relative() {
        return Err(unusable(format_args!("{} is relative", folder.display())));
    }
    check_owner(&folder)?;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(|cause| unusable(format_args!("{}: {cause}", folder.display())))?;
    Ok(format!("file://{}", percent_encode(folder.as_os_str().as_bytes(), IN_PATH)))
}

/// Refuses a folder below that of another user: root with the HOME of a user (`su`, some `sudo`) would put files there
/// that the user cannot open.
fn check_owner(folder: &Path) -> Result<(), Failure> {
    let existing = folder.ancestors().find_map(|folder| Some((folder, fs::metadata(folder).ok()?)));
    let me = geteuid().as_raw();
    match existing {
        Some((existing, found)) if found.uid() != me && found.uid() != 0 => Err(unusable(format_args!(
            "{} belongs to user {}, and this process runs as user {me}: HOME is that of another user",
            existing.display(),
            found.uid()
        ))),
        _ => Ok(()),
    }
}

fn unusable(cause: impl std::fmt::Display) -> Failure {
    Failure::new(CONFIG, format!("cannot use the default lock folder: {cause}; name a store with --backend"))
}
