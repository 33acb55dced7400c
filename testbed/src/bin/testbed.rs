//! Runs a server: `cargo run -p lockkit-testbed -- etcd` prints its URL, and ends it at the end of the input (Ctrl-D)
//! or with Ctrl-C.

use std::{
    env,
    io::{Write, stdin, stdout},
};

use anyhow::{Result, bail};
use lockkit_testbed::{Etcd, Postgres, Redis, ZooKeeper};

fn main() -> Result<()> {
    match env::args().nth(1).as_deref() {
        Some("etcd") => {
            let etcd = Etcd::start()?;
            serve(&etcd.url(), etcd.pid())
        }
        Some("zk") => {
            let zookeeper = ZooKeeper::start()?;
            serve(&zookeeper.url(), zookeeper.pid())
        }
        Some("redis") => {
            let redis = Redis::start()?;
            serve(&redis.url(), redis.pid())
        }
        Some("postgres") => {
            let postgres = Postgres::start()?;
            serve(&postgres.url(), postgres.pid())
        }
        _ => bail!("name a server: etcd, postgres, redis or zk"),
    }
}

fn serve(url: &str, pid: Option<u32>) -> Result<()> {
    println!("{url} pid {}", pid.unwrap_or_default());
    stdout().flush()?;
    std::io::copy(&mut stdin(), &mut std::io::sink())?;
    Ok(())
}
