-- The log that orders the transactions of all nodes. Its primary key is the fence: whoever comes second with a number
-- is refused. It is only ever read from a number on, and what nobody needs any more is deleted from its beginning.
CREATE TABLE :schema.log (
    no bigint PRIMARY KEY,
    node bigint NOT NULL,
    at bigint NOT NULL,
    redo bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
-- Short-lived: compressing it would cost more than it saves.
ALTER TABLE :schema.log ALTER COLUMN redo SET STORAGE EXTERNAL;

-- Tasks that have not ended, as submitted. Rows are inserted and deleted; only a person's amendment or a submit with
-- the same unique key changes one. Fixed widths first, so that no room is lost to alignment.
CREATE TABLE :schema.live (
    key bigint PRIMARY KEY,
    created_at bigint NOT NULL,
    run_at bigint NOT NULL,
    event_no bigint NOT NULL,
    timeout_us bigint NOT NULL,
    expires_at bigint,
    priority smallint NOT NULL,
    max_retries smallint NOT NULL,
    max_crashes smallint NOT NULL,
    dead_letter boolean NOT NULL,
    auto_replayed boolean NOT NULL DEFAULT false,
    queue text COLLATE "C" NOT NULL,
    task_type text COLLATE "C" NOT NULL,
    tenant text COLLATE "C",
    capabilities bytea,
    flow_key bytea,
    unique_key bytea,
    retry bytea,
    idempotency_key text COLLATE "C",
    tags bytea,
    trace_parent text COLLATE "C",
    original_parameters bytea,
    parameters bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.1);

-- How a live task stands once it is no longer as it was submitted and does not run. Room is left to update in place.
CREATE TABLE :schema.overlays (key bigint PRIMARY KEY, overlay bytea NOT NULL) WITH (fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- Who runs what: one row per claim, deleted with its last task. An entry is a task key, its version and attempt.
CREATE TABLE :schema.claims (
    first bigint PRIMARY KEY,
    at bigint NOT NULL,
    event_no bigint NOT NULL,
    worker uuid NOT NULL,
    entries bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- Tasks that have ended, with how. One partition per day on which its rows may be dropped, one for dead letters
-- (drop_day = -1) and one for what is kept for ever (drop_day = 0).
CREATE TABLE :schema.ended (
    key bigint NOT NULL,
    created_at bigint NOT NULL,
    run_at bigint NOT NULL,
    event_no bigint NOT NULL,
    timeout_us bigint NOT NULL,
    ready_at bigint NOT NULL,
    last_run_at bigint NOT NULL,
    ended_at bigint NOT NULL,
    expires_at bigint,
    started_at bigint,
    keep_until bigint,
    applied_claim bigint,
    applied_digest bigint,
    drop_day integer NOT NULL,
    version integer NOT NULL,
    attempt integer NOT NULL,
    retries integer NOT NULL,
    crashes integer NOT NULL,
    priority smallint NOT NULL,
    max_retries smallint NOT NULL,
    max_crashes smallint NOT NULL,
    timeouts smallint NOT NULL,
    status smallint NOT NULL,
    applied_status smallint,
    dead_letter boolean NOT NULL,
    auto_replayed boolean NOT NULL,
    queue text COLLATE "C" NOT NULL,
    task_type text COLLATE "C" NOT NULL,
    reason text COLLATE "C",
    worker uuid,
    tenant text COLLATE "C",
    capabilities bytea,
    flow_key bytea,
    unique_key bytea,
    retry bytea,
    idempotency_key text COLLATE "C",
    tags bytea,
    trace_parent text COLLATE "C",
    original_parameters bytea,
    event_nos bytea NOT NULL,
    parameters bytea NOT NULL,
    result bytea
) PARTITION BY LIST (drop_day);
CREATE INDEX ended_key ON :schema.ended (key);
CREATE INDEX ended_keep_until ON :schema.ended (keep_until) WHERE keep_until IS NOT NULL;
CREATE TABLE :schema.ended_dead PARTITION OF :schema.ended FOR VALUES IN (-1);
CREATE TABLE :schema.ended_forever PARTITION OF :schema.ended FOR VALUES IN (0);

-- Makes the partition of a day. It is attached rather than made in place, because that does not lock anybody out; and
-- it is a function with its owner's rights, so that the role of a running server needs none to make tables.
CREATE FUNCTION :schema.make_ended_partition(day integer) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    IF day < 1 THEN
        RAISE EXCEPTION 'a day is counted from 1970-01-01 and is at least 1' USING ERRCODE = '22023';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended(':name:ended_partitions', 0));
    -- By the catalogue and not by to_regclass: that may remember from before we waited for the lock.
    IF EXISTS (SELECT FROM pg_class WHERE relname = 'ended_' || day AND relnamespace = ':name'::regnamespace) THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE %I.%I (LIKE %I.ended INCLUDING ALL)', ':name', 'ended_' || day, ':name');
    EXECUTE format('ALTER TABLE %I.ended ATTACH PARTITION %I.%I FOR VALUES IN (%s)',
        ':name', ':name', 'ended_' || day, day);
    RETURN true;
END $body$;

-- Drops the partition of a day and says how many tasks of which status went with it. Waits for a lock only as long as
-- the caller's lock_timeout says: whoever writes must not queue behind a long look at history.
CREATE FUNCTION :schema.drop_ended_partition(day integer) RETURNS TABLE (status smallint, count bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(':name:ended_partitions', 0));
    IF day < 1 OR NOT EXISTS (
        SELECT FROM pg_class WHERE relname = 'ended_' || day AND relnamespace = ':name'::regnamespace) THEN
        RETURN;
    END IF;
    EXECUTE format('LOCK TABLE %I.ended IN ACCESS EXCLUSIVE MODE', ':name');
    RETURN QUERY EXECUTE format('SELECT status, count(*) FROM %I.%I GROUP BY status', ':name', 'ended_' || day);
    EXECUTE format('DROP TABLE %I.%I', ':name', 'ended_' || day);
END $body$;

-- Failed attempts with their errors.
CREATE TABLE :schema.attempts (
    key bigint NOT NULL,
    attempt integer NOT NULL,
    failure bytea NOT NULL,
    PRIMARY KEY (key, attempt)
);
CREATE TABLE :schema.progress (key bigint PRIMARY KEY, progress bytea NOT NULL) WITH (fillfactor = 80);
-- Names are bytes: a handler may call a step whatever it likes, a zero byte included.
CREATE TABLE :schema.steps (
    key bigint NOT NULL,
    name bytea NOT NULL,
    result bytea NOT NULL,
    PRIMARY KEY (key, name)
);

-- Idempotency keys outlive their tasks or their tasks outlive them. No tenant is ''.
CREATE TABLE :schema.idempotency (
    task bigint NOT NULL,
    created_at bigint NOT NULL,
    digest bigint NOT NULL,
    forget_at bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    PRIMARY KEY (key, queue, tenant)
);
CREATE INDEX idempotency_forget_at ON :schema.idempotency (forget_at);

-- Who has a unique key: held by the task's status, or kept for a time.
CREATE TABLE :schema.unique_keys (
    key uuid PRIMARY KEY,
    task bigint NOT NULL,
    created_at bigint NOT NULL,
    keep_until bigint,
    held boolean NOT NULL
) WITH (fillfactor = 90);
CREATE INDEX unique_keys_keep_until ON :schema.unique_keys (keep_until) WHERE NOT held;

-- All events of a transaction in one row.
CREATE TABLE :schema.events (
    no bigint PRIMARY KEY,
    at bigint NOT NULL,
    schema smallint NOT NULL,
    events bytea NOT NULL
);
ALTER TABLE :schema.events ALTER COLUMN events SET STORAGE EXTERNAL;

CREATE TABLE :schema.workers (id uuid PRIMARY KEY, worker bytea NOT NULL);
CREATE TABLE :schema.queue_settings (queue text COLLATE "C" PRIMARY KEY, settings bytea NOT NULL);
CREATE TABLE :schema.type_settings (task_type text COLLATE "C" PRIMARY KEY, settings bytea NOT NULL);
-- Settings that there is one of.
CREATE TABLE :schema.documents (name text COLLATE "C" PRIMARY KEY, document bytea NOT NULL);
-- Breakers that are open, were forced, or have something left to do.
CREATE TABLE :schema.breakers (scope bytea PRIMARY KEY, record bytea NOT NULL);
CREATE TABLE :schema.secrets (name text COLLATE "C" PRIMARY KEY, value bytea NOT NULL);
-- Which node does the housekeeping, by the clock of the database.
CREATE TABLE :schema.leader (
    single boolean PRIMARY KEY CHECK (single),
    node bigint NOT NULL,
    until timestamptz NOT NULL
) WITH (fillfactor = 10);
