//! The program's three streams, each with its bound.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;

/// As much as a pipe holds, so one read empties it.
const CHUNK_BYTES: usize = 64 << 10;

/// Stands where the beginning of stderr was cut off.
const CUT_MARK: &str = "…";

/// Writes the input, then closes stdin.
#[derive(Debug)]
pub(crate) struct Input {
    pipe: Option<pipe::Sender>,
    bytes: Vec<u8>,
    written: usize,
}

impl Input {
    pub(crate) fn new(pipe: OwnedFd, bytes: Vec<u8>) -> io::Result<Self> {
        let pipe = if bytes.is_empty() { None } else { Some(pipe::Sender::from_owned_fd(pipe)?) };
        Ok(Self { pipe, bytes, written: 0 })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    /// Writes some more. Safe to drop and to call again. A program that closes its stdin has read what it wanted.
    pub(crate) async fn feed(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        match pipe.write(&self.bytes[self.written..]).await {
            Ok(count) if count > 0 && self.written + count < self.bytes.len() => self.written += count,
            Ok(_) | Err(_) => self.pipe = None,
        }
    }
}

/// Reads a stream of the program to its end, whatever becomes of the bytes: a full pipe would block the program.
#[derive(Debug)]
pub(crate) struct Output<Kept> {
    pipe: Option<pipe::Receiver>,
    chunk: Vec<u8>,
    pub(crate) kept: Kept,
}

/// What is done with what a stream brings.
pub(crate) trait Keep {
    fn take(&mut self, bytes: &[u8]);
}

impl<Kept: Keep> Output<Kept> {
    pub(crate) fn new(pipe: OwnedFd, kept: Kept) -> io::Result<Self> {
        Ok(Self { pipe: Some(pipe::Receiver::from_owned_fd(pipe)?), chunk: Vec::new(), kept })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    /// Reads some more. Safe to drop and to call again.
    pub(crate) async fn drain(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        self.chunk.resize(CHUNK_BYTES, 0);
        match pipe.read(&mut self.chunk).await {
            Ok(count) if count > 0 => self.kept.take(&self.chunk[..count]),
            Ok(_) | Err(_) => {
                self.pipe = None;
                self.chunk = Vec::new();
            }
        }
    }
}

/// The beginning, up to a limit, and whether there was more.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) bytes: Vec<u8>,
    pub(crate) limit: usize,
    pub(crate) exceeded: bool,
}

impl Head {
    pub(crate) fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit, exceeded: false }
    }
}

impl Keep for Head {
    fn take(&mut self, bytes: &[u8]) {
        let room = self.limit - self.bytes.len();
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.exceeded |= bytes.len() > room;
    }
}

/// The end, up to a limit.
#[derive(Debug)]
pub(crate) struct Tail {
    bytes: VecDeque<u8>,
    limit: usize,
    cut: bool,
}

impl Tail {
    pub(crate) fn new(limit: usize) -> Self {
        Self { bytes: VecDeque::new(), limit, cut: false }
    }

    /// As text of at most the limit, with the mark. What is not UTF-8 is replaced, which makes it longer, so the text is
    /// cut once more.
    pub(crate) fn into_text(mut self) -> String {
        if self.cut {
            // What was cut may have been the first half of a character.
            let halves = self.bytes.iter().take(3).take_while(|&&byte| byte & 0b1100_0000 == 0b1000_0000).count();
            self.bytes.drain(..halves);
        }
        let text = String::from_utf8_lossy(self.bytes.make_contiguous()).into_owned();
        if !self.cut && text.len() <= self.limit {
            return text;
        }
        let room = self.limit.saturating_sub(CUT_MARK.len());
        let from = text.ceil_char_boundary(text.len().saturating_sub(room));
        format!("{CUT_MARK}{}", &text[from..])
    }
}

impl Keep for Tail {
    fn take(&mut self, bytes: &[u8]) {
        self.bytes.extend(&bytes[bytes.len().saturating_sub(self.limit)..]);
        let excess = self.bytes.len().saturating_sub(self.limit);
        self.bytes.drain(..excess);
        self.cut |= excess > 0 || bytes.len() > self.limit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(limit: usize, pieces: &[&[u8]]) -> String {
        let mut tail = Tail::new(limit);
        for piece in pieces {
            tail.take(piece);
        }
        tail.into_text()
    }

    #[test]
    fn the_tail_is_cut_at_the_front_between_characters() {
        assert_eq!(tail(8, &[]), "");
        assert_eq!(tail(8, &[b"12345678"]), "12345678");
        assert_eq!(tail(8, &[b"1234", b"56789"]), "…56789");
        assert_eq!(tail(8, &[b"123456789"]), "…56789");
        assert_eq!(tail(8, &["ääääää".as_bytes()]), "…ää");
        assert_eq!(tail(9, &["€€€€".as_bytes()]), "…€€");
        assert_eq!(tail(8, &[b"abcdefgh", "ä".as_bytes()]), "…fghä");
    }

    #[test]
    fn invalid_text_is_replaced_and_stays_within_the_limit() {
        assert_eq!(tail(8, &[b"a\xffb"]), "a\u{fffd}b");
        assert_eq!(tail(8, &[b"\xff\xff\xff\xff"]), "…\u{fffd}");
        for limit in 3..40 {
            assert!(tail(limit, &[&[0x80; 100], &[0xe2, 0x82]]).len() <= limit, "{limit}");
        }
    }

    #[test]
    fn the_head_knows_that_there_was_more() {
        let mut head = Head::new(4);
        head.take(b"1234");
        assert!(!head.exceeded);
        head.take(b"5");
        assert!(head.exceeded);
        assert_eq!(head.bytes, b"1234");
    }
}
