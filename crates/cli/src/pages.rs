//! Lists: walked page by page, and printed as a table or as one document.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::connection::Session;
use crate::exit::Outcome;
use crate::show::bar::Bar;
use crate::show::escape::with_query;
use crate::show::json_text::pretty;
use crate::show::screen::Tint;
use crate::show::table::{Column, Field, render};

/// What the server gives on one page, at most.
const PAGE: usize = 1_000;

/// A page of the API.
#[derive(Deserialize)]
struct Page {
    items: Vec<Box<RawValue>>,
    next_cursor: Option<String>,
}

/// The parts of a query; values that are not there are left out.
pub type Query = Vec<(&'static str, Option<String>)>;

/// A walk over a list.
pub struct Walk<'a> {
    session: &'a Session,
    path: &'static str,
    query: Query,
    /// How many items are still wanted; all if not set.
    left: Option<usize>,
    cursor: Option<String>,
    is_over: bool,
}

impl<'a> Walk<'a> {
    /// A walk over what matches, to the end or to a limit.
    pub fn new(session: &'a Session, path: &'static str, query: Query, limit: Option<usize>) -> Self {
        Self { session, path, query, left: limit, cursor: None, is_over: false }
    }

    /// The next items; none when the walk is over. Answers may be short and still be followed by more, so this reads on
    /// until there is a whole page.
    pub async fn next(&mut self) -> Outcome<Option<Vec<Box<RawValue>>>> {
        let mut items = Vec::new();
        let wanted = self.left.unwrap_or(PAGE).min(PAGE);
        while !self.is_over && items.len() < wanted {
            let mut query = self.query.clone();
            query.push(("limit", Some((wanted - items.len()).to_string())));
            query.push(("cursor", self.cursor.take()));
            let page: Page = self.session.get(&with_query(self.path, query)).await?;
            items.extend(page.items);
            self.cursor = page.next_cursor;
            self.is_over = self.cursor.is_none();
        }
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(items.len());
            self.is_over |= *left == 0;
        }
        Ok((!items.is_empty()).then_some(items))
    }

    /// Whether a limit ended the walk and more would follow.
    pub fn has_more(&self) -> bool {
        self.cursor.is_some()
    }
}

/// How a list is shown.
pub struct Shape<T> {
    /// The columns.
    pub columns: &'static [Column],
    /// The row of an item.
    pub row: fn(&T) -> Vec<Field>,
    /// What to say where there is nothing.
    pub empty: String,
    /// What to say where a limit left some out.
    pub more: &'static str,
}

/// Prints a list.
pub async fn print<T: DeserializeOwned>(mut walk: Walk<'_>, shape: Shape<T>) -> Outcome {
    if walk.session.json {
        return print_json(&mut walk).await;
    }
    let (session, mut count) = (walk.session, 0);
    // On a terminal the table itself shows that it goes on, and a bar would be in its way.
    let mut bar = session.screen.width.is_none().then(|| Bar::new(&session.screen, None, "read"));
    while let Some(items) = walk.next().await? {
        let rows = items.iter().map(|item| Ok((shape.row)(&session.read(item.get())?))).collect::<Outcome<_>>()?;
        let table = render(&session.screen, shape.columns, rows, count == 0);
        count += items.len();
        if let Some(bar) = &mut bar {
            bar.set(count as u64);
        }
        session.screen.line(&table)?;
    }
    drop(bar);
    if count == 0 {
        session.screen.say(&session.screen.tint_err(Tint::Dim, &shape.empty));
    } else if walk.has_more() {
        session.screen.aside(&format!("Only the first {count} are shown. {}", shape.more));
    }
    Ok(())
}

/// Prints the whole list as one page document, without keeping it in memory.
async fn print_json(walk: &mut Walk<'_>) -> Outcome {
    let screen = &walk.session.screen;
    let mut is_first = true;
    while let Some(items) = walk.next().await? {
        for item in items {
            let start = if is_first { "{\n  \"items\": [\n" } else { ",\n" };
            is_first = false;
            screen.text(&format!("{start}    {}", pretty(item.get()).replace('\n', "\n    ")))?;
        }
    }
    let cursor = serde_json::Value::from(walk.cursor.clone());
    let start = if is_first { "{\n  \"items\": []" } else { "\n  ]" };
    screen.line(&format!("{start},\n  \"next_cursor\": {cursor}\n}}"))?;
    Ok(())
}
