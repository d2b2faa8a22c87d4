//! Calls over HTTP, to one of several servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};

use crate::error::{Error, Problem, Result, Unreachable};
use crate::transport::{Answer, Call, Method};

/// A server that does not even accept a connection by then is taken for gone.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Shorter than what servers and balancers commonly close idle connections after.
const IDLE_CONNECTION: Duration = Duration::from_secs(20);

/// Servers and how to talk to them.
#[derive(Debug)]
pub(crate) struct Http {
    addresses: Arc<[String]>,
    /// The server that answered last; everybody starts there.
    current: Arc<AtomicUsize>,
    headers: HeaderMap,
    client: reqwest::Client,
}

impl Http {
    /// Servers by their addresses, `http://HOST:PORT`.
    pub(crate) fn new(addresses: Vec<String>, api_key: Option<&str>) -> Result<Self> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(key) = api_key {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| Error::Address {
                address: addresses.join(","),
                reason: "the API key has characters that no key has".to_owned(),
            })?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let client = connections(&headers, &addresses)?;
        Ok(Self { addresses: addresses.into(), current: Arc::default(), headers, client })
    }

    pub(crate) fn with_own_connections(&self) -> Result<Self> {
        Ok(Self {
            addresses: Arc::clone(&self.addresses),
            current: Arc::clone(&self.current),
            headers: self.headers.clone(),
            client: connections(&self.headers, &self.addresses)?,
        })
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.addresses.to_vec()
    }

    /// Sends a call to the server that answered last; where that is surely not reached, to the others in turn.
    pub(crate) async fn send(&self, call: Call) -> Result<Answer, Unreachable> {
        let first = self.current.load(Ordering::Relaxed);
        let (mut reason, mut refusal) = (String::new(), None);
        for step in 0..self.addresses.len() {
            let index = (first + step) % self.addresses.len();
            match self.send_to(&self.addresses[index], &call).await {
                // A server that is about to stop or cannot reach its store: another one may do better.
                Ok(answer) if surely_not_done(&answer) && step + 1 < self.addresses.len() => refusal = Some(answer),
                Ok(answer) => {
                    // Where nobody knows what became of a call, it is for the caller to repeat it, elsewhere: this server
                    // may be the only one that cannot reach the store.
                    let next = if (502..=504).contains(&answer.status) { index + 1 } else { index };
                    self.current.store(next % self.addresses.len(), Ordering::Relaxed);
                    return Ok(answer);
                }
                // Nothing was sent, so another server may be asked.
                Err(error) if error.is_connect() => reason = innermost(&error),
                Err(error) => {
                    self.current.store((index + 1) % self.addresses.len(), Ordering::Relaxed);
                    let reason = innermost(&error);
                    return Err(Unreachable { addresses: self.addresses(), reason, may_have_happened: true });
                }
            }
        }
        // What somebody said says more than that the others were silent.
        refusal.ok_or_else(|| Unreachable { addresses: self.addresses(), reason, may_have_happened: false })
    }

    async fn send_to(&self, address: &str, call: &Call) -> Result<Answer, reqwest::Error> {
        let method = match call.method {
            Method::Get => reqwest::Method::GET,
            Method::Post => reqwest::Method::POST,
            Method::Put => reqwest::Method::PUT,
            Method::Patch => reqwest::Method::PATCH,
            Method::Delete => reqwest::Method::DELETE,
        };
        let mut request = self.client.request(method, format!("{address}{}", call.path)).timeout(call.timeout);
        if let Some(trace_parent) = &call.trace_parent {
            request = request.header("traceparent", trace_parent);
        }
        if let Some(body) = &call.body {
            request = request.body(body.clone());
        }
        let response = request.send().await?;
        let status = response.status().as_u16();
        Ok(Answer { status, body: response.bytes().await?, address: address.to_owned() })
    }
}

/// Whether a server refused a call for now and says that nothing happened.
fn surely_not_done(answer: &Answer) -> bool {
    answer.status == 503
        && serde_json::from_slice::<Problem>(&answer.body)
            .is_ok_and(|problem| problem.code == "draining" || problem.applied.as_deref() == Some("no"))
}

fn connections(headers: &HeaderMap, addresses: &[String]) -> Result<reqwest::Client> {
    reqwest::Client::builder()
        .default_headers(headers.clone())
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(IDLE_CONNECTION)
        .tcp_nodelay(true)
        // Windlass never redirects: whoever does is not Windlass.
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
        .map_err(|error| Error::Address { address: addresses.join(","), reason: innermost(&error) })
}

/// The cause at the bottom says what happened; the layers above only that something did.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
