//! An etcd to try things on: `cargo run -p lockkit-testbed` prints its URL and runs it until the end of its input
//! (Ctrl-D) or Ctrl-C.

use std::io::{Write, stdin, stdout};

fn main() -> anyhow::Result<()> {
    let etcd = lockkit_testbed::Etcd::start()?;
    println!("{} pid {}", etcd.url(), etcd.pid().unwrap_or_default());
    stdout().flush()?;
    std::io::copy(&mut stdin(), &mut std::io::sink())?;
    Ok(())
}
