//! TLS settings of a connection to a store: trusted authorities and client certificate.
//!
//! This module contains what is the same for every client crate: the options, the files, and the reason of a failed
//! handshake. A backend passes the texts of the files to its client crate. The part that needs a TLS library is behind
//! the feature `tls`.

#[cfg(feature = "tls")]
mod trust;

use std::{
    error::Error as StdError,
    fmt,
    path::{Path, PathBuf},
};
#[cfg(not(feature = "tls"))]
use std::{io, time::Duration};

#[cfg(feature = "tls")]
pub use self::trust::{can_be_certified, is_distrust};
use super::BackendUrl;
use crate::{Error, ErrorKind, Result};

/// TLS settings of a connection to a store: trusted authorities and client certificate. Needs the feature `tls` of the
/// backend.
///
/// The server's certificate must be valid now, match the configured name or address of the server, and be issued by a
/// trusted authority. This check cannot be disabled, and there is no fallback to a connection without TLS.
///
/// The files are PEM, and are read whenever a session or a connection starts: renewed certificates need no restart.
///
/// ```
/// use lockkit_core::backend::tls::Tls;
///
/// let tls = Tls::new().ca("/etc/etcd/ca.pem").identity("/etc/app/app.pem", "/etc/app/app-key.pem");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    ca: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Trusts the authorities of the system, and presents no certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts only the authorities in this file.
    #[must_use]
    pub fn ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca = Some(file.into());
        self
    }

    /// Presents this certificate to a server that requests one. The file contains the chain up to the authority if the
    /// server needs it.
    #[must_use]
    pub fn identity(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity = Some((certificate.into(), key.into()));
        self
    }

    /// Removes the options `ca`, `cert` and `key` from a URL.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for a certificate without its key, or a key without its certificate.
    pub fn take_from(url: &mut BackendUrl) -> Result<Self> {
        let tls = url.take("ca").into_iter().fold(Self::new(), Self::ca);
        match (url.take("cert"), url.take("key")) {
            (Some(certificate), Some(key)) => Ok(tls.identity(certificate, key)),
            (None, None) => Ok(tls),
            _ => Err(Error::new(ErrorKind::InvalidConfig, "parse backend URL")
                .with_message("TLS takes a certificate (cert) together with its key (key), or neither")),
        }
    }

    /// Reads the files.
    ///
    /// # Errors
    ///
    /// The first file that cannot be read or lacks the expected PEM section. Client crates would take an empty file of
    /// authorities as "trust nobody".
    pub fn read(&self) -> Result<Pem, UnusableFile> {
        let ca = self.ca.as_deref().map(|ca| read(ca, "ca", "CERTIFICATE")).transpose()?;
        let identity = match &self.identity {
            None => None,
            Some((certificate, key)) => {
                Some((read(certificate, "cert", "CERTIFICATE")?, read(key, "key", "PRIVATE KEY")?))
            }
        };
        Ok(Pem { ca, identity })
    }
}

/// The texts of the files of [`Tls`].
#[derive(Clone)]
#[non_exhaustive]
pub struct Pem {
    /// The authorities to trust; `None` for those of the system.
    pub ca: Option<String>,
    /// The certificate to present, and its key, which is a secret.
    pub identity: Option<(String, String)>,
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A file of certificates may contain the key as well.
        let Self { ca, identity } = self;
        f.debug_struct("Pem")
            .field("ca", &ca.as_ref().map(|_| "***"))
            .field("identity", &identity.as_ref().map(|_| "***"))
            .finish()
    }
}

/// The error of an unusable file of [`Tls`]; its text names the file and the option.
#[derive(Clone, Debug)]
pub struct UnusableFile(String);

impl fmt::Display for UnusableFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for UnusableFile {}

