//! `cargo xtask demo`: the flash sale, with the lock and without it.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{attached::Attached, backends, project, project::Project, setup};

/// The sale. It exits with 0 only if it sold what it should.
const SALE: &str = "-p lockkit-demo";

/// With the scheme of a server as an argument: prints its URL, and runs it until the end of its standard input.
const SERVER: &str = "run --quiet -p lockkit-testbed --";

/// The environment variable with the sale's backend. A URL may hold a password, which a list of processes would show.
const BACKEND_VARIABLE: &str = "LOCKKIT_BACKEND";

/// Programs that are built already.
#[derive(Debug, clap::Args)]
pub(crate) struct Built {
    /// The sale, with the backend in it.
    #[arg(long, hide = true, requires = "servers")]
    sale: Option<PathBuf>,
    /// The program that starts servers.
    #[arg(long, hide = true, requires = "sale")]
    servers: Option<PathBuf>,
}

impl Built {
    /// Returns the command of the sale. Unless it is built already, builds it now, with no other backend than this one.
    fn sale(&self, project: &Project, scheme: &str) -> Result<impl Fn() -> Command> {
        // `file` is the default backend of the sale, and so always part of it.
        let features = if scheme == "file" { String::new() } else { format!(" --features {scheme}") };
        let sale = format!("{SALE}{features}");
        if self.sale.is_none() {
            project::run(&mut project.cargo(&format!("build {sale}")))?;
        }
        Ok(move || match &self.sale {
            Some(program) => Command::new(program),
            None => project.cargo(&format!("run --quiet {sale} --")),
        })
    }

    /// The program that starts servers; its first argument is a scheme.
    fn servers(&self, project: &Project) -> Command {
        self.servers.as_ref().map_or_else(|| project.cargo(SERVER), Command::new)
    }
}

/// Runs both sales. `backend` is a URL, or a bare scheme: `file` for a temporary folder, another for a temporary
/// server.
pub(crate) fn run(project: &Project, backend: &str, built: &Built) -> Result<()> {
    let scheme = scheme_of(backend)?;
    let sale = built.sale(project, scheme)?;
    let (_server, url) = match backend {
        "file" => (None, None),
        bare if bare == scheme => {
            setup::install_servers()?;
            let (server, url) = start_server(built.servers(project).arg(scheme), scheme)?;
            (Some(server), Some(url))
        }
        url => (None, Some(url.to_owned())),
    };
    let start = Instant::now();
    for (title, options) in [("with the lock", [].as_slice()), ("without the lock", &["--without-lock"])] {
        let mut sale = sale();
        sale.args(options);
        match &url {
            Some(url) => sale.env(BACKEND_VARIABLE, url),
            None => sale.env_remove(BACKEND_VARIABLE),
        };
        println!();
        project::run(&mut sale).with_context(|| format!("the sale {title}"))?;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("\ndemo on {scheme}: sold out exactly with the lock, oversold without it ({seconds:.1} s)");
    Ok(())
}

/// Starts a server of this scheme; returns it with its URL.
fn start_server(program: &mut Command, scheme: &str) -> Result<(Attached, String)> {
    let (server, output) = Attached::start(program)?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let url = line.split_whitespace().next().context("the server for the demo did not start")?;
    ensure!(
        url.starts_with(&format!("{scheme}://")),
        "the server for the demo printed {line:?} instead of its URL"
    );
    Ok((server, url.to_owned()))
}

/// Returns the scheme of the command line's backend.
fn scheme_of(backend: &str) -> Result<&'static str> {
    let scheme = backend.split(':').next().unwrap_or_default();
    match backends::with_sale().find(|known| *known == scheme) {
        Some(scheme) => Ok(scheme),
        None => bail!(
            "--backend is the URL of a backend that processes can share, or its bare scheme: {}",
            backends::with_sale().collect::<Vec<_>>().join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backend_must_be_one_that_processes_share() {
        assert_eq!(scheme_of("file").unwrap(), "file");
        assert_eq!(scheme_of("etcd://127.0.0.1:2379/?ttl=10s").unwrap(), "etcd");
        for url in ["memory:", "etc", "", "consul://x"] {
            let error = scheme_of(url).unwrap_err().to_string();
            // The URL itself is not shown: it may hold a password.
            assert!(error.ends_with("file, etcd, redis, zk") && !error.contains("consul"), "{error}");
        }
    }
}
