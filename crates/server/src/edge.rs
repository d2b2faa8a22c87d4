//! What happens to every request: it gets an id, its problem is written out, its time is counted.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::Instant;

use crate::engine::Engine;
use crate::labels::{RequestLabels, Route};
use crate::problem::{Code, Problem};

const REQUEST_ID: &str = "x-request-id";

/// Numbers the requests of this process. Unique is enough; nobody must be able to guess nothing.
static NEXT: AtomicU64 = AtomicU64::new(0);
/// Tells processes apart.
static PROCESS: LazyLock<u32> = LazyLock::new(|| uuid::Uuid::new_v4().as_fields().0);

/// The layer around all routes.
pub async fn edge(State(engine): State<Arc<Engine>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request_id(&request);
    let method = label_of(request.method());
    let route = Route(request.extensions().get::<MatchedPath>().cloned());
    let mut response = next.run(request).await;
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        if problem.code().status().as_u16() > 404 {
            engine.metrics.rejected(problem.code().as_str());
        }
        let allow = response.headers_mut().remove(header::ALLOW);
        response = problem.render(id.to_str().unwrap_or_default());
        if let Some(allow) = allow {
            response.headers_mut().insert(header::ALLOW, allow);
        }
    }
    let labels = RequestLabels { route, method, status: response.status().as_u16() };
    engine.metrics.request(&labels, started.elapsed().as_secs_f64());
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// The id that the client gave, if it is a sane one, else a fresh one.
fn request_id(request: &Request) -> HeaderValue {
    const LONGEST: usize = 128;
    let is_sane = |id: &&HeaderValue| {
        let sane_byte = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':');
        !id.is_empty() && id.len() <= LONGEST && id.as_bytes().iter().all(sane_byte)
    };
    if let Some(given) = request.headers().get(REQUEST_ID).filter(is_sane) {
        return given.clone();
    }
    let mut text = String::with_capacity(24);
    // Writing to a String cannot fail, and hex digits are always a header value.
    let _ = write!(text, "{:08x}-{:x}", *PROCESS, NEXT.fetch_add(1, Ordering::Relaxed));
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("unknown"))
}

/// Methods as labels; clients can invent methods, so the rest are one.
fn label_of(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        _ => "other",
    }
}

/// The answer where no route matches.
pub async fn no_route(request: Request) -> Problem {
    Problem::new(Code::NotFound, format!("there is no route {}; see /openapi.json", request.uri().path()))
}

/// The answer where a route does not know the method. The router adds `Allow`.
pub async fn no_method(request: Request) -> Problem {
    let detail = format!("{} does not know {}", request.uri().path(), request.method());
    Problem::new(Code::MethodNotAllowed, detail)
}
