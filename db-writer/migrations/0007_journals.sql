-- Journals: where each one's events stand, without a row that every flush makes anew.
--
-- Until now the cursor was a column that each flush updated. While a transaction holds the xmin horizon, no such
-- version can be cleaned up, and whoever looks for the row reads them all. Now the events say where the cursor is,
-- which are only ever added to.
--
-- 1. A journal's cursor is the seq of its last event, or acked_seq where that is higher. It never falls: whatever
--    takes events away raises acked_seq first.
-- 2. A flush does not change the row of its journal, and locks it only where a hook is told what is new.
-- 3. removed_to is how far retention took events away. Those behind it, up to the cursor, are all stored;
--    `gateway verify` looks for holes, so what is deleted by hand shows.
-- 4. Locks: journals by (node, journal), where node_journals stood. Taking events away locks events first; storing
--    them locks none that is stored.

ALTER TABLE node_journals RENAME TO journals;
ALTER TABLE journals RENAME CONSTRAINT node_journals_pkey TO journals_pkey;
ALTER TABLE journals RESET (fillfactor);
ALTER TABLE journals DROP COLUMN updated_at;
ALTER TABLE journals ADD COLUMN removed_to bigint NOT NULL DEFAULT 0;

-- Journals, each with its cursor. Setting acked_seq to a higher one acks what is not stored: what is left to do
-- for a node that has lost events, and waits behind the gap.
CREATE VIEW node_journals AS
    SELECT j.node_id, j.journal_id,
           greatest(j.acked_seq, (
               SELECT e.seq FROM events e
               WHERE e.node_id = j.node_id AND e.journal_id = j.journal_id
               ORDER BY e.seq DESC LIMIT 1
           )) AS acked_seq,
           j.removed_to,
           (
               SELECT e.stored_at FROM events e
               WHERE e.node_id = j.node_id AND e.journal_id = j.journal_id
               ORDER BY e.seq DESC LIMIT 1
           ) AS updated_at
    FROM journals j;

CREATE FUNCTION node_journals_set() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO journals (node_id, journal_id, acked_seq)
        VALUES (NEW.node_id, NEW.journal_id, coalesce(NEW.acked_seq, 0));
    ELSIF (NEW.node_id, NEW.journal_id) <> (OLD.node_id, OLD.journal_id) OR NEW.acked_seq < OLD.acked_seq THEN
        RAISE EXCEPTION 'of a journal only acked_seq can be set, and only to a higher one than %', OLD.acked_seq
            USING HINT = 'A node that shall begin anew takes a new journal id.';
    ELSE
        UPDATE journals j SET acked_seq = greatest(j.acked_seq, NEW.acked_seq)
        WHERE j.node_id = NEW.node_id AND j.journal_id = NEW.journal_id;
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER node_journals_set INSTEAD OF INSERT OR UPDATE ON node_journals
    FOR EACH ROW EXECUTE FUNCTION node_journals_set();

-- == events go =======================================================================================

-- Keeps the cursors of journals whose events are deleted.
CREATE FUNCTION events_keep_cursors() RETURNS trigger
    LANGUAGE plpgsql SET search_path FROM CURRENT
    SET enable_seqscan = off SET enable_mergejoin = off SET enable_hashjoin = off AS $$
BEGIN
    PERFORM FROM (SELECT DISTINCT g.node_id, g.journal_id FROM gone g ORDER BY 1, 2) g
        CROSS JOIN LATERAL (
            SELECT FROM journals j
            WHERE j.node_id = g.node_id AND j.journal_id = g.journal_id
            FOR NO KEY UPDATE
        ) j;
    UPDATE journals j SET acked_seq = g.seq
    FROM (SELECT g.node_id, g.journal_id, max(g.seq) AS seq FROM gone g GROUP BY 1, 2) g
    WHERE j.node_id = g.node_id AND j.journal_id = g.journal_id AND j.acked_seq < g.seq;
    RETURN NULL;
END $$;

CREATE TRIGGER events_keep_cursors AFTER DELETE ON events
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION events_keep_cursors();

-- The same for all events at once.
CREATE FUNCTION events_keep_all_cursors() RETURNS trigger
    LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    UPDATE journals j SET acked_seq = n.acked_seq
    FROM node_journals n
    WHERE n.node_id = j.node_id AND n.journal_id = j.journal_id AND j.acked_seq < n.acked_seq;
    RETURN NULL;
END $$;

CREATE TRIGGER events_keep_all_cursors BEFORE TRUNCATE ON events
    FOR EACH STATEMENT EXECUTE FUNCTION events_keep_all_cursors();

-- Removes events that were stored before a date, at most so many of a node, from each journal's first one on;
-- returns how many. Cursors stay.
CREATE FUNCTION remove_old_events(node_id text, stored_before timestamptz, at_most integer DEFAULT 1000)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
    SET enable_seqscan = off SET enable_mergejoin = off SET enable_hashjoin = off AS $$
#variable_conflict use_column
DECLARE
    journal record;
    last_old bigint;
    removed integer;
    removed_in_all integer := 0;
BEGIN
    FOR journal IN
        SELECT j.journal_id, j.removed_to FROM journals j WHERE j.node_id = remove_old_events.node_id ORDER BY 1
    LOOP
        EXIT WHEN removed_in_all >= at_most;
        -- Of the first events, those before the first that is to stay.
        SELECT max(f.seq) INTO last_old
        FROM (
            SELECT e.seq, bool_and(e.stored_at < stored_before) OVER (ORDER BY e.seq) AS is_old
            FROM events e
            WHERE e.node_id = remove_old_events.node_id AND e.journal_id = journal.journal_id
              AND e.seq > journal.removed_to
            ORDER BY e.seq
            LIMIT at_most - removed_in_all
        ) f
        WHERE f.is_old;
        CONTINUE WHEN last_old IS NULL;
        DELETE FROM events e
        WHERE e.node_id = remove_old_events.node_id AND e.journal_id = journal.journal_id
          AND e.seq > journal.removed_to AND e.seq <= last_old;
        GET DIAGNOSTICS removed = ROW_COUNT;
        removed_in_all := removed_in_all + removed;
        UPDATE journals j SET removed_to = greatest(j.removed_to, last_old)
        WHERE j.node_id = remove_old_events.node_id AND j.journal_id = journal.journal_id;
    END LOOP;
    RETURN removed_in_all;
END $$;
