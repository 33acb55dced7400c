//! A change of two things that belong together: money moves between accounts, under the locks of both.
//!
//! An account is a file in FOLDER with its balance. Each process makes 50 transfers between random accounts, in both
//! directions. Two processes that locked one account after the other would soon wait for each other for ever;
//! `lock_all` acquires in one order for all callers.
//!
//! ```text
//! mkdir /tmp/bank; for name in a b c; do echo 1000 > /tmp/bank/$name; done
//! LOCKKIT_BACKEND=file:///tmp/locks cargo run -p lockkit-recipes --example transfer -- /tmp/bank
//! ```
//!
//! A lock is no transaction: a process that dies between the two writes leaves half a transfer. Where the accounts are in
//! one database, use its transactions. Locks are for what has none, or lies in two places.

use std::{env, fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use lockkit::LockClient;
use tokio::{task::JoinSet, time::sleep};

const TRANSFERS: usize = 50;

#[tokio::main]
async fn main() -> Result<()> {
    let url = env::var("LOCKKIT_BACKEND").context("LOCKKIT_BACKEND is not set to the URL of a store")?;
    let folder = env::args().nth(1).context("usage: transfer FOLDER")?;
    let mut accounts = Vec::new();
    for account in fs::read_dir(&folder)? {
        accounts.push(account?.file_name().to_string_lossy().into_owned());
    }
    ensure!(accounts.len() >= 2, "a transfer needs two accounts");
    let client = lockkit::connect(url).await?;
    let mut transfers = JoinSet::new();
    for _ in 0..TRANSFERS {
        fastrand::shuffle(&mut accounts);
        let (client, folder) = (client.clone(), folder.clone());
        let (from, to) = (accounts[0].clone(), accounts[1].clone());
        transfers.spawn(async move { transfer(&client, Path::new(&folder), &from, &to, 10).await });
    }
    let ended: Result<Vec<bool>> = transfers.join_all().await.into_iter().collect();
    client.close().await?;
    println!("TRANSFERRED {}", ended?.into_iter().filter(|done| *done).count());
    Ok(())
}

/// Returns false if there is not enough money.
async fn transfer(client: &LockClient, folder: &Path, from: &str, to: &str, amount: u64) -> Result<bool> {
    let names = [from, to].map(|account| format!("accounts/{account}"));
    let guard = client.lock_all(names)?.acquire().await?;
    let (giver, receiver) = (read(&folder.join(from))?, read(&folder.join(to))?);
    sleep(Duration::from_millis(1)).await; // the time that a remote store takes
    // As late as possible. A store that compares tokens is sent `guard.token(name)` too: see docs/fencing.md.
    guard.check()?;
    let enough = giver >= amount;
    if enough {
        fs::write(folder.join(from), (giver - amount).to_string())?;
        fs::write(folder.join(to), (receiver + amount).to_string())?;
    }
    guard.release().await?;
    Ok(enough)
}

fn read(account: &Path) -> Result<u64> {
    let balance = fs::read_to_string(account)?;
    balance.trim().parse().with_context(|| format!("{}: {balance:?}", account.display()))
}
