//! The keeper's end of the control socket.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::protocol::{TERMINATE, Word};

#[derive(Debug)]
pub(super) struct Control {
    socket: UnixStream,
}

/// What the worker wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    Terminate,
    /// Said so, or dropped the run, or died.
    Kill,
}

impl Control {
    pub(super) fn new(socket: UnixStream) -> Self {
        Self { socket }
    }

    /// The next wish. Safe to drop and to call again.
    pub(super) async fn next(&mut self) -> Wish {
        let mut word = [0];
        match self.socket.read(&mut word).await {
            Ok(1) if word[0] == TERMINATE => Wish::Terminate,
            Ok(_) | Err(_) => Wish::Kill,
        }
    }

    /// Tells the worker. If it is gone there is nobody to tell, and the next wish will be to kill.
    pub(super) async fn say(&mut self, word: &Word) {
        self.socket.write_all(format!("{word}\n").as_bytes()).await.ok();
    }
}