/// Reads a PEM file with at least one section of this kind.
fn read(file: &Path, option: &str, section: &str) -> Result<String, UnusableFile> {
    let unusable = |why: &dyn fmt::Display| {
        UnusableFile(format!("TLS file {} (option {option:?}): {why}", file.display()))
    };
    let text = std::fs::read_to_string(file).map_err(|cause| unusable(&cause))?;
    let has_section = text.lines().any(|line| line.starts_with("-----BEGIN ") && line.contains(section));
    if has_section { Ok(text) } else { Err(unusable(&format!("no PEM section {section:?} in it"))) }
}

/// Returns false: without the feature `tls` there are no TLS errors.
#[cfg(not(feature = "tls"))]
pub fn is_distrust(_cause: &(dyn StdError + 'static)) -> bool {
    false
}

#[cfg(not(feature = "tls"))]
impl Tls {
    /// Returns `None`: without the feature `tls` no handshake is made.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it does nothing.
    pub async fn refusal(
        &self,
        _server: &str,
        _protocol: Option<&str>,
        _timeout: Duration,
    ) -> Option<io::Error> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
    const KEY: &str = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";

    fn taken(options: &str) -> Result<Tls> {
        let mut url = BackendUrl::parse(&format!("etcds://h/?{options}"))?;
        let tls = Tls::take_from(&mut url)?;
        url.finish().map(|()| tls)
    }

    #[test]
    fn options_set_authorities_and_identity() {
        assert_eq!(taken("").unwrap(), Tls::new());
        assert_eq!(
            taken("ca=/ca.pem&cert=/a.pem&key=/a-key.pem").unwrap(),
            Tls::new().ca("/ca.pem").identity("/a.pem", "/a-key.pem")
        );
        for options in ["cert=/a.pem", "key=/a-key.pem", "verify=no"] {
            assert_eq!(taken(options).unwrap_err().kind(), ErrorKind::InvalidConfig, "{options}");
        }
    }

    #[test]
    fn files_are_read_on_each_call_and_debug_hides_the_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let tls = Tls::new().ca(file("ca")).identity(file("cert"), file("key"));
        let combined = format!("{CERTIFICATE}{KEY}");
        for name in ["ca", "cert"] {
            std::fs::write(file(name), &combined).unwrap();
        }
        assert!(tls.read().is_err());
        std::fs::write(file("key"), KEY).unwrap();
        let pem = tls.read().unwrap();
        assert_eq!(
            (pem.ca.as_deref(), &pem.identity),
            (Some(&*combined), &Some((combined.clone(), KEY.into())))
        );
        assert!(!format!("{pem:?}").contains("c2VjcmV0"), "{pem:?}");
        let nothing = Tls::new().read().unwrap();
        assert!(nothing.ca.is_none() && nothing.identity.is_none());
    }

    #[test]
    fn file_that_only_mentions_a_section_is_unusable() {
        let folder = tempfile::tempdir().unwrap();
        let ca = folder.path().join("ca.pem");
        std::fs::write(&ca, "The CERTIFICATE is missing.\n-----END CERTIFICATE-----\n").unwrap();
        assert!(Tls::new().ca(&ca).read().is_err());
    }

    #[test]
    fn unusable_file_is_reported_with_its_option() {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = (folder.path().join("a.pem"), folder.path().join("a-key.pem"));
        std::fs::write(&certificate, CERTIFICATE).unwrap();
        std::fs::write(&key, KEY).unwrap();
        let missing = folder.path().join("missing");
        let tls = Tls::new().ca(&certificate);
        for (tls, option, file, why) in [
            (Tls::new().ca(&missing), "ca", &missing, "No such file"),
            (Tls::new().ca(&key), "ca", &key, "no PEM section \"CERTIFICATE\""),
            (tls.clone().identity(&key, &key), "cert", &key, "no PEM section \"CERTIFICATE\""),
            (tls.identity(&certificate, &certificate), "key", &certificate, "no PEM section \"PRIVATE KEY\""),
        ] {
            let error = tls.read().unwrap_err().to_string();
            let begins = format!("TLS file {} (option {option:?}): ", file.display());
            assert!(error.starts_with(&begins) && error.contains(why), "{error}");
        }
    }
}
