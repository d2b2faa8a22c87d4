//! The variable part of a path.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::problem::{Code, Problem};

/// An id or a name from a path, percent-decoded.
pub struct Path<T>(pub T);

impl<S: Send + Sync> FromRequestParts<S> for Path<String> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        extract(parts, state).await.map(Self)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Path<(String, String, String)> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        extract(parts, state).await.map(Self)
    }
}

async fn extract<T: DeserializeOwned + Send, S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<T, Problem> {
    match axum::extract::Path::from_request_parts(parts, state).await {
        Ok(axum::extract::Path(names)) => Ok(names),
        Err(_) => Err(Problem::new(Code::NotFound, "the path is not UTF-8, so it names nothing")),
    }
}
