//! What the checks need besides the Rust toolchain: servers to test against, and `protoc` to build the crate
//! etcd-client, which tests use.

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::project;

/// A server that the tests start, or a part of one, and how to install it.
#[derive(Debug)]
struct Server {
    installed_as: InstalledAs,
    debian_package: &'static str,
    /// How to install it on other systems.
    elsewhere: &'static str,
}

/// How to recognise that a server is installed.
#[derive(Clone, Copy, Debug)]
enum InstalledAs {
    /// A program on the PATH.
    Program(&'static str),
    /// A program on the PATH, or in `VERSION/bin` in this folder.
    Versioned(&'static str, &'static str),
    /// A file, or this environment variable, which names another place.
    File(&'static str, &'static str),
}

/// The packages of the databases on which the tests run the statements of `docs/fencing.md`. No backend needs them.
#[cfg(test)]
const DATABASES: [&str; 2] = ["postgresql", "sqlite3"];

/// Every server that the tests start; `backends.rs` says which backend needs which package.
const SERVERS: [Server; 7] = [
    Server {
        installed_as: InstalledAs::Program("etcd"),
        debian_package: "etcd-server",
        elsewhere: "Fedora: `dnf install etcd`; others: https://etcd.io/docs/latest/install/",
    },
    Server {
        installed_as: InstalledAs::Program("java"),
        debian_package: "default-jre-headless",
        elsewhere: "Fedora: `dnf install java-latest-openjdk-headless`",
    },
    // Not package `zookeeper`: it would add a service and a desktop version of java.
    Server {
        installed_as: InstalledAs::File("/usr/share/java/zookeeper.jar", "ZOOKEEPER_CLASSPATH"),
        debian_package: "libzookeeper-java",
        elsewhere: "others: a release from https://zookeeper.apache.org, and ZOOKEEPER_CLASSPATH='FOLDER/lib/*'",
    },
    Server {
        installed_as: InstalledAs::Program("redis-server"),
        debian_package: "redis-server",
        elsewhere: "Fedora: `dnf install redis`; others: https://redis.io/docs/latest/operate/oss_and_stack/install/",
    },
    Server {
        installed_as: InstalledAs::Program("redis-sentinel"),
        debian_package: "redis-sentinel",
        elsewhere: "elsewhere it comes with redis-server",
    },
    Server {
        installed_as: InstalledAs::Versioned("postgres", "/usr/lib/postgresql"),
        debian_package: "postgresql",
        elsewhere: "Fedora: `dnf install postgresql-server`; others: https://www.postgresql.org/download/",
    },
    Server {
        installed_as: InstalledAs::Program("sqlite3"),
        debian_package: "sqlite3",
        elsewhere: "Fedora: `dnf install sqlite`; others: https://sqlite.org/download.html",
    },
];

/// Installs the packages that are its arguments, without starting their services.
const APT_INSTALL: &str = include_str!("apt-install.sh");

/// Installs missing servers on Debian and Ubuntu. On other systems the error names what to install.
pub(crate) fn install_servers() -> Result<()> {
    let missing: Vec<&Server> = SERVERS.iter().filter(|server| !server.installed_as.is_present()).collect();
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
    match missing.iter().find(|server| !server.installed_as.is_present()) {
        Some(server) => bail!("package {} installed no {}", server.debian_package, server.installed_as),
        None => Ok(()),
    }
}

/// Returns the `protoc` that is bundled with this program, if neither PROTOC nor the PATH has one.
pub(crate) fn bundled_protoc() -> Option<PathBuf> {
    if env::var_os("PROTOC").is_some() || find_program("protoc").is_some() {
        return None;
    }
    // None is bundled for this platform: the build of etcd-client reports that.
    protoc_bin_vendored::protoc_bin_path().ok()
}

fn install_hint(missing: &[&Server]) -> String {
    let line = |server: &&Server| {
        let Server { installed_as, debian_package, elsewhere } = server;
        format!("\n  {installed_as}: Debian, Ubuntu: `apt-get install {debian_package}`; {elsewhere}")
    };
    format!("not installed, please install:{}", missing.iter().map(line).collect::<String>())
}

impl InstalledAs {
    fn is_present(self) -> bool {
        match self {
            Self::Program(name) => find_program(name).is_some(),
            Self::Versioned(name, folder) => {
                find_program(name).or_else(|| find_version(folder, name)).is_some()
            }
            Self::File(path, variable) => Path::new(path).exists() || env::var_os(variable).is_some(),
        }
    }
}

impl fmt::Display for InstalledAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(name) => write!(f, "program `{name}` on the PATH"),
            Self::Versioned(name, folder) => write!(f, "program `{name}` on the PATH or in {folder}"),
            Self::File(path, _) => write!(f, "file {path}"),
        }
    }
}

/// Returns a command that runs as root. It may ask for a password, as sudo does.
fn as_root(program: &str) -> Result<Command> {
    if rustix::process::geteuid().is_root() {
        return Ok(Command::new(program));
    }
    let sudo = find_program("sudo").context("this needs root, and there is no sudo")?;
    let mut command = Command::new(sudo);
    command.arg(program);
    Ok(command)
}

/// Whether `/etc/os-release` describes Debian or a distribution derived from it.
fn is_debian(os_release: &str) -> bool {
    os_release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")))
        .flat_map(|value| value.trim_matches('"').split_whitespace())
        .any(|name| name == "debian" || name == "ubuntu")
}

/// Returns the first program of this name on the PATH.
fn find_program(name: &str) -> Option<PathBuf> {
    find_in(env::split_paths(&env::var_os("PATH")?), name)
}

/// Returns a program of this name in `VERSION/bin` in this folder.
fn find_version(folder: impl AsRef<Path>, name: &str) -> Option<PathBuf> {
    find_in(fs::read_dir(folder).ok()?.flatten().map(|version| version.path().join("bin")), name)
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
    fn debian_and_its_derivatives_are_recognised() {
        assert!(is_debian("NAME=x\nID=debian\n"));
        assert!(is_debian("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(!is_debian("ID=fedora\nNAME=\"not debian\"\nVARIANT_ID=debian\n"));
        assert!(!is_debian(""));
    }

    #[test]
    fn only_executable_files_are_found() {
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
    fn programs_of_any_version_are_found() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("14")).unwrap();
        let programs = folder.path().join("15/bin");
        fs::create_dir_all(&programs).unwrap();
        assert_eq!(find_version(&folder, "tool"), None);
        let tool = programs.join("tool");
        fs::write(&tool, "").unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find_version(&folder, "tool"), Some(tool));
    }

    #[test]
    fn bundled_protoc_runs() {
        let protoc = protoc_bin_vendored::protoc_bin_path().unwrap();
        let output = Command::new(protoc).arg("--version").output().unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("libprotoc"), "{output:?}");
    }

    #[test]
    fn servers_are_those_that_backends_and_recipes_need() {
        use std::collections::BTreeSet;
        let backends = crate::backends::BACKENDS.iter().flat_map(|backend| backend.servers);
        let needed: BTreeSet<_> = backends.copied().chain(DATABASES).collect();
        let installed: BTreeSet<_> = SERVERS.iter().map(|server| server.debian_package).collect();
        assert_eq!(installed, needed);
    }

    #[test]
    fn hint_names_what_is_missing_and_its_package() {
        let hint = install_hint(&SERVERS.iter().collect::<Vec<_>>());
        for part in
            ["`etcd`", "etcd-server", "Fedora", "`java`", "zookeeper.jar", "libzookeeper-java", "`postgres`"]
        {
            assert!(hint.contains(part), "no {part} in {hint}");
        }
    }
}
