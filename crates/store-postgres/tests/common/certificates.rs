//! Certificates, made by `openssl` as administrators of databases do.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::server::{run, unprivileged};

/// What certificates are for, and the one name that those of servers have.
const KINDS: &str = "
[req]
distinguished_name = name
[name]
[root]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
[server]
basicConstraints = critical, CA:FALSE
extendedKeyUsage = serverAuth
subjectAltName = DNS:localhost
";

/// A root and its key, in files of the user that the server runs as.
pub struct Root {
    folder: PathBuf,
    /// Its certificate.
    pub certificate: PathBuf,
    /// What it signs with.
    pub key: PathBuf,
}

impl Root {
    /// All have the same name, as a forged one would; `file` keeps them apart.
    pub fn new(folder: &Path, file: &str) -> Self {
        std::fs::write(folder.join("kinds"), KINDS).expect("written");
        std::fs::set_permissions(folder.join("kinds"), PermissionsExt::from_mode(0o644)).expect("readable for openssl");
        let root = Self {
            folder: folder.to_owned(),
            certificate: folder.join(format!("{file}.pem")),
            key: folder.join(format!("{file}.key")),
        };
        let how = ["-x509", "-extensions", "root", "-days", "30", "-subj", "/CN=A root for tests"];
        root.request(&how, &root.key, &root.certificate);
        root
    }

    /// A certificate made out to `localhost`, and its key.
    pub fn server(&self) -> (PathBuf, PathBuf) {
        let [certificate, key, wish] = ["server.pem", "server.key", "server.csr"].map(|file| self.folder.join(file));
        self.request(&["-subj", "/CN=localhost"], &key, &wish);
        run(unprivileged("openssl")
            .args(["x509", "-req", "-days", "30", "-CAcreateserial", "-extensions", "server", "-extfile"])
            .arg(self.folder.join("kinds"))
            .arg("-CA")
            .arg(&self.certificate)
            .arg("-CAkey")
            .arg(&self.key)
            .arg("-in")
            .arg(wish)
            .arg("-out")
            .arg(&certificate));
        (certificate, key)
    }

    fn request(&self, how: &[&str], key: &Path, out: &Path) {
        run(unprivileged("openssl")
            .args(["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-config"])
            .arg(self.folder.join("kinds"))
            .args(how)
            .arg("-keyout")
            .arg(key)
            .arg("-out")
            .arg(out));
        // The server takes no key that others could read.
        std::fs::set_permissions(key, PermissionsExt::from_mode(0o600)).expect("only for its owner");
    }
}
