-- Ordering, concurrency and unique keys of a task, and whether a rule has replayed it. Nearly always null, so that
-- reading them does not touch the parameters before them.
ALTER TABLE tasks ADD COLUMN flow_key TEXT;
ALTER TABLE tasks ADD COLUMN unique_key TEXT;
ALTER TABLE tasks ADD COLUMN auto_replayed INTEGER NOT NULL DEFAULT 0;

-- Who has a unique key: held by the task's status, or kept for a time.
CREATE TABLE unique_keys (
    key BLOB PRIMARY KEY,
    task INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    held INTEGER NOT NULL,
    keep_until INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX unique_keys_by_keep_until ON unique_keys (keep_until) WHERE held = 0;

-- Breakers that are open, were forced, or have something left to do.
CREATE TABLE breakers (scope TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT, WITHOUT ROWID;

-- Settings that there is one of.
CREATE TABLE documents (name TEXT PRIMARY KEY, document TEXT NOT NULL) STRICT, WITHOUT ROWID;
