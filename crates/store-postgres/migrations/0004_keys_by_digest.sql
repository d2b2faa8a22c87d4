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
INSERT INTO :schema.idempotency_keys (scope, task, created_at, digest, forget_at, queue, tenant, key)
SELECT encode(substr(sha256(convert_to(queue, 'UTF8') || '\x00' || convert_to(tenant, 'UTF8') || '\x00'
    || convert_to(key, 'UTF8') || '\x00'), 1, 16), 'hex')::uuid,
    task, created_at, digest, forget_at, queue, tenant, key
FROM :schema.idempotency;
CREATE INDEX idempotency_keys_forget_at ON :schema.idempotency_keys (forget_at);
DROP TABLE :schema.idempotency;

-- What lives for a short time is found by its key alone: statistics of it decide nothing, and it is gone before it could
-- be frozen.
ALTER TABLE :schema.log SET (autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 1);
ALTER TABLE :schema.live SET (autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 1);
ALTER TABLE :schema.overlays SET (autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 1);
ALTER TABLE :schema.claims SET (autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 1);
