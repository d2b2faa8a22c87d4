//! What a commit is put together from. Whatever a transaction writes is one statement of many parts behind the fence: one
//! message to the server and one back.

use crate::migrate::in_schema;
use crate::sql::{END, KEY, NOW, PLAIN, RARE, Sql};

/// A part of a commit: one or more subqueries that write, the last of which has the piece's own name.
pub(crate) struct Piece {
    /// Its place in the list: which pieces a commit has decides its text.
    bit: u32,
    /// Subqueries by name.
    parts: Vec<(String, String)>,
    /// What the statement answers about it.
    answer: Option<String>,
    /// How many parameters it takes.
    parameters: usize,
}

fn parameters(from: usize, count: usize) -> String {
    (from..from + count).map(|number| format!("${number}")).collect::<Vec<_>>().join(", ")
}

/// The same columns, of one table in a statement with several.
fn of(table: &str, columns: &str) -> String {
    columns.split(',').map(|column| format!("{table}.{}", column.trim())).collect::<Vec<_>>().join(", ")
}

const PLAIN_COLUMNS: usize = 13;
const RARE_COLUMNS: usize = 10;
const TASK_COLUMNS: usize = PLAIN_COLUMNS + RARE_COLUMNS;
/// With the key.
const END_COLUMNS: usize = 20;

/// Moves rows to `ended`, with how they ended, without their ever leaving the server.
fn move_to_ended(from: &str) -> Vec<String> {
    let moved = format!(
        "DELETE FROM :schema.{from} t USING unnest({}) AS e(key, {END}) WHERE t.key = e.key RETURNING {}, {}",
        parameters(1, END_COLUMNS),
        of("t", &format!("{PLAIN}, {RARE}")),
        of("e", END),
    );
    let stored = format!("INSERT INTO :schema.ended ({PLAIN}, {RARE}, {END}) SELECT * FROM :before RETURNING 1");
    vec![moved, stored]
}

/// A table of documents under a key.
fn put(table: &str, key: &str, value: &str) -> Vec<String> {
    vec![format!(
        "INSERT INTO :schema.{table} ({key}, {value}) SELECT * FROM unnest($1, $2)
        ON CONFLICT ({key}) DO UPDATE SET {value} = excluded.{value}"
    )]
}

fn delete(table: &str, key: &str) -> Vec<String> {
    vec![format!("DELETE FROM :schema.{table} WHERE {key} = ANY($1)")]
}

fn update_live() -> Vec<String> {
    let columns = format!("{PLAIN}, {RARE}");
    let set: Vec<String> = columns
        .split(',')
        .map(str::trim)
        .filter(|column| *column != "key")
        .map(|column| format!("{column} = n.{column}"))
        .collect();
    vec![format!(
        "UPDATE :schema.live t SET {} FROM unnest({}) AS n({columns}) WHERE t.key = n.key RETURNING 1",
        set.join(", "),
        parameters(1, TASK_COLUMNS),
    )]
}

fn one(text: impl Into<String>) -> Vec<String> {
    vec![text.into()]
}

/// The rows that a piece touched are counted.
const COUNTED: &str = "(SELECT count(*) FROM :piece)";

