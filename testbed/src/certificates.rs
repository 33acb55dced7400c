//! Certificates for servers and clients, valid ones and such as must be refused.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    date_time_ymd,
};
use tempfile::TempDir;

/// The certificate that a server presents to its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerCertificate {
    /// Valid, for the server's address.
    Good,
    /// Valid, for another server.
    WrongName,
    /// For the server's address, but expired.
    Expired,
}

/// A certificate and its private key, as PEM files.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Identity {
    /// Returns the URL with options that make a client present this certificate. `url` must already have the options of
    /// [`Certificates::trusted_in`].
    pub fn shown_in(&self, url: &str) -> String {
        format!("{url}&cert={}&key={}", self.certificate.display(), self.key.display())
    }
}

/// A certificate authority that only those trust who are given its [`ca`](Self::ca).
///
/// Dropping the value removes all its files.
#[derive(Debug)]
pub struct Certificates {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl Certificates {
    /// Makes a new authority.
    ///
    /// # Errors
    ///
    /// When its files cannot be written.
    pub fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut params = CertificateParams::new([])?;
        // Each authority has a name of its own, as real ones have. With a shared name, a certificate of another
        // authority would fail by its signature and not by its unknown issuer.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        params.distinguished_name.push(DnType::CommonName, format!("lockkit test authority {number}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let folder = TempDir::with_prefix("lockkit-certificates-")?;
        let certificates = Self { issuer, folder };
        fs::write(certificates.ca(), certificates.issuer.pem())?;
        Ok(certificates)
    }

    /// Returns the path of the authority's certificate, a PEM file.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Returns the URL with an option that makes a client trust this authority and no other.
    pub fn trusted_in(&self, url: &str) -> String {
        format!("{url}/?ca={}", self.ca().display())
    }

    /// Issues an identity for a client.
    ///
    /// # Errors
    ///
    /// When its files cannot be written.
    pub fn client(&self) -> Result<Identity> {
        let mut params = CertificateParams::new([])?;
        params.distinguished_name.push(DnType::CommonName, "client");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params, self.folder.path(), "client")
    }

    /// Issues an identity for a server at this address; the files are written to `folder`.
    pub(crate) fn server(
        &self,
        address: IpAddr,
        which: ServerCertificate,
        folder: &Path,
    ) -> Result<Identity> {
        let name = match which {
            ServerCertificate::WrongName => "elsewhere.example".to_owned(),
            ServerCertificate::Good | ServerCertificate::Expired => address.to_string(),
        };
        let mut params = CertificateParams::new([name])?;
        params.distinguished_name.push(DnType::CommonName, "server");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        if which == ServerCertificate::Expired {
            (params.not_before, params.not_after) = (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1));
        }
        self.issue(params, folder, "server")
    }

    fn issue(&self, params: CertificateParams, folder: &Path, name: &str) -> Result<Identity> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let identity = Identity {
            certificate: folder.join(format!("{name}.pem")),
            key: folder.join(format!("{name}-key.pem")),
        };
        fs::write(&identity.certificate, certificate.pem())?;
        fs::write(&identity.key, key.serialize_pem())?;
        Ok(identity)
    }
}
