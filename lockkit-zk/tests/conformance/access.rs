//! Clients with different trust and permissions.

use anyhow::Result;
use lockkit_conformance::{Access, AnyBackend};
use zookeeper_client::{Acls, Client, CreateMode};

use crate::{
    backend,
    store::{LOGIN, OPEN, OPTIONS, directory},
};

/// Chroots of clients who log in: an own one, and one of another user.
pub(crate) const CHROOTS: [&str; 2] = ["/own", "/of-others"];

/// Additional servers, each for one client, with the certificate files that it reads when a session opens. They run as
/// long as this value.
#[derive(Debug, Default)]
pub(crate) struct ExtraServers {
    #[cfg(feature = "tls")]
    running: std::sync::Mutex<Vec<(lockkit_testbed::ZooKeeper, [lockkit_testbed::Certificates; 2])>>,
}

impl ExtraServers {
    /// Returns a client with this access, of the server at this endpoint or of an additional one.
    pub(crate) async fn backend_for(&self, access: &Access, endpoint: &str) -> Result<AnyBackend> {
        let url = match access {
            Access::AllBut(name) => {
                reserve(endpoint, LOGIN, &directory(name)).await?;
                format!("zk://restricted:secret@{endpoint}{OPTIONS}{OPEN}")
            }
            Access::Secret { text, right } => {
                // The server accepts every password; a wrong one is another user.
                let (chroot, owner) = if *right {
                    (CHROOTS[0], format!("app:{text}"))
                } else {
                    (CHROOTS[1], format!("app:{text}, but another"))
                };
                reserve(endpoint, &owner, chroot).await?;
                format!("zk://app:{text}@{endpoint}{chroot}{OPTIONS}")
            }
            #[cfg(feature = "tls")]
            Access::Tls(shown) => self.with_tls(*shown).await?,
            _ => return access.unsupported(),
        };
        Ok(AnyBackend::new(backend(&url)?))
    }

    #[cfg(feature = "tls")]
    async fn with_tls(&self, shown: lockkit_conformance::ShownCertificate) -> Result<String> {
        use lockkit_conformance::ShownCertificate;
        use lockkit_testbed::{Certificates, ServerCertificate, ZooKeeper};

        let certificate = match shown {
            ShownCertificate::Trusted | ShownCertificate::UnknownAuthority => ServerCertificate::Good,
            ShownCertificate::WrongName => ServerCertificate::WrongName,
            ShownCertificate::Expired => ServerCertificate::Expired,
            other => anyhow::bail!("no certificate that is {other:?}"),
        };
        // Starting blocks, so it runs outside of the executor.
        let started = tokio::task::spawn_blocking(move || {
            let authorities = [Certificates::new()?, Certificates::new()?];
            let server = ZooKeeper::start_tls(&authorities[0], certificate, false)?;
            anyhow::Ok((server, authorities))
        });
        let (server, authorities) = started.await??;
        let trusted = &authorities[usize::from(shown == ShownCertificate::UnknownAuthority)];
        let url = format!("{}{OPTIONS}&ca={}", server.url(), trusted.ca().display());
        lockkit_core::support::lock(&self.running).push((server, authorities));
        Ok(url)
    }
}

/// Creates a node that only this login may use.
async fn reserve(endpoint: &str, login: &str, path: &str) -> Result<()> {
    let owner = Client::connector().with_auth("digest", login.as_bytes()).connect(endpoint).await?;
    if let Some((parent @ "/lockkit", _)) = path.rsplit_once('/') {
        owner.mkdir(parent, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
    }
    owner.create(path, b"", &CreateMode::Persistent.with_acls(Acls::creator_all())).await?;
    Ok(())
}
