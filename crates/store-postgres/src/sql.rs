//! Every statement that runs often but for those of a commit, in one place. All are schema-qualified: nothing depends on
//! a search path.

use crate::migrate::in_schema;

/// A statement.
pub(crate) struct Sql {
    /// Which one it is.
    pub(crate) id: u64,
    /// Its text.
    pub(crate) text: String,
}

/// Task columns that most tasks have.
pub(crate) const PLAIN: &str =
    "key, created_at, run_at, event_no, timeout_us, priority, max_retries, max_crashes, dead_letter,
    queue, task_type, idempotency_key, parameters";
/// Task columns that most tasks leave empty.
pub(crate) const RARE: &str = "auto_replayed, expires_at, tenant, capabilities, flow_key, unique_key, retry, tags,
    trace_parent, original_parameters";
/// The columns of an end.
pub(crate) const END: &str =
    "drop_day, status, reason, version, attempt, retries, crashes, timeouts, ready_at, last_run_at,
    started_at, ended_at, worker, applied_claim, applied_digest, applied_status, event_nos, keep_until, result";

/// The columns of an idempotency key.
pub(crate) const KEY: &str = "scope, queue, tenant, key, task, created_at, digest, forget_at";

macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident = $text:expr;)*) => {
        /// All statements.
        pub(crate) struct Statements {
            $($(#[$doc])* pub(crate) $name: Sql,)*
        }

        impl Statements {
            /// The statements for a schema.
            pub(crate) fn new(schema: &str) -> Self {
                let mut id = 0;
                let mut sql = |text: String| {
                    id += 1;
                    Sql { id, text: in_schema(&text, schema) }
                };
                Self { $($name: sql($text.to_string()),)* }
            }
        }
    };
}

const TASK_FROM_LIVE: &str = "NULL::integer AS drop_day, NULL::smallint AS status, NULL::text AS reason,
    NULL::integer AS version, NULL::integer AS attempt, NULL::integer AS retries, NULL::integer AS crashes,
    NULL::smallint AS timeouts, NULL::bigint AS ready_at, NULL::bigint AS last_run_at, NULL::bigint AS started_at,
    NULL::bigint AS ended_at, NULL::uuid AS worker, NULL::bigint AS applied_claim, NULL::bigint AS applied_digest,
    NULL::smallint AS applied_status, NULL::bytea AS event_nos, NULL::bigint AS keep_until, NULL::bytea AS result";

/// Those of the keys in the first parameter that are not live.
const NOT_LIVE: &str = "ARRAY(SELECT wanted FROM unnest($1) AS wanted
    WHERE NOT EXISTS (SELECT FROM :schema.live WHERE live.key = wanted))";

/// Ended tasks whose day is not gone.
pub(crate) const NOT_GONE: &str = "drop_day <> ALL(ARRAY(SELECT day FROM :schema.days_over WHERE gone))";

/// The days that have a partition.
const PARTITIONS: &str = "SELECT substr(c.relname, 7)::integer AS day
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = ':name.ended'::regclass AND c.relname ~ '^ended_[0-9]+$'";

/// The clock of the database in microseconds.
pub(crate) const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

