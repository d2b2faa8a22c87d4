//! Folders that the benchmark makes for itself and takes away again.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A folder that is removed, with everything in it, when this is dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// A new folder in another one, which nobody else can look into.
    pub fn new_in(parent: &Path, name: &str) -> io::Result<Self> {
        let path = parent.join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(folder = %self.path.display(), %error, "could not remove a folder of the benchmark");
        }
    }
}
