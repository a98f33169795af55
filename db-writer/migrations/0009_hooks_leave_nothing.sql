-- What a hook sets ends with it, and what would take an ack back is refused.

-- Runs one hook. Returns the SQLSTATE that it failed with, or null.
-- Deferrable constraints are checked when it ends: at the commit they would fail it for everybody.
CREATE OR REPLACE FUNCTION run_hook(hook text, told anyelement, of_node text, subject jsonb) RETURNS text
    LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    call text := (SELECT string_agg(quote_ident(p.part), '.' ORDER BY p.place)
                  FROM unnest(string_to_array(hook, '.')) WITH ORDINALITY p (part, place));
    -- Whatever the hook makes of them: the next one is called as this one was.
    path text := current_setting('search_path');
    acting_as text := current_setting('role');
    failed_with text;
    sentence text;
BEGIN
    BEGIN
        SET CONSTRAINTS ALL DEFERRED;
        EXECUTE 'SELECT ' || call || '($1)' USING told;
        SET CONSTRAINTS ALL IMMEDIATE;
        PERFORM pg_catalog.set_config('role', acting_as, true);
        PERFORM pg_catalog.set_config('search_path', path, true);
        RETURN NULL;
    -- OTHERS leaves out these two; the first is the time-out.
    EXCEPTION WHEN query_canceled OR assert_failure OR OTHERS THEN
        GET STACKED DIAGNOSTICS failed_with = RETURNED_SQLSTATE, sentence = MESSAGE_TEXT;
    END;
    PERFORM publish_report_failed(of_node, subject, hook, failed_with, sentence);
    RETURN failed_with;
END $$;

-- Keeps the cursors of all journals where all events go at once.
CREATE OR REPLACE FUNCTION events_keep_all_cursors() RETURNS trigger
    LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    -- An older snapshot does not see all that goes.
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'events can be truncated in a transaction that is READ COMMITTED alone'
            USING HINT = 'Begin anew with BEGIN ISOLATION LEVEL READ COMMITTED, or take remove_old_events.';
    END IF;
    UPDATE journals j SET acked_seq = n.acked_seq
    FROM node_journals n
    WHERE n.node_id = j.node_id AND n.journal_id = j.journal_id AND j.acked_seq < n.acked_seq;
    RETURN NULL;
END $$;

CREATE FUNCTION node_journals_stay() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a journal can not be deleted: its node would wait for an ack for ever'
        USING HINT = 'Remove its events with remove_old_events; a node that shall begin anew takes a new journal id.';
END $$;

CREATE TRIGGER node_journals_stay INSTEAD OF DELETE ON node_journals
    FOR EACH ROW EXECUTE FUNCTION node_journals_stay();

-- A temporary table that a hook has made hides no table from what runs beside hooks.
SELECT set_config('search_path', concat_ws(', ', nullif(current_setting('search_path'), ''), 'pg_temp'), true);
ALTER FUNCTION stored_report(text, text, bigint) SET search_path FROM CURRENT;
ALTER FUNCTION stored_status(text, text) SET search_path FROM CURRENT;
ALTER FUNCTION publish_report_failed(text, jsonb, text, text, text) SET search_path FROM CURRENT;
ALTER FUNCTION enqueue_work(text, text, jsonb) SET search_path FROM CURRENT;
ALTER FUNCTION events_keep_cursors() SET search_path FROM CURRENT;
