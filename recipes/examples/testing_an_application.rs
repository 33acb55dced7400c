//! Tests of an application that locks: a server in the process, its faults, and no real time.
//!
//! ```text
//! cargo test -p lockkit-recipes --example testing_an_application
//! ```
//!
//! The application takes a `LockClient`, so a test can give it one of a server of its own. The feature `testing` of
//! `lockkit` adds the faults; turn it on in `[dev-dependencies]` only. More in docs/testing.md.

use lockkit::{Error, Fence, LockClient, RunError};

/// The application: writes a report under a lock, to a resource that compares tokens.
async fn write_report(client: &LockClient, report: &Fence) -> Result<bool, Error> {
    let lock = client.lock("report")?;
    let work = lock.run(async |guard| {
        tokio::time::sleep(std::time::Duration::from_secs(60)).await; // reads a lot
        report.admit(guard.token())
    });
    work.await.map_err(RunError::into_error)
}

#[tokio::main]
async fn main() -> lockkit::Result<()> {
    let client = lockkit::connect("memory:").await?;
    println!("WRITTEN {}", write_report(&client, &Fence::default()).await?);
    client.close().await
}

#[cfg(test)]
mod tests {
    use lockkit::{Clock, ErrorKind, LockName, memory::MemoryServer};

    use super::*;

    /// Deadlines follow the clock that `start_paused` pauses.
    async fn connect(server: &MemoryServer) -> LockClient {
        LockClient::builder(server.backend()).clock(Clock::tokio()).build().await.unwrap()
    }

    /// With `start_paused`, the minute of work and the renewals meanwhile take no real time.
    #[tokio::test(start_paused = true)]
    async fn report_is_written_under_a_lock_that_is_renewed() {
        let (server, report) = (MemoryServer::new(), Fence::default());
        let client = connect(&server).await;
        assert!(write_report(&client, &report).await.unwrap());
        assert_eq!(server.inspect(&LockName::new("report").unwrap()).holder, None);
    }

    #[tokio::test(start_paused = true)]
    async fn lost_lock_stops_the_work_before_it_writes() {
        let (server, report) = (MemoryServer::new(), Fence::default());
        let client = connect(&server).await;
        let lose = async {
            tokio::time::sleep(std::time::Duration::from_secs(10)).await;
            assert!(server.expire_holder(&LockName::new("report").unwrap()));
        };
        let (outcome, ()) = tokio::join!(write_report(&client, &report), lose);
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(report.highest(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn frozen_server_costs_the_lock_but_writes_nothing_late() {
        let (server, report) = (MemoryServer::new(), Fence::default());
        let client = connect(&server).await;
        let freeze = async {
            tokio::time::sleep(std::time::Duration::from_secs(10)).await;
            server.hold_requests(); // no renewal is answered from here on
        };
        let (outcome, ()) = tokio::join!(write_report(&client, &report), freeze);
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost); // at its deadline, without an answer
        assert_eq!(report.highest(), None);
    }
}