macro_rules! pieces {
    ($($(#[$doc:meta])* $name:ident($parameters:expr, $answer:expr) = $parts:expr;)*) => {
        /// All pieces.
        pub(crate) struct Pieces {
            $($(#[$doc])* pub(crate) $name: Piece,)*
        }

        impl Pieces {
            /// The pieces for a schema.
            pub(crate) fn new(schema: &str) -> Self {
                let mut bit = 0;
                let mut piece = |name: &str, parameters: usize, answer: &str, texts: Vec<String>| {
                    bit += 1;
                    Piece::new(bit, name, texts.iter().map(|text| in_schema(text, schema)).collect(), answer, parameters)
                };
                Self { $($name: piece(stringify!($name), $parameters, $answer, $parts),)* }
            }
        }
    };
}

pieces! {
    /// The fence. A number that is taken is a unique violation; one that is not the next divides by zero. It waits for
    /// whoever has the turn.
    fence(4, "") = one(format!("INSERT INTO :schema.log (no, node, at, redo)
        SELECT $1, $2, {NOW}, $3 FROM (SELECT pg_advisory_xact_lock_shared($4)) AS turn,
            (SELECT count(*) AS found FROM :schema.log WHERE no = $1 - 1) AS before
        WHERE 1 / before.found = 1 RETURNING no"));
    /// The first entry of all: there must be no other.
    first_fence(4, "") = one(format!("INSERT INTO :schema.log (no, node, at, redo)
        SELECT $1, $2, {NOW}, $3 FROM (SELECT pg_advisory_xact_lock_shared($4)) AS turn
        WHERE 1 / (NOT EXISTS (SELECT FROM :schema.log WHERE no > 1))::integer = 1 RETURNING no"));
    notify(2, "pg_notify($1, $2)") = Vec::new();

    insert_live_plain(PLAIN_COLUMNS, "") = one(format!(
        "INSERT INTO :schema.live ({PLAIN}) SELECT * FROM unnest({})", parameters(1, PLAIN_COLUMNS)));
    insert_live(TASK_COLUMNS, "") = one(format!(
        "INSERT INTO :schema.live ({PLAIN}, {RARE}) SELECT * FROM unnest({})", parameters(1, TASK_COLUMNS)));
    update_live(TASK_COLUMNS, COUNTED) = update_live();
    delete_live(1, COUNTED) = one("DELETE FROM :schema.live WHERE key = ANY($1) RETURNING 1");
    /// By a list that is only known when it runs, so that every partition is asked by its index however many keys.
    delete_ended(1, COUNTED) = one("DELETE FROM :schema.ended WHERE key = ANY(ARRAY(SELECT unnest($1))) RETURNING 1");
    end_live(END_COLUMNS, COUNTED) = move_to_ended("live");
    end_again(END_COLUMNS, COUNTED) = move_to_ended("ended");
    insert_ended(TASK_COLUMNS + END_COLUMNS, "") = one(format!(
        "INSERT INTO :schema.ended ({PLAIN}, {RARE}, {END})
        SELECT {PLAIN}, {RARE}, {END} FROM unnest({}) AS t({PLAIN}, {RARE}, end_key, {END})",
        parameters(1, TASK_COLUMNS + END_COLUMNS)));
    revive(1, COUNTED) = vec![
        format!("DELETE FROM :schema.ended WHERE key = ANY(ARRAY(SELECT unnest($1))) RETURNING {PLAIN}, {RARE}"),
        format!("INSERT INTO :schema.live ({PLAIN}, {RARE}) SELECT * FROM :before RETURNING 1"),
    ];
    delete_attempts(1, "") = delete("attempts", "key");
    delete_steps(1, "") = delete("steps", "key");

    put_overlays(2, "") = put("overlays", "key", "overlay");
    delete_overlays(1, "") = delete("overlays", "key");
    put_claims(5, "") = one("INSERT INTO :schema.claims (first, at, event_no, worker, entries)
        SELECT * FROM unnest($1, $2, $3, $4, $5)
        ON CONFLICT (first) DO UPDATE SET entries = excluded.entries");
    delete_claims(1, "") = delete("claims", "first");
    put_attempts(3, "") = one("INSERT INTO :schema.attempts (key, attempt, failure) SELECT * FROM unnest($1, $2, $3)
        ON CONFLICT (key, attempt) DO UPDATE SET failure = excluded.failure");
    put_progress(2, "") = put("progress", "key", "progress");
    delete_progress(1, "") = delete("progress", "key");
    insert_steps(3, "") = one("INSERT INTO :schema.steps (key, name, result) SELECT * FROM unnest($1, $2, $3)
        ON CONFLICT (key, name) DO NOTHING");
    /// Nobody has looked whether they are there: one that is refuses the whole commit.
    insert_idempotency(8, "") =
        one(format!("INSERT INTO :schema.idempotency_keys ({KEY}) SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7, $8)"));
    put_idempotency(8, "") =
        one(format!("INSERT INTO :schema.idempotency_keys ({KEY}) SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7, $8)
        ON CONFLICT (scope) DO UPDATE SET task = excluded.task, created_at = excluded.created_at,
            digest = excluded.digest, forget_at = excluded.forget_at"));
    delete_idempotency(1, "") = delete("idempotency_keys", "scope");
    put_uniques(5, "") = one("INSERT INTO :schema.unique_keys (key, task, created_at, held, keep_until)
        SELECT * FROM unnest($1, $2, $3, $4, $5)
        ON CONFLICT (key) DO UPDATE SET task = excluded.task, created_at = excluded.created_at, held = excluded.held,
            keep_until = excluded.keep_until");
    delete_uniques(1, "") = delete("unique_keys", "key");
    insert_events(4, "") = one("INSERT INTO :schema.events (no, at, schema, events) VALUES ($1, $2, $3, $4)");
    put_workers(2, "") = put("workers", "id", "worker");
    delete_workers(1, "") = delete("workers", "id");
    put_queues(2, "") = put("queue_settings", "queue", "settings");
    delete_queues(1, "") = delete("queue_settings", "queue");
    put_types(2, "") = put("type_settings", "task_type", "settings");
    delete_types(1, "") = delete("type_settings", "task_type");
    put_documents(2, "") = put("documents", "name", "document");
    delete_documents(1, "") = delete("documents", "name");
    put_breakers(2, "") = put("breakers", "scope", "record");
    delete_breakers(1, "") = delete("breakers", "scope");
    close_days(1, "") = one("INSERT INTO :schema.days_over (day, gone) SELECT day, false FROM unnest($1) AS day");
    drop_days(1, COUNTED) = one("UPDATE :schema.days_over SET gone = true WHERE day = ANY($1) AND NOT gone RETURNING 1");
    /// Taken by somebody else in the meantime: divides by zero.
    take_inbox(1, "(SELECT 1 / (count(*) = cardinality($1))::integer FROM :piece)") =
        one("DELETE FROM :schema.inbox WHERE no = ANY($1) RETURNING 1");
}

impl Piece {
    fn new(bit: u32, name: &str, texts: Vec<String>, answer: &str, parameters: usize) -> Self {
        let last = texts.len().saturating_sub(1);
        let part = |(index, text): (usize, String)| {
            let own = if index == last { name.to_owned() } else { format!("{name}_{index}") };
            (own, text.replace(":before", &format!("{name}_{}", index.saturating_sub(1))))
        };
        let parts = texts.into_iter().enumerate().map(part).collect();
        let answer = Some(answer.replace(":piece", name)).filter(|answer| !answer.is_empty());
        Self { bit, parts, answer, parameters }
    }

    /// What it is called.
    pub(crate) fn name(&self) -> &str {
        self.parts.last().map_or("", |(name, _)| name)
    }

    /// Whether the statement answers with the number of rows that it touched.
    pub(crate) fn is_counted(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.starts_with("(SELECT count(*)"))
    }

    /// The piece as a statement of its own.
    #[cfg(test)]
    pub(crate) fn alone(&self) -> String {
        let all: Vec<String> = self.parts.iter().map(|(name, text)| format!("{name} AS ({text})")).collect();
        format!("WITH {} SELECT {}", all.join(", "), self.answer.as_deref().unwrap_or("1"))
    }
}

/// Puts pieces together; the first is the fence and is carried out first, because everything else is read off it.
pub(crate) fn together(pieces: &[&Piece]) -> Sql {
    // Apart from the numbers that single statements have.
    let id = pieces.iter().fold(1 << 63, |id, piece| id | 1 << piece.bit);
    let (mut parts, mut answers, mut offset) = (Vec::new(), Vec::new(), 0);
    for piece in pieces {
        for (name, text) in &piece.parts {
            parts.push(format!("{name} AS ({})", shifted(text, offset)));
        }
        if let Some(answer) = &piece.answer {
            answers.push(shifted(answer, offset));
        }
        offset += piece.parameters;
    }
    if answers.is_empty() {
        answers.push("1".to_owned());
    }
    let fence = pieces.first().map_or("", |piece| piece.name());
    Sql { id, text: format!("WITH {} SELECT {} FROM {fence}", parts.join(", "), answers.join(", ")) }
}

/// The text with its parameters counted from `offset` on.
fn shifted(text: &str, offset: usize) -> String {
    if offset == 0 {
        return text.to_owned();
    }
    let mut shifted = String::with_capacity(text.len() + 64);
    let mut pieces = text.split('$');
    shifted.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let digits = piece.bytes().take_while(u8::is_ascii_digit).count();
        let number: usize = piece[..digits].parse().unwrap_or_default();
        shifted.push_str(&format!("${}{}", number + offset, &piece[digits..]));
    }
    shifted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_counted_through() {
        let pieces = Pieces::new("windlass");
        let sql = together(&[&pieces.fence, &pieces.delete_claims, &pieces.take_inbox, &pieces.notify]);
        assert!(sql.text.contains("first = ANY($5)"), "{}", sql.text);
        assert!(sql.text.contains("cardinality($6)"), "{}", sql.text);
        assert!(sql.text.ends_with("pg_notify($7, $8) FROM fence"), "{}", sql.text);
    }

    #[test]
    fn every_piece_has_a_bit_of_its_own() {
        let pieces = Pieces::new("windlass");
        assert!(pieces.take_inbox.bit < 63);
        assert_ne!(together(&[&pieces.fence]).id, together(&[&pieces.fence, &pieces.put_claims]).id);
    }
}
