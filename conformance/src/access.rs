//! Clients with special credentials, rights or trust.

use anyhow::{Result, bail};
use lockkit_core::LockName;

use crate::Hook;

/// What distinguishes a client from the others of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// It connects over TLS to a server that shows this certificate.
    Tls(ShownCertificate),
    /// It has this secret, such as a password, in its configuration.
    Secret {
        /// The secret: plain ASCII, which must not appear in any output.
        text: &'static str,
        /// Whether the server accepts it.
        right: bool,
    },
    /// It may use every lock but this.
    AllBut(LockName),
}

/// The certificate that a server shows to a TLS client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShownCertificate {
    /// One that the client can trust.
    Trusted,
    /// One of an authority that the client does not know.
    UnknownAuthority,
    /// One for another server.
    WrongName,
    /// One that has expired.
    Expired,
}

impl Access {
    /// The hook that this access needs.
    pub fn hook(&self) -> Hook {
        match self {
            Self::Tls(_) => Hook::Tls,
            Self::Secret { .. } => Hook::Secret,
            Self::AllBut(_) => Hook::DenyLock,
        }
    }

    /// Returns the error of a store that has no such hook.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn unsupported<T>(&self) -> Result<T> {
        bail!("the harness declares {:?}, but its store has no such client", self.hook())
    }
}
