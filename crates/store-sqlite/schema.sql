CREATE INDEX dead_letters ON ended (key) WHERE status = 7;
CREATE INDEX ended_by_keep_until ON ended (keep_until) WHERE keep_until IS NOT NULL;
CREATE INDEX idempotency_by_forget_at ON idempotency (forget_at);
CREATE INDEX unique_keys_by_keep_until ON unique_keys (keep_until) WHERE held = 0;
CREATE TABLE attempts (
    key INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    failure TEXT NOT NULL,
    PRIMARY KEY (key, attempt)
) STRICT, WITHOUT ROWID;
CREATE TABLE breakers (scope TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE claims (first INTEGER PRIMARY KEY, claim TEXT NOT NULL) STRICT;
CREATE TABLE documents (name TEXT PRIMARY KEY, document TEXT NOT NULL) STRICT, WITHOUT ROWID;
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
CREATE TABLE ended_counts (status INTEGER PRIMARY KEY, count INTEGER NOT NULL) STRICT;
CREATE TABLE events (
    no INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    schema INTEGER NOT NULL,
    events TEXT NOT NULL
) STRICT;
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
CREATE TABLE numbers (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE overlays (key INTEGER PRIMARY KEY, overlay TEXT NOT NULL) STRICT;
CREATE TABLE progress (key INTEGER PRIMARY KEY, progress TEXT NOT NULL) STRICT;
CREATE TABLE queue_settings (queue TEXT PRIMARY KEY, settings TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE segments (segment INTEGER PRIMARY KEY) STRICT;
CREATE TABLE steps (
    key INTEGER NOT NULL,
    name TEXT NOT NULL,
    result TEXT NOT NULL,
    PRIMARY KEY (key, name)
) STRICT, WITHOUT ROWID;
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
, flow_key TEXT, unique_key TEXT, auto_replayed INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE TABLE type_settings (task_type TEXT PRIMARY KEY, settings TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE unique_keys (
    key BLOB PRIMARY KEY,
    task INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    held INTEGER NOT NULL,
    keep_until INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE workers (id BLOB PRIMARY KEY, worker TEXT NOT NULL) STRICT, WITHOUT ROWID;
