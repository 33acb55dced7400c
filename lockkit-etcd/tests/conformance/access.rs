//! Clients that differ in whom they trust and in what they may do.

use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use etcd_client::{Client, ConnectOptions, Permission};
use lockkit_conformance::{Access, AnyBackend};
use lockkit_core::{LockName, backend::BackendUrl};
use lockkit_etcd::{EtcdBackend, EtcdConfig};
use lockkit_testbed::Etcd;

use crate::server::{PASSWORD, queue};

const RESTRICTED: &str = "restricted";

/// Servers beside the store, each there for one client; they run as long as this value.
#[derive(Debug, Default)]
pub(crate) struct Beside(Mutex<Vec<Running>>);

/// A server that logs in or speaks TLS, and what its client reads whenever a session begins.
#[derive(Debug)]
struct Running {
    _server: Etcd,
    #[cfg(feature = "tls")]
    _authorities: Vec<lockkit_testbed::Certificates>,
}

impl Beside {
    /// A client with this access: of the logged-in store at this endpoint, or of a server beside it.
    pub(crate) async fn backend_for(&self, access: &Access, endpoint: &str) -> Result<AnyBackend> {
        let config = match access {
            Access::AllBut(name) => {
                restrict(endpoint, name).await?;
                config(&format!("etcd://{endpoint}"))?.user(RESTRICTED, PASSWORD)
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
            #[cfg(not(feature = "tls"))]
            Access::Tls(_) => return access.unsupported(),
        };
        Ok(AnyBackend::new(EtcdBackend::new(config)))
    }

    #[cfg(feature = "tls")]
    async fn with_tls(&self, shown: lockkit_conformance::Shown) -> Result<EtcdConfig> {
        use lockkit_conformance::Shown;
        use lockkit_testbed::{Certificates, ServerCertificate};

        let certificate = match shown {
            Shown::Trusted | Shown::OfUnknownAuthority => ServerCertificate::Good,
            Shown::WithWrongName => ServerCertificate::WrongName,
            Shown::Expired => ServerCertificate::Expired,
        };
        let (authority, other) = (Certificates::new()?, Certificates::new()?);
        let (server, authority) =
            started(move || Ok((Etcd::start_tls(&authority, certificate, false)?, authority))).await?;
        let trusted = if shown == Shown::OfUnknownAuthority { &other } else { &authority };
        let tls = lockkit_etcd::Tls::new().ca(trusted.ca());
        let config = config(&server.url())?.tls(tls);
        self.keep(Running { _server: server, _authorities: vec![authority, other] });
        Ok(config)
    }

    fn keep(&self, running: Running) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(running);
    }
}

fn config(url: &str) -> Result<EtcdConfig> {
    Ok(EtcdConfig::from_url(BackendUrl::parse(url)?)?)
}

/// Starting blocks, so it is done beside the executor.
async fn started<T: Send + 'static>(start: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(start).await?
}

/// Makes a user who may do everything with all keys but those of this lock.
async fn restrict(endpoint: &str, name: &LockName) -> Result<()> {
    const ROLE: &str = "all but one lock";
    let (start, mut end) = (queue(name), queue(name));
    // The first key behind all that begin with the same text: `0` follows `/`.
    end.pop();
    end.push('0');
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
