//! What the checks need beside the Rust toolchain: servers to test against, and `protoc` to build the etcd client.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::project;

/// A program that must be on the PATH, and where it comes from.
#[derive(Debug)]
struct Server {
    program: &'static str,
    debian_package: &'static str,
    elsewhere: &'static str,
}

/// Every server that the tests start.
const SERVERS: [Server; 1] = [Server {
    program: "etcd",
    debian_package: "etcd-server",
    elsewhere: "Fedora: `dnf install etcd`; macOS: `brew install etcd`; others: https://etcd.io/docs/latest/install/",
}];

/// Installs without starting anything; arguments: the packages.
const APT_INSTALL: &str = include_str!("apt-install.sh");

/// Sees to it that all servers are on the PATH: installs what is missing on Debian and Ubuntu, names it elsewhere.
pub(crate) fn servers() -> Result<()> {
    let missing: Vec<&Server> =
        SERVERS.iter().filter(|server| find_program(server.program).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if find_program("apt-get").is_none()
        || !is_debian(&fs::read_to_string("/etc/os-release").unwrap_or_default())
    {
        bail!("{}", install_hint(&missing));
    }
    let packages = missing.iter().map(|server| server.debian_package);
    as_root("sh")
        .and_then(|mut sh| project::run(sh.args(["-c", APT_INSTALL, "apt-install"]).args(packages)))
        .with_context(|| install_hint(&missing))?;
    match missing.iter().find(|server| find_program(server.program).is_none()) {
        Some(server) => {
            bail!("package {} brought no `{}` on the PATH", server.debian_package, server.program)
        }
        None => Ok(()),
    }
}

/// The `protoc` that comes with the build, when neither PROTOC nor the PATH has one.
pub(crate) fn bundled_protoc() -> Option<PathBuf> {
    if env::var_os("PROTOC").is_some() || find_program("protoc").is_some() {
        return None;
    }
    // None for this platform: the build of the etcd client says what it misses.
    protoc_bin_vendored::protoc_bin_path().ok()
}

fn install_hint(missing: &[&Server]) -> String {
    let line = |server: &&Server| {
        let Server { program, debian_package, elsewhere } = server;
        format!("\n  `{program}`: Debian, Ubuntu: `apt-get install {debian_package}`; {elsewhere}")
    };
    format!("not on the PATH, please install:{}", missing.iter().map(line).collect::<String>())
}

/// A command that runs as root; asks for a password where sudo does.
fn as_root(program: &str) -> Result<Command> {
    if rustix::process::geteuid().is_root() {
        return Ok(Command::new(program));
    }
    let sudo = find_program("sudo").context("neither root nor sudo at hand")?;
    let mut command = Command::new(sudo);
    command.arg(program);
    Ok(command)
}

/// Whether `/etc/os-release` describes Debian or something made from it.
fn is_debian(os_release: &str) -> bool {
    os_release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")))
        .flat_map(|value| value.trim_matches('"').split_whitespace())
        .any(|name| name == "debian" || name == "ubuntu")
}

/// The first program of this name on the PATH.
fn find_program(name: &str) -> Option<PathBuf> {
    find_in(env::split_paths(&env::var_os("PATH")?), name)
}

fn find_in(folders: impl Iterator<Item = PathBuf>, name: &str) -> Option<PathBuf> {
    folders.map(|folder| folder.join(name)).find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn tells_debian_and_its_children_from_others() {
        assert!(is_debian("NAME=x\nID=debian\n"));
        assert!(is_debian("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(!is_debian("ID=fedora\nNAME=\"not debian\"\nVARIANT_ID=debian\n"));
        assert!(!is_debian(""));
    }

    #[test]
    fn finds_only_what_can_be_run() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let paths = || folders.iter().map(|folder| folder.path().to_owned());
        fs::write(folders[0].path().join("tool"), "").unwrap();
        assert_eq!(find_in(paths(), "tool"), None);
        let tool = folders[1].path().join("tool");
        fs::write(&tool, "").unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find_in(paths(), "tool"), Some(tool));
    }

    #[test]
    fn bundled_protoc_runs() {
        let protoc = protoc_bin_vendored::protoc_bin_path().unwrap();
        let output = Command::new(protoc).arg("--version").output().unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("libprotoc"), "{output:?}");
    }

    #[test]
    fn hint_names_program_and_package() {
        let hint = install_hint(&SERVERS.iter().collect::<Vec<_>>());
        assert!(hint.contains("`etcd`") && hint.contains("etcd-server") && hint.contains("brew"), "{hint}");
    }
}
