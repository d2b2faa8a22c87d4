//! `/healthz`, `/readyz` and `/metrics` of a worker, for whoever looks after the process.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::worker::common::Common;
use crate::worker::lane::Lane;

/// A worker that has not heard from a server for this long is not ready.
const SILENCE_UNTIL_UNREADY: Duration = Duration::from_secs(30);
/// Heartbeats that fail for this long, over connections that were made anew: something in this process is broken.
const SILENCE_UNTIL_UNHEALTHY: Duration = Duration::from_mins(5);
/// Requests answered at once; this page is for a few probes.
const CONNECTIONS: usize = 32;
const REQUEST_WITHIN: Duration = Duration::from_secs(5);
const LONGEST_REQUEST: usize = 8 * 1024;

/// What the page shows.
pub(crate) struct HealthPage {
    pub(crate) common: Arc<Common>,
    pub(crate) lanes: Arc<[Arc<Lane>]>,
}

impl HealthPage {
    fn answer(&self, path: &str) -> (u16, &'static str, String) {
        const TEXT: &str = "text/plain; charset=utf-8";
        let silence = self.common.stats.silence();
        let silent = || format!("no server has answered for {} s\n", silence.as_secs());
        match path {
            "/healthz" if silence > SILENCE_UNTIL_UNHEALTHY => (503, TEXT, silent()),
            "/healthz" => (200, TEXT, "ok\n".to_owned()),
            "/readyz" if self.common.stopping.is_stopped() => (503, TEXT, "shutting down\n".to_owned()),
            "/readyz" if self.lanes.iter().any(|lane| lane.identity.worker_id().is_none()) => {
                (503, TEXT, "not registered with a server\n".to_owned())
            }
            "/readyz" if silence > SILENCE_UNTIL_UNREADY => (503, TEXT, silent()),
            "/readyz" => (200, TEXT, "ready\n".to_owned()),
            "/metrics" => {
                let text = self.common.stats.render(&self.lanes, &self.common.breakers.states());
                (200, "text/plain; version=0.0.4; charset=utf-8", text)
            }
            _ => (404, TEXT, "there is /healthz, /readyz and /metrics\n".to_owned()),
        }
    }
}

/// Serves the page, for ever.
pub(crate) async fn serve(listener: std::net::TcpListener, page: HealthPage) {
    let listener = match listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener)) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "cannot serve the health page");
            return;
        }
    };
    let (page, room) = (Arc::new(page), Arc::new(Semaphore::new(CONNECTIONS)));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let page = Arc::clone(&page);
        tokio::spawn(async move {
            let _permit = permit;
            // A probe that breaks off has itself to blame.
            let _ = tokio::time::timeout(REQUEST_WITHIN, respond(stream, &page)).await;
        });
    }
}

async fn respond(mut stream: TcpStream, page: &HealthPage) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > LONGEST_REQUEST || stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let head = String::from_utf8_lossy(&request);
    let path = head.split_whitespace().nth(1).unwrap_or_default();
    let (status, kind, body) = page.answer(path.split('?').next().unwrap_or_default());
    let reason = match status {
        200 => "OK",
        404 => "Not Found",
        _ => "Service Unavailable",
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status} {reason}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}
