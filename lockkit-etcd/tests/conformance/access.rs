//! Clients with other permissions, passwords or trusted certificates than the default one.

use std::sync::Mutex;

use anyhow::Result;
use etcd_client::{Client, ConnectOptions, Permission};
use lockkit_conformance::{Access, AnyBackend};
use lockkit_core::backend::BackendUrl;
use lockkit_core::support::lock;
use lockkit_etcd::{EtcdBackend, EtcdConfig};
use lockkit_testbed::Etcd;

use crate::{forms::Form, server::PASSWORD};

const RESTRICTED: &str = "restricted";

/// Additional servers, each for one client; they run until this value is dropped.
#[derive(Debug, Default)]
pub(crate) struct ExtraServers(Mutex<Vec<Running>>);

/// A server with a login or TLS, and the files that its client reads whenever it opens a session.
#[derive(Debug)]
struct Running {
    _server: Etcd,
    #[cfg(feature = "tls")]
    _authorities: Vec<lockkit_testbed::Certificates>,
}

impl ExtraServers {
    /// Returns a client with this access, to the store with a login at this endpoint or to an additional server.
    pub(crate) async fn backend_for(
        &self,
        access: &Access,
        endpoint: &str,
        form: &Form,
    ) -> Result<AnyBackend> {
        let config = match access {
            Access::AllBut(name) => {
                restrict(endpoint, form.range(name)).await?;
                config(&format!("etcd://{endpoint}{}", form.tail("3s")))?.user(RESTRICTED, PASSWORD)
            }
            Access::Secret { text, right } => {
                let of_server = if *right { (*text).to_owned() } else { format!("{text}, but another") };
                let server = started(move || {
                    let mut server = Etcd::start()?;
                    server.enable_auth("app", &of_server)?;
                    Ok(server)
                });
                let server = server.await?;
                let config = config(&server.url())?.user("app", *text);
                self.keep(Running {
                    _server: server,
                    #[cfg(feature = "tls")]
                    _authorities: Vec::new(),
                });
                config
            }
            #[cfg(feature = "tls")]
            Access::Tls(shown) => self.with_tls(*shown).await?,
            _ => return access.unsupported(),
        };
        Ok(AnyBackend::new(EtcdBackend::new(config)))
    }

    #[cfg(feature = "tls")]
    async fn with_tls(&self, shown: lockkit_conformance::ShownCertificate) -> Result<EtcdConfig> {
        use lockkit_conformance::ShownCertificate;
        use lockkit_testbed::{Certificates, ServerCertificate};

        let certificate = match shown {
            ShownCertificate::Trusted | ShownCertificate::UnknownAuthority => ServerCertificate::Good,
            ShownCertificate::WrongName => ServerCertificate::WrongName,
            ShownCertificate::Expired => ServerCertificate::Expired,
            other => anyhow::bail!("no certificate that is {other:?}"),
        };
        let (authority, other) = (Certificates::new()?, Certificates::new()?);
        let (server, authority) =
            started(move || Ok((Etcd::start_tls(&authority, certificate, false)?, authority))).await?;
        let trusted = if shown == ShownCertificate::UnknownAuthority { &other } else { &authority };
        let tls = lockkit_etcd::Tls::new().ca(trusted.ca());
        let config = config(&server.url())?.tls(tls);
        self.keep(Running { _server: server, _authorities: vec![authority, other] });
        Ok(config)
    }

    fn keep(&self, running: Running) {
        lock(&self.0).push(running);
    }
}

fn config(url: &str) -> Result<EtcdConfig> {
    Ok(EtcdConfig::from_url(BackendUrl::parse(url)?)?)
}

/// Runs `start`, which blocks, outside of the executor.
async fn started<T: Send + 'static>(start: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(start).await?
}

/// Creates a user with read and write permission for all keys but those of this range.
async fn restrict(endpoint: &str, (start, end): (String, String)) -> Result<()> {
    const ROLE: &str = "all but one lock";
    let login = ConnectOptions::new().with_user("root", PASSWORD);
    let mut admin = Client::connect([endpoint], Some(login)).await?;
    admin.role_add(ROLE).await?;
    for permission in
        [Permission::read_write("\0").with_range_end(start), Permission::read_write(end).with_from_key()]
    {
        admin.role_grant_permission(ROLE, permission).await?;
    }
    admin.user_add(RESTRICTED, PASSWORD, None).await?;
    admin.user_grant_role(RESTRICTED, ROLE).await?;
    Ok(())
}
