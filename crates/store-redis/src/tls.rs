//! Which certificates are believed.

use std::path::Path;

use redis::TlsCertificates;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{Error, PemObject};

use crate::error::OpenError;

/// What the driver is given to believe the certificates of a file and no others.
pub(crate) fn roots(file: &Path) -> Result<TlsCertificates, OpenError> {
    let read = std::fs::read(file).map_err(|error| error.to_string()).and_then(|pem| check(&pem).map(|()| pem));
    match read {
        Ok(pem) => Ok(TlsCertificates { client_tls: None, root_cert: Some(pem) }),
        Err(reason) => Err(OpenError::Certificates { path: file.display().to_string(), reason }),
    }
}

/// The driver takes a file without any certificate, believes nobody, and does not say why.
fn check(pem: &[u8]) -> Result<(), String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate.map_err(reason)?).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() { Err("there is no certificate in it".into()) } else { Ok(()) }
}

/// The library's own text quotes the file, which may be one of keys that was named by mistake.
fn reason(error: Error) -> String {
    match error {
        Error::Io(error) => error.to_string(),
        Error::MissingSectionEnd { .. } => "it ends in the middle of a certificate".into(),
        _ => "it is not PEM".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(content: &str) -> String {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(&file, content).expect("written");
        let error = roots(file.path()).expect_err("nothing to believe").to_string();
        assert!(error.contains(&file.path().display().to_string()), "{error}");
        error
    }

    #[test]
    fn a_file_without_a_certificate_is_refused() {
        assert!(refused("").contains("no certificate"));
        let key = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";
        assert!(refused(key).contains("no certificate"));
        assert!(refused("-----BEGIN CERTIFICATE-----\nc2VjcmV0\n").contains("in the middle"));
        assert!(refused("-----BEGIN secret\n").contains("not PEM"));
        let nonsense = refused("-----BEGIN CERTIFICATE-----\nc2VjcmV0\n-----END CERTIFICATE-----\n");
        assert!(!nonsense.contains("secret") && !nonsense.contains("c2VjcmV0"), "{nonsense}");
    }

    #[test]
    fn a_file_that_is_not_there_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = roots(&folder.path().join("ca.pem")).expect_err("no file").to_string();
        assert!(error.contains("ca.pem") && error.contains("No such file"), "{error}");
    }
}
