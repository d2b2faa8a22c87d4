//! How calls reach Windlass: over HTTP, or straight into the engine in this process. The
//! calls are the same; only what carries them differs.

use std::time::Duration;

use bytes::Bytes;

#[cfg(feature = "embedded")]
use crate::embedded::Embedded;
use crate::error::{Error, Problem, Result, Unreachable};
use crate::http::Http;

/// The methods that the API knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads.
    Get,
    /// Does.
    Post,
    /// Sets.
    Put,
    /// Changes.
    Patch,
    /// Removes, cancels.
    Delete,
}

/// One call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    /// With its query.
    pub(crate) path: String,
    pub(crate) body: Option<Bytes>,
    /// How long to wait for the answer.
    pub(crate) timeout: Duration,
    pub(crate) trace_parent: Option<String>,
}

/// An answer, whatever its status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
    /// Who gave it.
    pub(crate) address: String,
}

impl Answer {
    /// The body of a success, or the refusal.
    pub(crate) fn into_body(self) -> Result<Bytes> {
        if (200..300).contains(&self.status) {
            return Ok(self.body);
        }
        match serde_json::from_slice::<Problem>(&self.body) {
            Ok(problem) => Err(Error::Refused(Box::new(problem))),
            Err(_) => Err(Error::BadAnswer {
                address: self.address,
                reason: format!("HTTP {} with {}", self.status, excerpt(&self.body)),
            }),
        }
    }
}

/// The beginning of a body, for a message.
fn excerpt(body: &[u8]) -> String {
    const LONGEST: usize = 120;
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    if text.is_empty() {
        return "an empty body".to_owned();
    }
    let cut: String = text.chars().take(LONGEST).collect();
    format!("{cut:?}{}", if cut.len() < text.len() { " and more" } else { "" })
}

/// What carries calls.
#[derive(Debug)]
pub(crate) enum Transport {
    Http(Http),
    #[cfg(feature = "embedded")]
    Embedded(Embedded),
}

impl Transport {
    /// Sends one call, once.
    pub(crate) async fn send(&self, call: Call) -> Result<Answer, Unreachable> {
        match self {
            Self::Http(http) => http.send(call).await,
            #[cfg(feature = "embedded")]
            Self::Embedded(embedded) => embedded.send(call).await,
        }
    }

    /// The same way with connections of its own, for a thread with its own runtime: a
    /// connection lives in the runtime that opened it and stalls with it.
    pub(crate) fn for_own_runtime(&self) -> Result<Self> {
        match self {
            Self::Http(http) => Ok(Self::Http(http.with_own_connections()?)),
            #[cfg(feature = "embedded")]
            Self::Embedded(embedded) => Ok(Self::Embedded(embedded.clone())),
        }
    }

    /// Where calls go, for messages.
    pub(crate) fn addresses(&self) -> Vec<String> {
        match self {
            Self::Http(http) => http.addresses(),
            #[cfg(feature = "embedded")]
            Self::Embedded(embedded) => vec![embedded.address().to_owned()],
        }
    }
}
