//! A lean HTTP/1.1 client: one keep-alive connection over TCP, one request at a time, buffers reused.
//!
//! It exists because the crash test has to know whether a request can have reached the server: a refused connection is a
//! sure no, everything after the first byte was written is unknown.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Largest answer that is read: a page of a thousand tasks with their results stays well below.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No byte of the request left: the server surely did nothing.
    #[error("not sent: {0}")]
    NotSent(io::Error),
    /// The request, or a part of it, left and no whole answer came back: nobody knows what the server did.
    #[error("no answer: {0}")]
    Unknown(io::Error),
}

/// An answer; the body is lent from the connection's buffer.
#[derive(Debug)]
pub struct Answer<'a> {
    /// The HTTP status.
    pub status: u16,
    /// The body, decoded from its transfer encoding.
    pub body: &'a [u8],
}

/// One keep-alive connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    decoded: Vec<u8>,
}

/// Writes a whole request to `request`, which is cleared first.
pub fn write_request(request: &mut Vec<u8>, method: &str, path: &str, body: &[u8]) {
    request.clear();
    request.extend_from_slice(method.as_bytes());
    request.push(b' ');
    request.extend_from_slice(path.as_bytes());
    request.extend_from_slice(b" HTTP/1.1\r\nhost: windlass\r\n");
    if !body.is_empty() || method == "POST" {
        request.extend_from_slice(b"content-type: application/json\r\ncontent-length: ");
        request.extend_from_slice(body.len().to_string().as_bytes());
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    request.extend_from_slice(body);
}

impl Connection {
    /// Connects. Small requests must not wait for more to send, so Nagle's algorithm is off.
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, received: Vec::with_capacity(16 * 1024), decoded: Vec::new() })
    }

    /// Sends a request made by [`write_request`] and waits for the answer.
    pub async fn exchange(&mut self, request: &[u8]) -> io::Result<Answer<'_>> {
        self.stream.write_all(request).await?;
        self.received.clear();
        let head_end = self.receive_head().await?;
        let head = Head::parse(&self.received[..head_end])?;
        match head.body {
            BodyLength::Known(length) => {
                self.receive_until(head_end + length).await?;
                Ok(Answer { status: head.status, body: &self.received[head_end..head_end + length] })
            }
            BodyLength::Chunked => {
                self.receive_chunks(head_end).await?;
                Ok(Answer { status: head.status, body: &self.decoded })
            }
        }
    }

    async fn receive_head(&mut self) -> io::Result<usize> {
        let mut searched = 0;
        loop {
            if let Some(at) = find(&self.received[searched..], b"\r\n\r\n") {
                return Ok(searched + at + 4);
            }
            // The end mark may be cut by the edge of what was read.
            searched = self.received.len().saturating_sub(3);
            self.receive_more().await?;
        }
    }

    async fn receive_chunks(&mut self, mut at: usize) -> io::Result<()> {
        self.decoded.clear();
        loop {
            let line_end = loop {
                if let Some(end) = find(&self.received[at..], b"\r\n") {
                    break at + end;
                }
                self.receive_more().await?;
            };
            let text = std::str::from_utf8(&self.received[at..line_end]).map_err(|_| malformed("chunk size"))?;
            let size = text.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).map_err(|_| malformed("chunk size"))?;
            if size > ANSWER_BYTES_MAX {
                return Err(malformed("chunk too large"));
            }
            let chunk_end = line_end + 2 + size;
            self.receive_until(chunk_end + 2).await?;
            if size == 0 {
                return Ok(());
            }
            self.decoded.extend_from_slice(&self.received[line_end + 2..chunk_end]);
            at = chunk_end + 2;
        }
    }

    async fn receive_until(&mut self, length: usize) -> io::Result<()> {
        while self.received.len() < length {
            self.receive_more().await?;
        }
        Ok(())
    }

    async fn receive_more(&mut self) -> io::Result<()> {
        if self.received.len() > ANSWER_BYTES_MAX {
            return Err(malformed("answer too large"));
        }
        if self.stream.read_buf(&mut self.received).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "connection closed before the answer was whole"));
        }
        Ok(())
    }
}

enum BodyLength {
    Known(usize),
    Chunked,
}

struct Head {
    status: u16,
    body: BodyLength,
}

