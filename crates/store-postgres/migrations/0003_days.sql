-- Days of ended tasks that are over. One is closed first, so that it can be counted while nothing comes or goes; then it is
-- gone, and nobody reads its tasks any more; then its partition is dropped, and its row here with it.
CREATE TABLE :schema.days_over (day integer PRIMARY KEY, gone boolean NOT NULL);

-- Drops the partition of a day that is gone; false if somebody is looking at it. Waits for a lock only for a moment:
-- whoever writes must not queue behind a long look at history.
DROP FUNCTION :schema.drop_ended_partition(integer);
CREATE FUNCTION :schema.drop_ended_partition(day integer) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $body$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(':name:ended_partitions', 0));
    IF NOT EXISTS (SELECT FROM :schema.days_over d WHERE d.day = drop_ended_partition.day AND d.gone) THEN
        RETURN true;
    END IF;
    IF EXISTS (SELECT FROM pg_class WHERE relname = 'ended_' || drop_ended_partition.day
        AND relnamespace = ':name'::regnamespace) THEN
        -- Whoever has read it for a while will hardly be done at once, and others would wait for us meanwhile. Of other
        -- roles' transactions it may not be told how old they are.
        IF EXISTS (SELECT FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_stat_activity a ON a.pid = l.pid
            WHERE l.locktype = 'relation' AND l.granted AND a.xact_start < clock_timestamp() - interval '1 second'
            AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND c.relname = 'ended_' || drop_ended_partition.day AND c.relnamespace = ':name'::regnamespace) THEN
            RETURN false;
        END IF;
        -- Whoever reads through all partitions has this lock first, too. The partition itself can then only be in the
        -- hands of somebody who will not be done soon.
        EXECUTE format('LOCK TABLE ONLY %I.ended IN ACCESS EXCLUSIVE MODE', ':name');
        EXECUTE format('LOCK TABLE %I.%I IN ACCESS EXCLUSIVE MODE NOWAIT', ':name', 'ended_' || drop_ended_partition.day);
        EXECUTE format('DROP TABLE %I.%I', ':name', 'ended_' || drop_ended_partition.day);
    END IF;
    DELETE FROM :schema.days_over d WHERE d.day = drop_ended_partition.day;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $body$;
REVOKE ALL ON FUNCTION :schema.drop_ended_partition(integer) FROM PUBLIC;
