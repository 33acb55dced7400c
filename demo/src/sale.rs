//! One sale: a stock keeper and two service processes.

use std::{
    env,
    path::Path,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::{
    net::UnixListener,
    process::{Child, Command},
    task::JoinSet,
    time::timeout,
};

use crate::{
    BUYERS, ITEMS, SERVICES,
    freeze::Freeze,
    service::BACKEND,
    shelf::Shelf,
    stock::{Books, StockKeeper},
};

/// Longest time for a whole sale.
const SALE_MAX: Duration = Duration::from_secs(120);

/// How a sale went.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) books: Books,
    /// Buyers who believe that they bought.
    pub(crate) bought: u32,
    /// Buyers who found the shelf empty.
    pub(crate) refused: u32,
    pub(crate) time: Duration,
}

impl Outcome {
    /// Returns how many more were sold than there were.
    pub(crate) fn oversold(&self) -> Option<usize> {
        self.books.sales.len().checked_sub(ITEMS as usize).filter(|too_many| *too_many > 0)
    }
}

/// Sells, with the lock of the store at `backend` or without one; one service is stopped for this long meanwhile.
pub(crate) async fn run(backend: Option<&str>, stop_for: Option<Duration>) -> Result<Outcome> {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("stock");
    let listener = UnixListener::bind(&socket)?;
    let shelf = Shelf::fill(backend).await.context("fill the shelf")?;
    let keeper = Arc::new(StockKeeper::new(shelf, stop_for.map(Freeze::new), progress_bar()));
    let started = Instant::now();
    let services = (0..SERVICES)
        .map(|number| start_service(&socket, number * BUYERS / SERVICES, backend))
        .collect::<Result<Vec<Child>>>()?;
    let (bought, refused) = timeout(SALE_MAX, async {
        tokio::select! {
            counts = finish(services) => counts,
            error = serve(&keeper, listener) => error.and(Ok((0, 0))),
        }
    })
    .await
    .with_context(|| format!("the sale was not over after {SALE_MAX:?}"))??;
    Ok(Outcome { books: keeper.close().await?, bought, refused, time: started.elapsed() })
}

fn start_service(socket: &Path, first_order: u32, backend: Option<&str>) -> Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("--service").arg(socket).arg("--first-order").arg(first_order.to_string());
    match backend {
        Some(url) => command.env(BACKEND, url),
        None => command.arg("--without-lock").env_remove(BACKEND),
    };
    command.stdout(Stdio::piped()).kill_on_drop(true).spawn().context("start a service process")
}

/// Answers the services; ends only by an error.
async fn serve(keeper: &Arc<StockKeeper>, listener: UnixListener) -> Result<()> {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, keeper) = (accepted?.0, Arc::clone(keeper));
                connections.spawn(async move { keeper.serve(stream).await });
            }
            Some(ended) = connections.join_next() => ended??,
        }
    }
}

/// How many buyers bought, and how many were refused.
async fn finish(services: Vec<Child>) -> Result<(u32, u32)> {
    let (mut bought, mut refused) = (0, 0);
    for service in services {
        let output = service.wait_with_output().await?;
        ensure!(output.status.success(), "a service process failed: {}", output.status);
        let line = String::from_utf8(output.stdout)?;
        let (service_bought, service_refused) = line.trim().split_once(' ').context("a service's counts")?;
        bought += service_bought.parse::<u32>()?;
        refused += service_refused.parse::<u32>()?;
    }
    Ok((bought, refused))
}

fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("  {bar:40} {pos} of {len} sold  {elapsed}");
    ProgressBar::new(ITEMS.into()).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
