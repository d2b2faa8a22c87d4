//! Certificates of an authority that nobody else knows, made anew for each test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// An authority.
pub struct Authority {
    pub certificate: PathBuf,
    key: PathBuf,
}

/// What a server shows, and the key to it.
pub struct Identity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    /// Its files are in the folder under this name.
    pub fn new(folder: &Path, name: &str) -> Self {
        let (certificate, key) = sign(folder, name, "basicConstraints = critical, CA:TRUE", None);
        Self { certificate, key }
    }

    /// Certifies the names, each as `DNS:…` or `IP:…`.
    pub fn certify(&self, folder: &Path, name: &str, names: &str) -> Identity {
        let (certificate, key) = sign(folder, name, &format!("subjectAltName = {names}"), Some(self));
        Identity { certificate, key }
    }
}

/// Makes a key and a certificate, by an authority or by itself.
fn sign(folder: &Path, name: &str, extension: &str, by: Option<&Authority>) -> (PathBuf, PathBuf) {
    let file = |ending: &str| folder.join(format!("{name}.{ending}"));
    let (settings, certificate, key) = (file("cnf"), file("pem"), file("key"));
    let text = format!(
        "[req]\nprompt = no\ndistinguished_name = name\nx509_extensions = extensions\n\
        [name]\nCN = {name}\n[extensions]\n{extension}\n"
    );
    std::fs::write(&settings, text).expect("a file");
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-days", "1", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
    command.arg("-config").arg(&settings).arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    if let Some(by) = by {
        command.arg("-CA").arg(&by.certificate).arg("-CAkey").arg(&by.key);
    }
    let made = command.output().expect("openssl is installed");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (certificate, key)
}
