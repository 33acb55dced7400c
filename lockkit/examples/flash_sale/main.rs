//! A flash sale: 500 buyers in two service processes want 300 teapots.
//!
//! The stock is kept by somebody who can answer `read` and `write`, but cannot count down: whoever buys reads the
//! stock, pays, and writes back one less. Without a lock the writes overrun each other and more is sold than there is.
//! With a lock exactly 300 are sold, also when a service is stopped in the middle of a purchase for so long that its
//! lock goes to somebody else: its late write carries an old fencing token and is refused.
//!
//! ```sh
//! cargo run -p lockkit --features file --example flash_sale                    # locks are files
//! cargo run -p lockkit --features file --example flash_sale -- --without-lock  # oversells
//! cargo run -p lockkit --features redis --example flash_sale -- --backend redis://127.0.0.1  # the stock too is there
//! ```

mod freeze;
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

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Parser;
use lockkit::{
    LockClient,
    backend::{BackendUrl, Lifetime},
};
use url::Url;

/// What is for sale.
const ITEMS: u32 = 300;

/// Who wants it.
const BUYERS: u32 = 500;

/// Processes that they come through.
const SERVICES: u32 = 2;

/// The name of the lock.
const LOCK: &str = "flash-sale/teapot";

/// The ttl where the URL names none: short, since a service is stopped for two of them.
const TTL: Duration = Duration::from_secs(2);

/// Sales without a lock are repeated, should one happen not to oversell.
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

// One thread, so that the services, which die with the thread that started them, live as long as this process.
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
    ensure!(info.scheme != "memory", "memory: locks within one process, and the services are two");
    // A hold without a lifetime cannot pass to somebody else while its holder is stopped.
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
    let url = Url::from_file_path(folder).map_err(|()| anyhow!("{folder:?} is no absolute path"))?;
    Ok(url.into())
}

async fn connect(url: &str) -> Result<LockClient> {
    let mut builder = lockkit::builder(url)?;
    if BackendUrl::parse(url)?.take("ttl").is_none() {
        builder = builder.ttl(TTL);
    }
    builder.label("flash sale").build().await.context("connect to the lock store")
}
