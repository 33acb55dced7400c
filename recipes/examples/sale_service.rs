//! An HTTP service in several processes that sells each item under a lock of its own.
//!
//! The store of the locks is chosen by a feature when the service is built, and by a URL when it starts:
//!
//! ```text
//! export LOCKKIT_BACKEND=redis://127.0.0.1:6379
//! cargo run -p lockkit-recipes --features redis --example sale_service -- 127.0.0.1:8001 /tmp/shop.db &
//! cargo run -p lockkit-recipes --features redis --example sale_service -- 127.0.0.1:8002 /tmp/shop.db &
//! curl -X POST http://127.0.0.1:8001/items/teapot/sale
//! ```
//!
//! Each sale reads how many are left, takes a payment, and writes one less. The database has 300 of each item. With
//! `--without-lock` as a third argument, the processes sell more.

use std::{env, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use axum::{Router, extract::Path, extract::State, http::StatusCode, routing::post};
use lockkit::LockClient;
use rusqlite::{Connection, params};
use tokio::{net::TcpListener, signal::unix, sync::Mutex, time::sleep};

const PATIENCE: Duration = Duration::from_secs(20); // of a buyer
const TABLE: &str = "PRAGMA busy_timeout = 9000; PRAGMA journal_mode = WAL; CREATE TABLE IF NOT EXISTS item
    (id TEXT PRIMARY KEY, token BIGINT NOT NULL DEFAULT 0, left INTEGER NOT NULL DEFAULT 300)";
const RAISE: &str = "INSERT INTO item (id, token) VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE
    SET token = EXCLUDED.token WHERE token <= EXCLUDED.token RETURNING left";
const WRITE: &str = "UPDATE item SET left = ?3 WHERE id = ?1 AND token = ?2";

struct Shop {
    database: Mutex<Connection>,
    locks: Option<LockClient>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [address, file, ..] = &arguments[..] else { anyhow::bail!("usage: sale_service ADDRESS FILE") };
    let mut terminated = unix::signal(unix::SignalKind::terminate())?;
    let database = Connection::open(file)?;
    database.execute_batch(TABLE)?;
    let url = env::var("LOCKKIT_BACKEND").context("LOCKKIT_BACKEND is not set to the URL of a store")?;
    let without_lock = arguments.get(2).is_some_and(|argument| argument == "--without-lock");
    let locks = if without_lock { None } else { Some(lockkit::connect(url).await?) };
    let shop = Arc::new(Shop { database: Mutex::new(database), locks: locks.clone() });
    let service = Router::new().route("/items/{item}/sale", post(sell)).with_state(shop);
    let listener = TcpListener::bind(address).await?;
    println!("LISTENING {}", listener.local_addr()?);
    let stop = async move { terminated.recv().await.unwrap_or_default() };
    axum::serve(listener, service).with_graceful_shutdown(stop).await?;
    match locks {
        Some(client) => Ok(client.close().await?), // sends the last releases before `main` returns
        None => Ok(()),
    }
}

async fn sell(State(shop): State<Arc<Shop>>, Path(item): Path<String>) -> (StatusCode, String) {
    // An error: busy for too long, a store is away, or a newer holder was here. The buyer may try again.
    shop.sell(&item).await.unwrap_or_else(|error| (StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}")))
}

impl Shop {
    async fn sell(&self, item: &str) -> Result<(StatusCode, String)> {
        let mut guard = None;
        if let Some(client) = &self.locks {
            let lock = client.lock(format!("items/{item}"))?;
            guard = Some(lock.acquire_timeout(PATIENCE).await?.context("too many buyers")?);
        }
        let token = i64::try_from(guard.as_ref().map_or(0, |guard| guard.token().get()))?;
        // Reads, and from now on refuses older tokens: docs/fencing.md. No row: a newer holder was here.
        let left: i64 =
            self.database.lock().await.query_row(RAISE, params![item, token], |row| row.get(0))?;
        if left == 0 {
            return Ok((StatusCode::GONE, "sold out".to_owned()));
        }
        sleep(Duration::from_millis(1)).await; // the payment
        let written = self.database.lock().await.execute(WRITE, params![item, token, left - 1])?;
        anyhow::ensure!(written == 1, "this process has lost the lock of {item}");
        Ok((StatusCode::OK, format!("{} left", left - 1)))
    }
}
