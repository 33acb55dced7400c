//! `cargo xtask demo`: the flash sale, with the lock and without it, and all that it needs.

use std::{
    fmt::Write,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::{project, project::Project, setup};

/// The sale: exits with 0 only when it went as it should.
const EXAMPLE: &str = "-p lockkit --example flash_sale";

/// Prints the URL of an etcd that runs until the end of its standard input.
const ETCD: &str = "run --quiet -p lockkit-testbed";

/// Schemes of backends that several processes can share; the feature of crate `lockkit` has the same name.
const SHARED: [&str; 2] = ["file", "etcd"];

/// Where the locks of the sale are; what was made for the occasion ends with the value.
#[derive(Debug)]
struct Backend {
    url: String,
    _folder: Option<TempDir>,
    _server: Option<Server>,
}

/// A program that ends with its standard input, and so with this process, whichever way that ends.
#[derive(Debug)]
struct Server(Child);

/// Runs both sales; `backend` is a URL, or the bare name of a scheme: `file` for a temporary folder, `etcd` for a
/// server started for the occasion.
pub(crate) fn run(project: &Project, backend: &str) -> Result<()> {
    let feature = feature_of(backend)?;
    let example = format!("{EXAMPLE} --features {feature}");
    project::run(&mut project.cargo(&format!("build {example}")))?;
    let backend = Backend::open(project, backend)?;
    let start = Instant::now();
    for (title, option) in [("with the lock", None), ("WITHOUT the lock", Some("--without-lock"))] {
        println!("\n--- flash sale on {feature}, {title}");
        let mut sale = project.cargo(&format!("run --quiet {example} -- --backend"));
        project::run(sale.arg(&backend.url).args(option)).with_context(|| format!("the sale {title}"))?;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("\ndemo on {feature}: sold out exactly with the lock, oversold without it ({seconds:.1} s)");
    Ok(())
}

impl Backend {
    fn open(project: &Project, backend: &str) -> Result<Self> {
        match backend {
            "file" => Self::temporary_folder(),
            "etcd" => Self::own_etcd(project),
            url => Ok(Self { url: url.to_owned(), _folder: None, _server: None }),
        }
    }

    fn temporary_folder() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("lockkit-demo-").tempdir()?;
        Ok(Self { url: file_url(folder.path()), _folder: Some(folder), _server: None })
    }

    fn own_etcd(project: &Project) -> Result<Self> {
        setup::servers()?;
        let mut etcd = project.cargo(ETCD);
        let child =
            etcd.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
        let mut server = Server(child);
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().context("no output")?).read_line(&mut line)?;
        let url = line.split_whitespace().next().context("the etcd for the demo did not start")?;
        ensure!(url.starts_with("etcd://"), "the etcd for the demo says {line:?} and not its URL");
        Ok(Self { url: url.to_owned(), _folder: None, _server: Some(server) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // Its own end is bounded; how it went is of no interest any more.
        let _ = self.0.wait();
    }
}

/// The feature of crate `lockkit` for what was asked for on the command line.
fn feature_of(backend: &str) -> Result<&'static str> {
    let scheme = backend.split(':').next().unwrap_or_default();
    match SHARED.into_iter().find(|shared| *shared == scheme) {
        Some(feature) => Ok(feature),
        None => bail!(
            "--backend is the URL of a backend that processes can share, or its bare scheme: {}",
            SHARED.join(", ")
        ),
    }
}

/// The folder as a URL, whatever its name.
fn file_url(folder: &Path) -> String {
    let mut url = "file://".to_owned();
    for byte in folder.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => {
                url.push(char::from(*byte))
            }
            // Writing to a string cannot fail.
            _ => drop(write!(url, "%{byte:02X}")),
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_of_any_name_is_a_url() {
        assert_eq!(file_url(Path::new("/tmp/a b/50%?#é")), "file:///tmp/a%20b/50%25%3F%23%C3%A9");
    }

    #[test]
    fn backend_is_one_that_processes_share() {
        assert_eq!(feature_of("file").unwrap(), "file");
        assert_eq!(feature_of("etcd://127.0.0.1:2379/?ttl=10s").unwrap(), "etcd");
        for url in ["memory:", "etc", "", "redis://x"] {
            let error = feature_of(url).unwrap_err().to_string();
            // A URL may hold a password.
            assert!(error.ends_with("file, etcd") && !error.contains("redis"), "{error}");
        }
    }
}
