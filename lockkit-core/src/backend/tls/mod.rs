//! TLS towards a store: whom to trust, and who to be.
//!
//! What is the same for every client crate: the options, the files, and what a failed handshake says. A backend adds how
//! its client crate takes the texts of the files. The part that needs a TLS library is behind the feature `tls`.

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

/// TLS towards a store: whom to trust, and who to be. Needs the feature `tls` of the backend.
///
/// The server's certificate must be valid now, for the name or address by which the server is named, and issued by an
/// authority that is trusted. There is no way to turn that off, and no way back to a connection without TLS.
///
/// The files are PEM, and are read whenever a session or a connection begins: renewed certificates need no restart.
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
    /// Trusts the authorities that the system trusts, and shows no certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the authorities in this file, and no other.
    #[must_use]
    pub fn ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca = Some(file.into());
        self
    }

    /// Shows this certificate, with the chain up to its authority where the server needs it, to a server that asks for
    /// one.
    #[must_use]
    pub fn identity(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity = Some((certificate.into(), key.into()));
        self
    }

    /// Takes the options `ca`, `cert` and `key` out of a URL.
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
    /// The first file that cannot be read, or holds nothing of what it is for: client crates take an empty file of
    /// authorities for "trust nobody".
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
    /// The authorities to trust; none: those that the system trusts.
    pub ca: Option<String>,
    /// The certificate to show, and its key: a secret.
    pub identity: Option<(String, String)>,
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A file of certificates may hold the key as well.
        let Self { ca, identity } = self;
        f.debug_struct("Pem")
            .field("ca", &ca.as_ref().map(|_| "***"))
            .field("identity", &identity.as_ref().map(|_| "***"))
            .finish()
    }
}

/// A file of [`Tls`] that is of no use; its text names the file and the option.
#[derive(Clone, Debug)]
pub struct UnusableFile(String);

impl fmt::Display for UnusableFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for UnusableFile {}

/// A PEM file with at least one section of this kind.
fn read(file: &Path, option: &str, section: &str) -> Result<String, UnusableFile> {
    let unusable = |why: &dyn fmt::Display| {
        UnusableFile(format!("TLS file {} (option {option:?}): {why}", file.display()))
    };
    let text = std::fs::read_to_string(file).map_err(|cause| unusable(&cause))?;
    let has_section = text.lines().any(|line| line.starts_with("-----BEGIN ") && line.contains(section));
    if has_section { Ok(text) } else { Err(unusable(&format!("no PEM section {section:?} in it"))) }
}

/// Without the feature `tls` nobody speaks TLS, and nobody distrusts.
#[cfg(not(feature = "tls"))]
pub fn is_distrust(_cause: &(dyn StdError + 'static)) -> bool {
    false
}

#[cfg(not(feature = "tls"))]
impl Tls {
    /// Without the feature `tls` nobody is asked.
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
    fn options_say_whom_to_trust_and_who_to_be() {
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
    fn files_are_read_anew_and_the_key_is_printed_nowhere() {
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
    fn a_file_of_no_use_is_named_with_its_option() {
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