impl Head {
    fn parse(head: &[u8]) -> io::Result<Self> {
        let text = std::str::from_utf8(head).map_err(|_| malformed("head"))?;
        let mut lines = text.split("\r\n");
        let status_line = lines.next().unwrap_or_default();
        let status = status_line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status: u16 = status.ok_or_else(|| malformed("status line"))?;
        let mut body = BodyLength::Known(0);
        for line in lines {
            let Some((name, value)) = line.split_once(':') else { continue };
            if name.eq_ignore_ascii_case("content-length") {
                let length: usize = value.trim().parse().map_err(|_| malformed("content-length"))?;
                if length > ANSWER_BYTES_MAX {
                    return Err(malformed("answer too large"));
                }
                body = BodyLength::Known(length);
            } else if name.eq_ignore_ascii_case("transfer-encoding") && value.trim().eq_ignore_ascii_case("chunked") {
                body = BodyLength::Chunked;
            }
        }
        Ok(Self { status, body })
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the answer is not HTTP as expected: {what}"))
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

/// A client that connects when it has to and keeps the connection as long as it works.
#[derive(Debug)]
pub struct Client {
    address: SocketAddr,
    connection: Option<Connection>,
    request: Vec<u8>,
    timeout: Duration,
}

impl Client {
    /// A client of one server; a call that takes longer than `timeout` counts as unknown.
    pub fn new(address: SocketAddr, timeout: Duration) -> Self {
        Self { address, connection: None, request: Vec::new(), timeout }
    }

    /// One call. After any error the connection is dropped, so that a late answer cannot be taken for the next one.
    pub async fn call(&mut self, method: &str, path: &str, body: &[u8]) -> Result<(u16, Vec<u8>), CallError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => match tokio::time::timeout(self.timeout, Connection::open(self.address)).await {
                Ok(opened) => opened.map_err(CallError::NotSent)?,
                Err(_) => return Err(CallError::NotSent(io::Error::from(io::ErrorKind::TimedOut))),
            },
        };
        write_request(&mut self.request, method, path, body);
        let answer = match tokio::time::timeout(self.timeout, connection.exchange(&self.request)).await {
            Ok(answer) => answer.map_err(CallError::Unknown)?,
            Err(_) => return Err(CallError::Unknown(io::Error::from(io::ErrorKind::TimedOut))),
        };
        let copied = (answer.status, answer.body.to_vec());
        self.connection = Some(connection);
        Ok(copied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// Serves one connection: reads each request head (and the body length given), answers with the next canned text in
    /// the pieces given, then closes.
    async fn canned(answers: Vec<Vec<&'static str>>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            for pieces in answers {
                let mut request = Vec::new();
                while find(&request, b"\r\n\r\n").is_none() {
                    if stream.read_buf(&mut request).await.unwrap() == 0 {
                        return;
                    }
                }
                for piece in pieces {
                    stream.write_all(piece.as_bytes()).await.unwrap();
                    stream.flush().await.unwrap();
                    tokio::task::yield_now().await;
                }
            }
        });
        address
    }

    fn client(address: SocketAddr) -> Client {
        Client::new(address, Duration::from_secs(5))
    }

    #[tokio::test]
    async fn answers_in_pieces_and_several_on_one_connection() {
        let address = canned(vec![
            vec!["HTTP/1.1 201 Created\r\nConte", "nt-Length: 5\r\n\r", "\nhe", "llo"],
            vec!["HTTP/1.1 204 No Content\r\n\r\n"],
            vec!["HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", "2;x=y\r\nde\r", "\n0\r\n\r\n"],
        ])
        .await;
        let mut client = client(address);
        assert_eq!(client.call("GET", "/", b"").await.unwrap(), (201, b"hello".to_vec()));
        assert_eq!(client.call("GET", "/", b"").await.unwrap(), (204, Vec::new()));
        assert_eq!(client.call("GET", "/", b"").await.unwrap(), (200, b"abcde".to_vec()));
    }

    #[tokio::test]
    async fn a_cut_answer_is_unknown() {
        let address = canned(vec![vec!["HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"]]).await;
        let failed = client(address).call("GET", "/", b"").await;
        assert!(matches!(failed, Err(CallError::Unknown(_))), "{failed:?}");
    }

    #[tokio::test]
    async fn a_refused_connection_is_surely_not_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let failed = client(address).call("GET", "/", b"").await;
        assert!(matches!(failed, Err(CallError::NotSent(_))), "{failed:?}");
    }

    #[tokio::test]
    async fn nonsense_is_refused() {
        for text in ["SMTP ready\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n"] {
            let address = canned(vec![vec![text]]).await;
            assert!(client(address).call("GET", "/", b"").await.is_err(), "{text}");
        }
    }

    #[test]
    fn requests_carry_their_length() {
        let mut request = Vec::new();
        write_request(&mut request, "POST", "/x", b"{}");
        let text = String::from_utf8(request.clone()).unwrap();
        assert!(text.starts_with("POST /x HTTP/1.1\r\n") && text.ends_with("content-length: 2\r\n\r\n{}"), "{text}");
        write_request(&mut request, "GET", "/y", b"");
        assert!(!String::from_utf8(request).unwrap().contains("content-length"));
    }
}
