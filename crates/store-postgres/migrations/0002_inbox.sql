-- Tasks that others wrote, in transactions of their own. A node takes them in through the normal submit path.
CREATE TABLE :schema.inbox (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    body bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Refuses what can be seen to be wrong at once; the rest is looked at when it is taken in.
CREATE FUNCTION :schema.check_enqueue(task jsonb) RETURNS void LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    field text;
    parameters text := task->>'parameters';
BEGIN
    IF jsonb_typeof(task) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'a task must be an object' USING ERRCODE = '22023';
    END IF;
    FOR field IN SELECT jsonb_object_keys(task) LOOP
        IF field NOT IN ('task_type', 'parameters', 'queue', 'priority', 'required_capabilities', 'delay_seconds',
            'run_at', 'expires_at', 'timeout_seconds', 'max_retries', 'retry', 'idempotency_key', 'tenant', 'tags',
            'ordering_key', 'ordering_on_failure', 'concurrency_key', 'concurrency_limit', 'unique') THEN
            RAISE EXCEPTION 'unknown field %', quote_literal(field) USING ERRCODE = '22023';
        END IF;
    END LOOP;
    IF coalesce(task->>'task_type', '') !~ '^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$' THEN
        RAISE EXCEPTION 'task_type must start with a letter or digit and have 1 to 128 of letters, digits, ''.'', ''_'', '':'', ''-'''
            USING ERRCODE = '22023';
    END IF;
    IF task->>'queue' !~ '^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$' THEN
        RAISE EXCEPTION 'queue must start with a letter or digit and have 1 to 128 of letters, digits, ''.'', ''_'', '':'', ''-'''
            USING ERRCODE = '22023';
    END IF;
    IF lower(task->>'priority') NOT IN ('critical', 'high', 'medium', 'normal', 'default', 'low', 'bulk')
        AND task->>'priority' !~ '^[0-9]$' THEN
        RAISE EXCEPTION 'priority must be critical, high, medium, low, bulk or a number from 0 to 9'
            USING ERRCODE = '22023';
    END IF;
    IF octet_length(parameters) > 1048576 THEN
        RAISE EXCEPTION 'parameters are larger than any server takes (1048576 bytes)' USING ERRCODE = '22023';
    END IF;
END $body$;

-- The id that a task of the inbox will have: a UUIDv7 whose free bits carry its key and bits that only this database
-- can make. Keys of the inbox are apart from those that nodes give.
CREATE FUNCTION :schema.inbox_task_id(no bigint, at timestamptz) RETURNS uuid LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
    key bigint := (1::bigint << 43) + no;
    millis bigint := floor(extract(epoch FROM at) * 1000)::bigint;
    secret bytea := (SELECT value FROM :schema.secrets WHERE name = 'ids');
    hash bytea := sha256(secret || int8send(key) || int8send(millis));
    -- The first and the last bits of the first eight bytes of the hash.
    first bigint := (get_byte(hash, 0) << 4) | (get_byte(hash, 1) >> 4);
    last bigint := ((get_byte(hash, 5)::bigint & 3) << 16) | (get_byte(hash, 6) << 8) | get_byte(hash, 7);
BEGIN
    RETURN encode(int8send((millis << 16) | 28672 | first)
        || int8send((-9223372036854775808) | (key << 18) | last), 'hex')::uuid;
END $body$;

-- Many tasks, each an object as the API takes it. All of them or none; the ids are in the order of the tasks.
CREATE FUNCTION :schema.enqueue_many(tasks jsonb) RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    IF jsonb_typeof(tasks) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'tasks must be an array' USING ERRCODE = '22023';
    END IF;
    PERFORM :schema.check_enqueue(task) FROM jsonb_array_elements(tasks) AS t(task);
    -- The hint goes out when the caller commits; the same one many times in a transaction is sent once.
    PERFORM pg_notify(':name', 'inbox');
    RETURN QUERY WITH written AS (
        INSERT INTO :schema.inbox (at, body)
        SELECT clock_timestamp(), convert_to(task::text, 'UTF8')
        FROM jsonb_array_elements(tasks) WITH ORDINALITY AS t(task, place) ORDER BY place
        RETURNING no, at
    ) SELECT :schema.inbox_task_id(w.no, w.at) FROM written w ORDER BY w.no;
END $body$;
-- One task: SELECT windlass.enqueue('send_email', '{"to": "x"}', priority => 'high').
CREATE FUNCTION :schema.enqueue(
    task_type text,
    parameters jsonb DEFAULT '{}',
    queue text DEFAULT NULL,
    priority text DEFAULT NULL,
    required_capabilities text[] DEFAULT NULL,
    delay_seconds double precision DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    timeout_seconds double precision DEFAULT NULL,
    max_retries integer DEFAULT NULL,
    retry jsonb DEFAULT NULL,
    idempotency_key text DEFAULT NULL,
    tenant text DEFAULT NULL,
    tags jsonb DEFAULT NULL,
    ordering_key text DEFAULT NULL,
    ordering_on_failure text DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    concurrency_limit integer DEFAULT NULL,
    "unique" jsonb DEFAULT NULL
) RETURNS uuid LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $body$
    SELECT :schema.enqueue_many(jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
        'task_type', $1, 'queue', $3, 'priority', $4, 'required_capabilities', to_jsonb($5), 'delay_seconds', $6,
        'run_at', to_char($7 AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'expires_at', to_char($8 AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'timeout_seconds', $9, 'max_retries', $10, 'idempotency_key', $12, 'tenant', $13, 'ordering_key', $15,
        'ordering_on_failure', $16, 'concurrency_key', $17, 'concurrency_limit', $18
    )) || CASE WHEN $2 IS NULL THEN '{}' ELSE jsonb_build_object('parameters', $2) END
       || CASE WHEN $11 IS NULL THEN '{}' ELSE jsonb_build_object('retry', $11) END
       || CASE WHEN $14 IS NULL THEN '{}' ELSE jsonb_build_object('tags', $14) END
       || CASE WHEN $19 IS NULL THEN '{}' ELSE jsonb_build_object('unique', $19) END))
$body$;

REVOKE ALL ON FUNCTION :schema.enqueue_many(jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION :schema.inbox_task_id(bigint, timestamptz) FROM PUBLIC;
REVOKE ALL ON FUNCTION :schema.make_ended_partition(integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION :schema.drop_ended_partition(integer) FROM PUBLIC;
