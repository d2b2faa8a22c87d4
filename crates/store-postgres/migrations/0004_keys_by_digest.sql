-- Idempotency keys, found by a digest of queue, tenant and key: an index of the texts was most of what a submit cost. No
-- tenant is ''. They outlive their tasks or their tasks outlive them.
CREATE TABLE :schema.idempotency_keys (
    scope uuid PRIMARY KEY,
    task bigint NOT NULL,
    created_at bigint NOT NULL,
    digest bigint NOT NULL,
    forget_at bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 1);
CREATE INDEX idempotency_keys_forget_at ON :schema.idempotency_keys (forget_at);

CREATE FUNCTION :schema.idempotency_scope(queue text, tenant text, key text) RETURNS uuid LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $body$
    SELECT encode(substr(sha256(convert_to(queue, 'UTF8') || '\x00' || convert_to(tenant, 'UTF8') || '\x00'
        || convert_to(key, 'UTF8') || '\x00'), 1, 16), 'hex')::uuid
$body$;

-- Servers of the version before know the old table only, and use it until they are replaced: what they write there is
-- written here too. They do not read what newer servers write, but stop at the first entry of one. A later version drops
-- the old table.
CREATE FUNCTION :schema.copy_idempotency() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $body$
BEGIN
    IF TG_OP = 'DELETE' THEN
        DELETE FROM :schema.idempotency_keys WHERE scope = :schema.idempotency_scope(OLD.queue, OLD.tenant, OLD.key);
    ELSE
        INSERT INTO :schema.idempotency_keys AS known (scope, task, created_at, digest, forget_at, queue, tenant, key)
        VALUES (:schema.idempotency_scope(NEW.queue, NEW.tenant, NEW.key),
            NEW.task, NEW.created_at, NEW.digest, NEW.forget_at, NEW.queue, NEW.tenant, NEW.key)
        ON CONFLICT (scope) DO UPDATE SET task = excluded.task, created_at = excluded.created_at,
            digest = excluded.digest, forget_at = excluded.forget_at;
    END IF;
    RETURN NULL;
END $body$;
REVOKE ALL ON FUNCTION :schema.copy_idempotency() FROM PUBLIC;
-- Waits for whoever writes, and lets nobody write before the copy is whole.
CREATE TRIGGER copied AFTER INSERT OR UPDATE OR DELETE ON :schema.idempotency
FOR EACH ROW EXECUTE FUNCTION :schema.copy_idempotency();
INSERT INTO :schema.idempotency_keys (scope, task, created_at, digest, forget_at, queue, tenant, key)
SELECT :schema.idempotency_scope(queue, tenant, key), task, created_at, digest, forget_at, queue, tenant, key
FROM :schema.idempotency;

-- What lives for a short time is found by its key alone: statistics of it decide nothing, and it is gone before it could
-- be frozen.
ALTER TABLE :schema.log SET (autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 1);
ALTER TABLE :schema.live SET (autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 1);
ALTER TABLE :schema.overlays SET (autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 1);
ALTER TABLE :schema.claims SET (autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 1);
