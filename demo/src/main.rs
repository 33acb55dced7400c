//! A flash sale: 500 buyers in two service processes want 300 teapots.
//!
//! The stock keeper answers `read` and `write`, but cannot count down: a buyer reads the stock, pays, and writes back one
//! less. Without a lock, writes overwrite each other and more than 300 are sold. With a lock exactly 300 are sold, also when
//! a service is stopped during a purchase until its lock has passed to somebody else: its late write carries an old fencing
//! token and is refused.
//!
//! ```sh
//! cargo run -p lockkit-demo                    # locks are files
//! cargo run -p lockkit-demo -- --without-lock  # oversells
//! cargo run -p lockkit-demo --features redis -- --backend redis://127.0.0.1  # the stock is there too
//! ```

mod freeze;
#[cfg(feature = "redis")]
mod redis_shelf;
mod report;
mod sale;
mod service;
mod shelf;
mod stock;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use lockkit::{
    LockClient,
    backend::{BackendUrl, Lifetime},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// What is encoded in the path of a URL.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/');

/// What is for sale.
const ITEMS: u32 = 300;

/// Who wants it.
const BUYERS: u32 = 500;

/// Processes that they come through.
const SERVICES: u32 = 2;

/// The name of the lock.
const LOCK: &str = "flash-sale/teapot";

/// The ttl unless the URL names one: short, because a service is stopped for two ttls, but long enough for a busy machine.
const TTL: Duration = Duration::from_secs(4);

/// A sale without a lock that happens not to oversell is repeated.
const TRIES_WITHOUT_LOCK: u32 = 3;

/// Sells 300 teapots to 500 buyers in two processes.
#[derive(Debug, Parser)]
struct Arguments {
    /// The lock store, such as file:///tmp/locks; files in a temporary folder by default
    #[arg(long, value_name = "URL", env = service::BACKEND, hide_env_values = true)]
    backend: Option<String>,
    /// Sell without a lock, to see what happens then
    #[arg(long)]
    without_lock: bool,
    /// Be a service process, whose buyers find the stock at this socket
    #[arg(long, value_name = "SOCKET", hide = true)]
    service: Option<PathBuf>,
    /// The number of a service's first order
    #[arg(long, default_value_t = 0, hide = true)]
    first_order: u32,
}

// One thread: the services end with the thread that started them, and must live as long as this process.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.service {
        Some(socket) => service(&arguments, socket).await,
        None if arguments.without_lock => sell_without_lock().await,
        None => sell_with_lock(arguments.backend).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flash sale: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn service(arguments: &Arguments, socket: &Path) -> Result<()> {
    let client = match &arguments.backend {
        Some(url) if !arguments.without_lock => Some(connect(url).await?),
        _ => None,
    };
    let lock = client.as_ref().map(|client| client.lock(LOCK)).transpose()?;
    let outcome = service::run(socket, arguments.first_order, lock).await;
    if let Some(client) = client {
        client.close().await?;
    }
    outcome
}

async fn sell_with_lock(backend: Option<String>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let url = match backend {
        Some(url) => url,
        None => file_url(&folder.path().join("locks"))?,
    };
    let client = connect(&url).await?;
    let info = client.info().clone();
    ensure!(info.scheme != "memory", "memory: locks within one process, but there are two services");
    // A hold without a lease cannot pass to somebody else while its holder is stopped.
    let stop_for = (info.lifetime != Lifetime::Process).then(|| client.ttl() * 2);
    client.close().await?;
    println!(
        "flash sale WITH LOCK ({}:): {BUYERS} buyers in {SERVICES} processes, {ITEMS} items",
        info.scheme
    );
    let outcome = sale::run(Some(&url), stop_for).await?;
    report::print(&outcome);
    report::stale_writes(&outcome, stop_for, info.scheme);
    report::check(&outcome, stop_for.is_some())
}

async fn sell_without_lock() -> Result<()> {
    for try_number in 1..=TRIES_WITHOUT_LOCK {
        println!(
            "flash sale WITHOUT LOCK, meant to go wrong (try {try_number} of {TRIES_WITHOUT_LOCK}): \
             {BUYERS} buyers in {SERVICES} processes, {ITEMS} items"
        );
        let outcome = sale::run(None, None).await?;
        report::print(&outcome);
        if let Some(too_many) = outcome.oversold() {
            println!("  OVERSOLD by {too_many}, as expected without a lock");
            return Ok(());
        }
    }
    bail!("without a lock nothing was oversold in {TRIES_WITHOUT_LOCK} tries")
}

fn file_url(folder: &Path) -> Result<String> {
    let folder = folder.to_str().context("the temporary folder has a name that is not UTF-8")?;
    Ok(format!("file://{}", utf8_percent_encode(folder, IN_PATH)))
}

async fn connect(url: &str) -> Result<LockClient> {
    let mut builder = lockkit::builder(url)?;
    if BackendUrl::parse(url)?.take("ttl").is_none() {
        builder = builder.ttl(TTL);
    }
    builder.label("flash sale").build().await.context("connect to the lock store")
}
