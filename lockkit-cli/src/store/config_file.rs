//! The user's configuration file, `$XDG_CONFIG_HOME/lockkit/config.toml` or `~/.config/lockkit/config.toml`.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use etcetera::BaseStrategy;
use rustix::process::geteuid;
use serde::Deserialize;

use super::password::may_hold_password;
use crate::{
    args::parse_time,
    exit::{CONFIG, Failure},
};

/// Longest file that is read, in bytes.
const BYTES_MAX: u64 = 65_536;

/// The permissions of a file that only its owner can read.
const OTHERS: u32 = 0o077;

/// What the file says.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfigFile {
    /// May contain a password.
    pub(super) backend: Option<String>,
    /// Of the user in `backend`.
    pub(super) password_file: Option<PathBuf>,
    #[serde(default, deserialize_with = "time")]
    pub(super) ttl: Option<Duration>,
}

impl ConfigFile {
    /// Reads the file; without one, nothing is configured.
    pub(super) fn read() -> Result<Self, Failure> {
        let Ok(base) = etcetera::choose_base_strategy() else { return Ok(Self::default()) };
        Self::read_from(&base.config_dir().join("lockkit").join("config.toml"))
    }

    fn read_from(path: &Path) -> Result<Self, Failure> {
        let failed = |cause: String| Failure::new(CONFIG, format!("cannot use {}: {cause}", path.display()));
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(cause) if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Self::default());
            }
            Err(cause) => return Err(failed(cause.to_string())),
        };
        let found = file.metadata().map_err(|cause| failed(cause.to_string()))?;
        check_owner(&found).map_err(failed)?;
        let mut text = String::new();
        // One byte more, to detect a longer file: what it says at its end must not be ignored.
        file.by_ref()
            .take(BYTES_MAX + 1)
            .read_to_string(&mut text)
            .map_err(|cause| failed(cause.to_string()))?;
        if text.len() as u64 > BYTES_MAX {
            return Err(failed(format!("it has more than {BYTES_MAX} bytes")));
        }
        // Not the error itself, which repeats the line: it may contain the password.
        let mut config: Self = toml::from_str(&text).map_err(|error| {
            let line = error
                .span()
                .map_or(1, |span| text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1);
            failed(format!("line {line}: {}", error.message()))
        })?;
        if config.backend.as_deref().is_some_and(may_hold_password) && found.mode() & OTHERS != 0 {
            return Err(failed("others can read the password in it: chmod 600, or use password_file".into()));
        }
        if let (Some(file), Some(folder)) = (&mut config.password_file, path.parent()) {
            *file = folder.join(&*file);
        }
        Ok(config)
    }
}

/// Refuses a file of another user, which could send the locks, and passwords, to any store: root may run with the
/// environment of a user.
fn check_owner(found: &fs::Metadata) -> Result<(), String> {
    let me = geteuid().as_raw();
    if found.uid() == me || found.uid() == 0 {
        return Ok(());
    }
    Err(format!("it belongs to user {}, and this process runs as user {me}", found.uid()))
}

/// Reads a time, as on the command line: a number of seconds, or a text.
fn time<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "not a time, such as 15, 0.5 or \"1m30s\"")]
    enum Time {
        Seconds(f64),
        Text(String),
    }
    let text = match Time::deserialize(deserializer)? {
        Time::Seconds(seconds) => seconds.to_string(),
        Time::Text(text) => text,
    };
    parse_time(&text).map(Some).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const SECRET: &str = "hunter2-in-a-file";

    fn read(text: &str, mode: u32) -> Result<ConfigFile, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        ConfigFile::read_from(&path)
    }

    #[test]
    fn all_settings_are_read() {
        let config =
            read("backend = \"etcd://me@h:1\"\npassword_file = \"p\"\nttl = \"1m\"\n", 0o644).unwrap();
        assert_eq!(config.backend.as_deref(), Some("etcd://me@h:1"));
        assert!(config.password_file.unwrap().is_absolute(), "relative to the folder of the file");
        assert_eq!(config.ttl, Some(Duration::from_secs(60)));
        for ttl in ["20", "20.0", "\"20\"", "\"20s\""] {
            let config = read(&format!("ttl = {ttl}"), 0o644).unwrap();
            assert_eq!(config.ttl, Some(Duration::from_secs(20)), "{ttl}");
        }
        let missing = ConfigFile::read_from(Path::new("/dev/null/config.toml")).unwrap();
        assert!(missing.backend.is_none() && read("", 0o644).unwrap().ttl.is_none());
    }

    #[test]
    fn password_that_others_can_read_is_refused() {
        let text = format!("backend = \"etcd://me:{SECRET}@h:1\"");
        for (mode, is_refused) in [(0o600, false), (0o400, false), (0o640, true), (0o604, true)] {
            let refused = read(&text, mode).err();
            assert_eq!(refused.is_some(), is_refused, "{mode:o}");
            assert!(refused.is_none_or(|failure| !failure.message.contains(SECRET)));
        }
    }

    #[test]
    fn file_that_is_too_long_is_refused_and_not_read_to_its_end() {
        let longest = format!("#{}", "x".repeat(BYTES_MAX as usize - 1));
        assert!(read(&longest, 0o600).is_ok());
        let refused = read(&format!("{longest}\nttl = 5"), 0o600).unwrap_err();
        assert_eq!(refused.status, CONFIG);
        assert!(refused.message.contains("more than 65536 bytes"), "{}", refused.message);
        // It has no end.
        let endless = ConfigFile::read_from(Path::new("/dev/zero")).unwrap_err();
        assert!(endless.message.contains("more than 65536 bytes"), "{}", endless.message);
    }

    #[test]
    fn mistakes_are_named_without_repeating_the_file() {
        let password = format!("backend = \"etcd://me:{SECRET}@h:1\"");
        for (text, line) in [
            (format!("{password}\nbakend = 1"), "line 2"),
            (format!("ttl = 5\n{password} x"), "line 2"),
            (format!("backend = {SECRET}"), "line 1"),
            ("ttl = \"soon\"".into(), "line 1"),
            ("ttl = true".into(), "line 1"),
        ] {
            let refused = read(&text, 0o600).unwrap_err();
            assert_eq!(refused.status, CONFIG);
            assert!(refused.message.contains(line), "{text}: {}", refused.message);
            assert!(
                !refused.message.contains(SECRET) && !refused.message.contains('\n'),
                "{}",
                refused.message
            );
        }
    }

    #[test]
    fn file_that_cannot_be_opened_does_not_count_as_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        // It names itself.
        std::os::unix::fs::symlink(&path, &path).unwrap();
        let refused = ConfigFile::read_from(&path).unwrap_err();
        assert!(refused.status == CONFIG && refused.message.contains("config.toml"), "{}", refused.message);
    }
}
