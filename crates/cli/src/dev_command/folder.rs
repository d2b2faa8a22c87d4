//! Where `windlass dev` keeps its store.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A folder for the store; a throw-away one is removed when this is dropped.
#[derive(Debug)]
pub struct StoreFolder {
    path: PathBuf,
    is_kept: bool,
}

impl StoreFolder {
    /// A folder that somebody wants to keep. The store makes it if it is not there.
    pub fn kept(path: &Path) -> Self {
        Self { path: path.to_owned(), is_kept: true }
    }

    /// A new folder that nobody else can look into.
    pub fn throw_away() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("windlass-dev-{}", uuid::Uuid::new_v4().simple()));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path, is_kept: false })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it stays.
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }
}

impl Drop for StoreFolder {
    fn drop(&mut self) {
        if !self.is_kept
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            tracing::warn!(folder = %self.path.display(), %error, "could not remove the temporary store");
        }
    }
}
