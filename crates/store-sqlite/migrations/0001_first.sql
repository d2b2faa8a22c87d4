-- What was asked for. Rows are appended; only a person's amendment or replay changes one.
-- Parameters stand last: reading the rest of a row need not touch them.
CREATE TABLE tasks (
    key INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    task_type TEXT NOT NULL,
    priority INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    event_no INTEGER NOT NULL,
    timeout_us INTEGER NOT NULL,
    max_retries INTEGER NOT NULL,
    max_crashes INTEGER NOT NULL,
    dead_letter INTEGER NOT NULL,
    capabilities TEXT,
    expires_at INTEGER,
    retry TEXT,
    idempotency_key TEXT,
    tenant TEXT,
    tags TEXT,
    trace_parent TEXT,
    original_parameters TEXT,
    parameters TEXT NOT NULL
) STRICT;

-- How a live task stands once it is no longer as it was submitted and does not run.
CREATE TABLE overlays (key INTEGER PRIMARY KEY, overlay TEXT NOT NULL) STRICT;

-- Who runs what: one row per claim, deleted with its last task.
CREATE TABLE claims (first INTEGER PRIMARY KEY, claim TEXT NOT NULL) STRICT;

-- How tasks ended. Rows are appended; a replay deletes one.
CREATE TABLE ended (
    key INTEGER PRIMARY KEY,
    status INTEGER NOT NULL,
    reason TEXT,
    version INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    retries INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    timeouts INTEGER NOT NULL,
    ready_at INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    started_at INTEGER,
    ended_at INTEGER NOT NULL,
    worker BLOB,
    applied_claim INTEGER,
    applied_digest INTEGER,
    applied_status INTEGER,
    event_nos BLOB NOT NULL,
    keep_until INTEGER,
    result TEXT
) STRICT;
CREATE INDEX ended_by_keep_until ON ended (keep_until) WHERE keep_until IS NOT NULL;
CREATE INDEX dead_letters ON ended (key) WHERE status = 7;
CREATE TABLE ended_counts (status INTEGER PRIMARY KEY, count INTEGER NOT NULL) STRICT;

-- Failed attempts with their errors.
CREATE TABLE attempts (
    key INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    failure TEXT NOT NULL,
    PRIMARY KEY (key, attempt)
) STRICT, WITHOUT ROWID;
CREATE TABLE progress (key INTEGER PRIMARY KEY, progress TEXT NOT NULL) STRICT;
CREATE TABLE steps (
    key INTEGER NOT NULL,
    name TEXT NOT NULL,
    result TEXT NOT NULL,
    PRIMARY KEY (key, name)
) STRICT, WITHOUT ROWID;

-- Idempotency keys outlive their tasks or their tasks outlive them. No tenant is ''.
CREATE TABLE idempotency (
    queue TEXT NOT NULL,
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    task INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    digest INTEGER NOT NULL,
    forget_at INTEGER NOT NULL,
    PRIMARY KEY (queue, tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_by_forget_at ON idempotency (forget_at);

-- All events of a transaction in one row.
CREATE TABLE events (
    no INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    schema INTEGER NOT NULL,
    events TEXT NOT NULL
) STRICT;

-- Segments of task keys that may have live tasks: all that is looked at when the store opens.
CREATE TABLE segments (segment INTEGER PRIMARY KEY) STRICT;

CREATE TABLE workers (id BLOB PRIMARY KEY, worker TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE queue_settings (queue TEXT PRIMARY KEY, settings TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE type_settings (task_type TEXT PRIMARY KEY, settings TEXT NOT NULL) STRICT, WITHOUT ROWID;

-- Numbers: the first free one of each sequence, and whether the last stop was clean.
CREATE TABLE numbers (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
