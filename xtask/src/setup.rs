//! What the checks need beside the Rust toolchain: servers to test against, and `protoc` to build the etcd client.

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::project;

/// Something that the tests start or need to start it, and where it comes from.
#[derive(Debug)]
struct Server {
    sign: Sign,
    debian_package: &'static str,
    elsewhere: &'static str,
}

/// What shows that a server is there.
#[derive(Clone, Copy, Debug)]
enum Sign {
    /// A program on the PATH.
    Program(&'static str),
    /// A file, or else this variable, which says where others have it.
    File(&'static str, &'static str),
}

/// Every server that the tests start.
const SERVERS: [Server; 5] = [
    Server {
        sign: Sign::Program("etcd"),
        debian_package: "etcd-server",
        elsewhere: "Fedora: `dnf install etcd`; others: https://etcd.io/docs/latest/install/",
    },
    Server {
        sign: Sign::Program("java"),
        debian_package: "default-jre-headless",
        elsewhere: "Fedora: `dnf install java-latest-openjdk-headless`",
    },
    // Not package `zookeeper`: that adds a service and a desktop's java.
    Server {
        sign: Sign::File("/usr/share/java/zookeeper.jar", "ZOOKEEPER_CLASSPATH"),
        debian_package: "libzookeeper-java",
        elsewhere: "others: a release from https://zookeeper.apache.org, and ZOOKEEPER_CLASSPATH='FOLDER/lib/*'",
    },
    Server {
        sign: Sign::Program("redis-server"),
        debian_package: "redis-server",
        elsewhere: "Fedora: `dnf install redis`; others: https://redis.io/docs/latest/operate/oss_and_stack/install/",
    },
    Server {
        sign: Sign::Program("redis-sentinel"),
        debian_package: "redis-sentinel",
        elsewhere: "elsewhere it comes with redis-server",
    },
];

/// Installs without starting anything; arguments: the packages.
const APT_INSTALL: &str = include_str!("apt-install.sh");

/// Sees to it that all servers are there: installs what is missing on Debian and Ubuntu, names it elsewhere.
pub(crate) fn servers() -> Result<()> {
    let missing: Vec<&Server> = SERVERS.iter().filter(|server| !server.sign.is_there()).collect();
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
    match missing.iter().find(|server| !server.sign.is_there()) {
        Some(server) => bail!("package {} brought no {}", server.debian_package, server.sign),
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
        let Server { sign, debian_package, elsewhere } = server;
        format!("\n  {sign}: Debian, Ubuntu: `apt-get install {debian_package}`; {elsewhere}")
    };
    format!("not there, please install:{}", missing.iter().map(line).collect::<String>())
}

impl Sign {
    fn is_there(self) -> bool {
        match self {
            Self::Program(name) => find_program(name).is_some(),
            Self::File(path, variable) => Path::new(path).exists() || env::var_os(variable).is_some(),
        }
    }
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(name) => write!(f, "program `{name}` on the PATH"),
            Self::File(path, _) => write!(f, "file {path}"),
        }
    }
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
    fn hint_names_what_is_missing_and_its_package() {
        let hint = install_hint(&SERVERS.iter().collect::<Vec<_>>());
        for part in ["`etcd`", "etcd-server", "Fedora", "`java`", "zookeeper.jar", "libzookeeper-java"] {
            assert!(hint.contains(part), "no {part} in {hint}");
        }
    }
}
