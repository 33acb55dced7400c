//! A PostgreSQL server: a resource whose writes are fenced.

use std::{
    fs,
    net::Ipv4Addr,
    os::unix::fs::{MetadataExt, chown},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result};

use crate::{
    address::{free_ports, own_address},
    daemon::{Daemon, derefs_to_its_daemon, find_program},
};

/// In error messages, and the name of the server's program and of its administrator.
const POSTGRES: &str = "postgres";

/// Where Debian puts a folder `VERSION/bin` for each version; its programs are not on the PATH.
const DEBIAN_VERSIONS: &str = "/usr/lib/postgresql";

/// Creates the data and becomes the server. The arguments are the folder of the programs, that of the daemon, and the
/// address and port to listen on. With the trap, the shell ends only after `initdb`, which would write on into a folder
/// that is being removed.
const SERVER: &str = r#"
trap exit TERM
cd "$2" || exit
echo 'host all all 127.0.0.0/8 trust' >access || exit
"$1/initdb" -D data -U postgres -A trust -E UTF8 --no-locale --no-sync --no-instructions --wal-segsize=1 || exit
trap - TERM
exec "$1/postgres" -D data -c hba_file="$2/access" -c listen_addresses="$3" -p "$4" -c unix_socket_directories= \
    -c fsync=off -c full_page_writes=off -c shared_buffers=16MB -c dynamic_shared_memory_type=mmap
"#;

/// An immediate shutdown. A killed server would leave its children and a segment of System V shared memory behind. The
/// shell starts it with QUIT ignored: until the server has its own handlers, TERM ends it.
const SIGNALS: &str = "TERM QUIT";

/// Who runs the server in tests of root: it refuses to run as root. Not user `postgres`, to whom real databases belong.
const NOBODY: u32 = 65534;

/// A PostgreSQL server without passwords, for connections from this host only. It never waits for the disk.
///
/// ```no_run
/// let postgres = lockkit_testbed::Postgres::start()?;
/// let output = postgres.psql().args(["-c", "SELECT version()"]).output()?;
/// # anyhow::Ok(())
/// ```
#[derive(Debug)]
pub struct Postgres {
    daemon: Daemon,
    programs: PathBuf,
    address: Ipv4Addr,
    port: u16,
}

derefs_to_its_daemon!(Postgres);

impl Postgres {
    /// Starts a server without data, and waits until it accepts connections.
    ///
    /// # Errors
    ///
    /// When its programs are not installed (the error says how to install them), or when the server does not accept
    /// connections (the error contains the end of its log).
    pub fn start() -> Result<Self> {
        let programs = programs()?;
        // On the disk, for which it does not wait: 30 MB for each server would fill a small /dev/shm.
        let daemon = Daemon::new_in(POSTGRES, &std::env::temp_dir())?.ended_by(SIGNALS);
        let address = own_address();
        let [port] = free_ports(address)?;
        let mut postgres = Self { daemon, programs, address, port };
        postgres.launch()?;
        postgres.daemon.wait_until(&postgres.url(), || postgres.is_ready())?;
        Ok(postgres)
    }

    /// Returns the URL of its database, such as `postgres://postgres@127.3.9.1:40001/postgres`. The user may do
    /// everything.
    pub fn url(&self) -> String {
        format!("postgres://{POSTGRES}@{}:{}/{POSTGRES}", self.address, self.port)
    }

    /// Returns its shell, connected to the database. It prints values separated by `|` and nothing around them, and
    /// stops at the first error.
    pub fn psql(&self) -> Command {
        let mut psql = Command::new(self.programs.join("psql"));
        psql.args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", &self.url()]);
        psql
    }

    fn launch(&mut self) -> Result<()> {
        let folder = self.daemon.folder();
        let [programs, folder_name] = [&self.programs, folder].map(|path| path.display().to_string());
        let script = ["sh", "-c", SERVER, POSTGRES, &programs, &folder_name];
        let script =
            script.map(str::to_owned).into_iter().chain([self.address.to_string(), self.port.to_string()]);
        if fs::metadata(folder)?.uid() != 0 {
            return self.daemon.launch(Path::new("/bin/sh"), &script.skip(1).collect::<Vec<_>>());
        }
        chown(folder, Some(NOBODY), Some(NOBODY)).context("cannot give the folder of the server away")?;
        let user = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()];
        let setpriv = find_program("setpriv", "util-linux")?;
        self.daemon.launch(&setpriv, &user.into_iter().chain(script).collect::<Vec<_>>())
    }

    fn is_ready(&self) -> bool {
        let mut question = Command::new(self.programs.join("pg_isready"));
        question.args(["-q", "-d", &self.url()]).stderr(Stdio::null());
        question.status().is_ok_and(|status| status.success())
    }
}

/// The folder of the server's programs: Debian's newest version, or where the PATH has them.
fn programs() -> Result<PathBuf> {
    let versions = fs::read_dir(DEBIAN_VERSIONS).into_iter().flatten().flatten();
    let newest = versions
        .filter(|version| version.path().join("bin").join(POSTGRES).is_file())
        .filter_map(|version| Some((version.file_name().to_str()?.parse::<u32>().ok()?, version.path())))
        .max();
    match newest {
        Some((_, version)) => Ok(version.join("bin")),
        None => {
            let server = find_program(POSTGRES, "postgresql")?;
            Ok(server.parent().context("a program is in no folder")?.to_owned())
        }
    }
}