statements! {
    /// The entry that is known already comes first, without its content: if it is not there, the log was cut.
    tail = "SELECT no, node, CASE WHEN no > $1 THEN redo END FROM :schema.log WHERE no >= $1 ORDER BY no LIMIT $2";
    notify = "SELECT pg_notify($1, $2)";

    /// Live or ended, in one statement and so in one snapshot: a task on its way from one to the other is in one. The
    /// many partitions of the ended are only asked for what is not live.
    read_tasks = format!(
        "SELECT {PLAIN}, {RARE}, {TASK_FROM_LIVE},
            (SELECT overlay FROM :schema.overlays o WHERE o.key = l.key)
        FROM :schema.live l WHERE l.key = ANY($1)
        UNION ALL
        SELECT {PLAIN}, {RARE}, {END}, NULL FROM :schema.ended WHERE key = ANY({NOT_LIVE}) AND {NOT_GONE}");
    read_steps = "SELECT key, name, result FROM :schema.steps WHERE key = ANY($1)";
    read_progress = "SELECT key, progress FROM :schema.progress WHERE key = ANY($1)";
    read_attempts = "SELECT key, failure FROM :schema.attempts WHERE key = ANY($1) ORDER BY key, attempt";
    read_claims = "SELECT first, at, event_no, worker, entries FROM :schema.claims WHERE first = ANY($1)";
    read_idempotency = format!("SELECT {KEY} FROM :schema.idempotency_keys WHERE scope = ANY($1)");
    read_uniques = "SELECT key, task, created_at, held, keep_until FROM :schema.unique_keys WHERE key = ANY($1)";

    /// But for those that go with their day: the days up to the fourth parameter are over.
    expired_tasks = "SELECT key, status, keep_until FROM :schema.ended
        WHERE keep_until > $1 AND keep_until <= $2 AND (drop_day < 0 OR drop_day > $4) ORDER BY keep_until LIMIT $3";
    expired_keys = format!("SELECT {KEY} FROM :schema.idempotency_keys WHERE forget_at <= $1 ORDER BY forget_at LIMIT $2");
    expired_uniques = "SELECT key FROM :schema.unique_keys
        WHERE NOT held AND keep_until <= $1 ORDER BY keep_until LIMIT $2";

    events_in = "SELECT no, at, events FROM :schema.events WHERE no = ANY($1) ORDER BY no";
    events_from = "SELECT no, at, events FROM :schema.events WHERE no >= $1 ORDER BY no LIMIT $2";
    delete_events = "DELETE FROM :schema.events WHERE no = ANY($1)";
    update_events = "UPDATE :schema.events e SET events = n.events FROM unnest($1, $2) AS n(no, events)
        WHERE e.no = n.no";
    /// Which of these tasks are there.
    known_tasks = format!("SELECT key FROM :schema.live WHERE key = ANY($1)
        UNION ALL SELECT key FROM :schema.ended WHERE key = ANY({NOT_LIVE}) AND {NOT_GONE}");
    /// Old entries of the log, from where the last look ended: what was deleted is not walked over again.
    prune_log = format!(
        "WITH old AS (
            SELECT no FROM :schema.log
            WHERE no > $1 AND no <= (SELECT max(no) FROM :schema.log) - $2 AND at < {NOW} - $3
            ORDER BY no LIMIT $4
        ), gone AS (DELETE FROM :schema.log WHERE no = ANY(ARRAY(SELECT no FROM old)))
        SELECT count(*), max(no) FROM old");

    /// Keeps the first and the newest. Apart from the rest of a commit, because it must see what that wrote.
    trim_attempts = "DELETE FROM :schema.attempts a USING (
            SELECT key, attempt, row_number() OVER (PARTITION BY key ORDER BY attempt) AS place,
                count(*) OVER (PARTITION BY key) AS places
            FROM :schema.attempts WHERE key = ANY($1)) x
        WHERE a.key = x.key AND a.attempt = x.attempt AND x.place > 1 AND x.place <= 1 + x.places - $2";
    inbox = "SELECT no, body, (extract(epoch FROM at) * 1000000)::bigint FROM :schema.inbox
        WHERE no > $1 ORDER BY no LIMIT $2";
    /// By the clock of the database: those of the nodes may differ.
    lead = "INSERT INTO :schema.leader (single, node, until)
        VALUES (true, $1, clock_timestamp() + $2 * interval '1 microsecond')
        ON CONFLICT (single) DO UPDATE SET node = excluded.node, until = excluded.until
        WHERE leader.node = excluded.node OR leader.until <= clock_timestamp() RETURNING true";
    resign = "DELETE FROM :schema.leader WHERE node = $1";
    time = format!("SELECT {NOW}");
    bytes = "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c
        WHERE c.relnamespace = ':name'::regnamespace AND c.relkind = 'r'";
    make_partition = "SELECT :schema.make_ended_partition($1)";
    drop_partition = "SELECT :schema.drop_ended_partition($1)";
    /// Days that are over, with how they stand.
    days_over = format!("SELECT day, o.gone FROM ({PARTITIONS}) p FULL JOIN :schema.days_over o USING (day)
        WHERE day <= $1 ORDER BY day");
    /// Nothing if there is no such day.
    day_state = format!("SELECT o.gone FROM ({PARTITIONS}) p FULL JOIN :schema.days_over o USING (day) WHERE day = $1");
    count_day = "SELECT status, count(*), max(key) FROM (
            SELECT key, status FROM :schema.ended WHERE drop_day = $1 AND key > $2 ORDER BY key LIMIT $3) slice
        GROUP BY status";
    clear_day = "WITH slice AS MATERIALIZED (
            SELECT key FROM :schema.ended WHERE drop_day = $1 AND key > $2 ORDER BY key LIMIT $3
        ), attempts AS (DELETE FROM :schema.attempts WHERE key = ANY(ARRAY(SELECT key FROM slice))
        ), steps AS (DELETE FROM :schema.steps WHERE key = ANY(ARRAY(SELECT key FROM slice))
        ), progress AS (DELETE FROM :schema.progress WHERE key = ANY(ARRAY(SELECT key FROM slice)))
        SELECT count(*), max(key) FROM slice";
}
