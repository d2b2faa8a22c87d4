//! Query strings: typed, with unknown and bad parameters named.

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use windlass_core::limits;
use windlass_core::store::Cursor;

use crate::problem::{Code, Problem};

/// The query string of a call. All parameters are texts until the call reads them.
pub struct Args<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Args<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let Query(args) = Query::try_from_uri(&parts.uri).map_err(|error| explain(&error.body_text()))?;
        Ok(Self(args))
    }
}

fn explain(message: &str) -> Problem {
    let named = |prefix: &str| {
        let (_, rest) = message.split_once(prefix)?;
        rest.split('`').next()
    };
    if let Some(name) = named("unknown field `") {
        Problem::unknown_field(name)
    } else if let Some(name) = named("duplicate field `") {
        Problem::invalid_field(name, "is given twice")
    } else {
        Problem::new(Code::InvalidField, message.to_owned()).on_field("query")
    }
}

/// Reads one parameter by a rule that says in words what it wants.
pub fn read<T, E: std::fmt::Display>(
    name: &str,
    text: Option<&str>,
    rule: impl FnOnce(&str) -> Result<T, E>,
) -> Result<Option<T>, Problem> {
    text.map(|text| rule(text).map_err(|error| Problem::invalid_field(name, error))).transpose()
}

/// How many items a page may have.
pub fn page_limit(text: Option<&str>) -> Result<usize, Problem> {
    let rule = |text: &str| match text.parse() {
        Ok(limit) if (1..=limits::PAGE_ITEMS).contains(&limit) => Ok(limit),
        _ => Err(format!("must be a number from 1 to {}", limits::PAGE_ITEMS)),
    };
    Ok(read("limit", text, rule)?.unwrap_or(limits::PAGE_ITEMS_DEFAULT))
}

/// Where a page begins.
pub fn cursor(text: Option<String>) -> Option<Cursor> {
    text.map(Cursor)
}
