//! Connections: accepted up to a bound, served as HTTP/1.1 or HTTP/2, ended gracefully.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::config::ServerConfig;

/// Streams that one HTTP/2 connection may have open at once.
const HTTP2_STREAMS: u32 = 1_000;
/// Without any file handle left, accepting fails at once; do not spin on it.
const AFTER_ACCEPT_FAILURE: Duration = Duration::from_millis(50);
/// At shutdown a connection that never had a request may take this long to bring one.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Serves connections until `stop` resolves, then lets requests that run finish.
pub async fn serve(listener: TcpListener, router: Router, config: &ServerConfig, stop: impl Future<Output = ()>) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(config.header_timeout);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS)
        .keep_alive_interval(config.header_timeout);
    let builder = Arc::new(builder);
    let room = Arc::new(Semaphore::new(config.max_connections));
    let graceful = GracefulShutdown::new();
    let header_timeout = config.header_timeout;
    let (close, closing) = watch::channel(false);
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => break,
            accepted = accept(&listener, &room) => accepted,
        };
        let Some((stream, permit)) = accepted else { continue };
        let (router, closing) = (router.clone(), closing.clone());
        let (builder, watcher) = (Arc::clone(&builder), graceful.watcher());
        tokio::spawn(async move {
            let _permit = permit;
            let begun = AtomicBool::new(false);
            let served = async {
                // Hyper waits without end for the bytes that tell HTTP/2 from HTTP/1.
                if !tokio::time::timeout(header_timeout, shows_protocol(&stream)).await.unwrap_or(false) {
                    return;
                }
                let routes = TowerToHyperService::new(router);
                let service = service_fn(|request: Request<Incoming>| {
                    begun.store(true, Ordering::Relaxed);
                    routes.call(request)
                });
                let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
                if let Err(error) = watcher.watch(connection).await {
                    tracing::debug!(%error, "a connection ended early");
                }
            };
            tokio::select! {
                () = served => {}
                () = closing_unused(closing, &begun) => {}
            }
        });
    }
    drop(listener);
    close.send_replace(true);
    if tokio::time::timeout(config.shutdown_timeout, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests did not finish in time and were cut off");
    }
}

/// Resolves at shutdown for a connection that has had no request: nobody waits for an answer
/// on it, and hyper would wait for its first request.
async fn closing_unused(mut closing: watch::Receiver<bool>, begun: &AtomicBool) {
    // An error means that the server is gone, which is closing too.
    let _ = closing.wait_for(|closing| *closing).await;
    tokio::time::sleep(LAST_WORDS).await;
    if begun.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
}

/// Whether enough was sent to tell the protocol; false if the client is gone.
async fn shows_protocol(stream: &TcpStream) -> bool {
    const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const NEXT_LOOK: Duration = Duration::from_millis(10);
    let mut seen = [0; PREFACE.len()];
    loop {
        match stream.peek(&mut seen).await {
            Ok(0) | Err(_) => return false,
            // Peeked bytes stay readable, so waiting for more of them means looking again.
            Ok(n) if n < PREFACE.len() && PREFACE.starts_with(&seen[..n]) => tokio::time::sleep(NEXT_LOOK).await,
            Ok(_) => return true,
        }
    }
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // Answers are small and written at once: waiting to fill a packet only adds delay.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "could not set TCP_NODELAY");
            }
            Some((stream, permit))
        }
        Err(error) => {
            tracing::warn!(%error, "could not accept a connection");
            tokio::time::sleep(AFTER_ACCEPT_FAILURE).await;
            None
        }
    }
}
