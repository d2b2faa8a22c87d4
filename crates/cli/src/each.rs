//! One thing done to each of several: every one is tried, and what failed is told.

use serde_json::Value;

use crate::connection::{Session, raw};
use crate::exit::{Failure, Outcome};
use crate::show::escape::plain;
use crate::show::screen::Tint;

/// Does it to each of them. Each gives a line and a document; the first failure decides on the exit code.
pub async fn for_each<F>(session: &Session, ids: &[String], deed: F) -> Outcome
where
    F: AsyncFn(&str) -> Outcome<(String, Value)>,
{
    let mut documents = Vec::new();
    let mut first_exit = None;
    for id in ids {
        match deed(id).await {
            Ok((line, document)) if !session.json => {
                drop(document);
                session.screen.line(&line)?;
            }
            Ok((_, document)) => documents.push(raw(&document)?),
            // With one id the failure says it all; nothing follows that it could hide.
            Err(failure) if ids.len() == 1 => return Err(failure),
            Err(failure) => {
                session.screen.say(&format!(
                    "{} {}: {failure}",
                    session.screen.tint_err(Tint::Bad, "error:"),
                    plain(id)
                ));
                first_exit.get_or_insert(failure.exit());
            }
        }
    }
    if session.json {
        session.print_documents(&documents)?;
    }
    first_exit.map_or(Ok(()), |exit| Err(Failure::told(exit)))
}
