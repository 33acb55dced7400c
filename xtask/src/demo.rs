//! `cargo xtask demo`: the flash sale, with the lock and without it, and all that it needs.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{project, project::Project, setup};

/// The sale: exits with 0 only when it went as it should.
const EXAMPLE: &str = "-p lockkit --example flash_sale";

/// With the scheme of a server: prints its URL, and runs it until the end of its standard input.
const SERVER: &str = "run --quiet -p lockkit-testbed --";

/// Schemes of backends that several processes can share; the feature of crate `lockkit` has the same name.
const SHARED: [&str; 4] = ["file", "etcd", "redis", "zk"];

/// Tells the sale its backend: a URL may hold a password, which has no place in a list of processes.
const BACKEND_VARIABLE: &str = "LOCKKIT_BACKEND";

/// A program that ends with its standard input, and so with this process, whichever way that ends.
#[derive(Debug)]
struct Server(Child);

/// Programs that are built already.
#[derive(Debug, clap::Args)]
pub(crate) struct Built {
    /// The sale, with the backend in it.
    #[arg(long, hide = true, requires = "servers")]
    sale: Option<PathBuf>,
    /// What starts servers.
    #[arg(long, hide = true, requires = "sale")]
    servers: Option<PathBuf>,
}

impl Built {
    /// The sale: built now unless it is there, with no backend in it that is not asked for.
    fn sale(&self, project: &Project, scheme: &str) -> Result<impl Fn() -> Command> {
        // Lock files are what the sale does by default, and so are always part of it.
        let example = format!("{EXAMPLE} --features file,{scheme}");
        if self.sale.is_none() {
            project::run(&mut project.cargo(&format!("build {example}")))?;
        }
        Ok(move || match &self.sale {
            Some(program) => Command::new(program),
            None => project.cargo(&format!("run --quiet {example} --")),
        })
    }

    /// What starts servers; the first argument is a scheme.
    fn servers(&self, project: &Project) -> Command {
        self.servers.as_ref().map_or_else(|| project.cargo(SERVER), Command::new)
    }
}

/// Runs both sales; `backend` is a URL, or the bare name of a scheme: `file` for a temporary folder, another for a
/// server started for the occasion.
pub(crate) fn run(project: &Project, backend: &str, built: &Built) -> Result<()> {
    let scheme = scheme_of(backend)?;
    let sale = built.sale(project, scheme)?;
    let (_server, url) = match backend {
        "file" => (None, None),
        bare if bare == scheme => {
            setup::servers()?;
            let (server, url) = Server::start(built.servers(project).arg(scheme), scheme)?;
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

impl Server {
    /// A running server of this scheme, and its URL.
    fn start(program: &mut Command, scheme: &str) -> Result<(Self, String)> {
        let child = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", project::shown(program)))?;
        let mut server = Self(child);
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().context("no output")?).read_line(&mut line)?;
        let url = line.split_whitespace().next().context("the server for the demo did not start")?;
        ensure!(
            url.starts_with(&format!("{scheme}://")),
            "the server for the demo says {line:?} and not its URL"
        );
        Ok((server, url.to_owned()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // Its own end is bounded; how it went is of no interest any more.
        let _ = self.0.wait();
    }
}

/// The scheme that was asked for on the command line.
fn scheme_of(backend: &str) -> Result<&'static str> {
    let scheme = backend.split(':').next().unwrap_or_default();
    match SHARED.into_iter().find(|shared| *shared == scheme) {
        Some(scheme) => Ok(scheme),
        None => bail!(
            "--backend is the URL of a backend that processes can share, or its bare scheme: {}",
            SHARED.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backend_is_one_that_processes_share() {
        assert_eq!(scheme_of("file").unwrap(), "file");
        assert_eq!(scheme_of("etcd://127.0.0.1:2379/?ttl=10s").unwrap(), "etcd");
        for url in ["memory:", "etc", "", "consul://x"] {
            let error = scheme_of(url).unwrap_err().to_string();
            // A URL may hold a password.
            assert!(error.ends_with("file, etcd, redis, zk") && !error.contains("consul"), "{error}");
        }
    }
}
