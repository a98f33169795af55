-- Reports and statuses: what nodes tell, and the SQL functions (hooks) that act on it as it is stored.
--
-- 1. A hook runs in the transaction that stores what it is told, under a savepoint of its own. One that
--    fails takes back what it did, is published in outbox as node.report-failed, and hinders nothing else.
-- 2. A hook is a function of one argument: report for events, status_report for statuses. It returns void.
-- 3. The order of locks goes on behind node_journals: node_statuses by (node, id), then whatever hooks
--    lock, which they do in order of (node, journal, seq) or (node, id).

-- == what a hook is told =============================================================================

-- An event. attested_* are the signed envelope as received; the gateway verifies none of it.
CREATE TYPE report AS (
    node_id text,
    tenant_id text,
    journal_id text,
    seq bigint,
    kind text,
    boot_id text,
    signed boolean,
    attested_body bytea,
    attested_kid text,
    attested_signature bytea,
    body bytea
);

CREATE TYPE status_report AS (
    node_id text,
    tenant_id text,
    id text,
    kind text,
    boot_id text,
    body bytea
);

-- The id is the node's: what it sends again is stored once.
CREATE TABLE node_statuses (
    node_id text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    body bytea NOT NULL DEFAULT '',
    boot_id text,
    received_at timestamptz NOT NULL DEFAULT compute_now(),
    PRIMARY KEY (node_id, id)
);
-- For retention.
CREATE INDEX node_statuses_by_age ON node_statuses (node_id, received_at);

-- Removes statuses that were received before a date, at most so many of a node; returns how many. An id
-- that is removed may be stored anew: keep them for longer than a node may send them again.
CREATE FUNCTION remove_old_statuses(node_id text, received_before timestamptz, at_most integer DEFAULT 1000)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    removed integer;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT s.id FROM node_statuses s
        WHERE s.node_id = remove_old_statuses.node_id AND s.received_at < received_before
        ORDER BY s.received_at LIMIT at_most
    )
    DELETE FROM node_statuses s USING old o WHERE s.node_id = remove_old_statuses.node_id AND s.id = o.id;
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;

-- == hooks run =======================================================================================

-- Hooks run with the search path and the planner's settings of whoever stores, so nothing here sets any,
-- but where rows are read: by their key, however small their table was when the plan was made.
CREATE FUNCTION stored_report(of_node text, of_journal text, at_seq bigint) RETURNS report
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    told report;
BEGIN
    SELECT e.node_id, n.tenant_id, e.journal_id, e.seq, e.kind, e.boot_id, e.signature IS NOT NULL,
           e.signed_body, e.signed_kid, e.signature, e.body
    INTO told
    FROM events e LEFT JOIN nodes n ON n.node_id = e.node_id
    WHERE e.node_id = of_node AND e.journal_id = of_journal AND e.seq = at_seq;
    RETURN told;
END $$;

CREATE FUNCTION stored_status(of_node text, of_id text) RETURNS status_report
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    told status_report;
BEGIN
    SELECT s.node_id, n.tenant_id, s.id, s.kind, s.boot_id, s.body
    INTO told
    FROM node_statuses s LEFT JOIN nodes n ON n.node_id = s.node_id
    WHERE s.node_id = of_node AND s.id = of_id;
    RETURN told;
END $$;

-- Publishes that a hook failed. subject names what it was told.
CREATE FUNCTION publish_report_failed(of_node text, subject jsonb, hook text, failed_with text, message text)
    RETURNS void
    LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    INSERT INTO outbox (kind, node_id, body)
    VALUES ('node.report-failed', of_node,
            subject || jsonb_build_object('hook', hook, 'sqlstate', failed_with, 'message', left(message, 1000)))
$$;

-- Runs one hook. Returns the SQLSTATE that it failed with, or null.
-- Deferrable constraints are checked when it ends: at the commit they would fail it for everybody.
CREATE FUNCTION run_hook(hook text, told anyelement, of_node text, subject jsonb) RETURNS text
    LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    call text := (SELECT string_agg(quote_ident(p.part), '.' ORDER BY p.place)
                  FROM unnest(string_to_array(hook, '.')) WITH ORDINALITY p (part, place));
    failed_with text;
    sentence text;
BEGIN
    BEGIN
        SET CONSTRAINTS ALL DEFERRED;
        EXECUTE 'SELECT ' || call || '($1)' USING told;
        SET CONSTRAINTS ALL IMMEDIATE;
        RETURN NULL;
    -- OTHERS leaves out these two; the first is the time-out.
    EXCEPTION WHEN query_canceled OR assert_failure OR OTHERS THEN
        GET STACKED DIAGNOSTICS failed_with = RETURNED_SQLSTATE, sentence = MESSAGE_TEXT;
    END;
    PERFORM publish_report_failed(of_node, subject, hook, failed_with, sentence);
    RETURN failed_with;
END $$;

-- Runs hooks over stored events, one slot a hook and an event, in order; returns of how many slots it has
-- run the hook, and how many of those failed. It begins none when so many milliseconds have passed, or when
-- one was canceled: the statement's time-out comes once. The caller calls again with the rest.
CREATE FUNCTION run_report_hooks(
    hooks text[], node_ids text[], journal_ids text[], seqs bigint[], patience_ms integer,
    OUT done integer, OUT failed integer
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    began timestamptz := clock_timestamp();
    told report;
    failed_with text;
BEGIN
    done := 0;
    failed := 0;
    WHILE done < cardinality(hooks) LOOP
        done := done + 1;
        told := stored_report(node_ids[done], journal_ids[done], seqs[done]);
        failed_with := run_hook(hooks[done], told, told.node_id, jsonb_build_object(
            'journal_id', told.journal_id, 'seq', told.seq, 'kind', told.kind));
        failed := failed + (failed_with IS NOT NULL)::integer;
        EXIT WHEN failed_with = '57014' OR clock_timestamp() - began >= patience_ms * interval '1 ms';
    END LOOP;
END $$;

-- The same over stored statuses.
CREATE FUNCTION run_status_hooks(
    hooks text[], node_ids text[], ids text[], patience_ms integer, OUT done integer, OUT failed integer
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    began timestamptz := clock_timestamp();
    told status_report;
    failed_with text;
BEGIN
    done := 0;
    failed := 0;
    WHILE done < cardinality(hooks) LOOP
        done := done + 1;
        told := stored_status(node_ids[done], ids[done]);
        failed_with := run_hook(hooks[done], told, told.node_id, jsonb_build_object(
            'status_id', told.id, 'kind', told.kind));
        failed := failed + (failed_with IS NOT NULL)::integer;
        EXIT WHEN failed_with = '57014' OR clock_timestamp() - began >= patience_ms * interval '1 ms';
    END LOOP;
END $$;

-- == what hooks call =================================================================================

-- Makes sure that work of this kind and key waits for its worker; returns whether it is new. Of what waits
-- already the payload is replaced, and enqueued_at moves: a worker that deletes only the row as it took it
-- loses nothing that came meanwhile.
CREATE FUNCTION enqueue_work(kind text, key text, payload jsonb DEFAULT '{}') RETURNS boolean
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    is_new boolean;
BEGIN
    INSERT INTO work AS w (kind, key, payload)
        VALUES (enqueue_work.kind, enqueue_work.key, enqueue_work.payload)
        ON CONFLICT (kind, key) DO UPDATE SET payload = excluded.payload, enqueued_at = compute_now()
        RETURNING xmax = 0 INTO is_new;
    RETURN is_new;
END $$;

-- == hooks that are built in =========================================================================

-- bound_report is what the node signed, as received, and so no longer JSON.
-- bound_at: when the node reported that it holds the allocation; it says so once.
ALTER TABLE allocations
    ALTER COLUMN bound_report TYPE bytea USING convert_to(bound_report::text, 'UTF8'),
    ADD COLUMN bound_at timestamptz;
UPDATE allocations SET bound_at = updated_at WHERE bound_report IS NOT NULL;

-- The XIDs that a node's driver has told, each with how often.
CREATE TABLE gpu_xids (
    node_id text COLLATE "C" NOT NULL,
    gpu text COLLATE "C" NOT NULL,
    xid integer NOT NULL,
    times bigint NOT NULL DEFAULT 1,
    first_seen_at timestamptz NOT NULL DEFAULT compute_now(),
    last_seen_at timestamptz NOT NULL DEFAULT compute_now(),
    PRIMARY KEY (node_id, gpu, xid)
) WITH (fillfactor = 75);

-- The allocation that a report is about: {"allocation_id": "<uuid>", …}.
CREATE FUNCTION reported_allocation(told report) RETURNS uuid LANGUAGE plpgsql STABLE AS $$
DECLARE
    allocation text := convert_from(told.body, 'UTF8')::jsonb ->> 'allocation_id';
BEGIN
    IF allocation IS NULL THEN
        RAISE EXCEPTION 'the body of % names no allocation_id', told.kind
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN allocation::uuid;
END $$;

-- Notes that the node holds an allocation. One of another node is treated as an unknown one, and one that
-- was bound before, or is over, stays as it is. Returns whether it was noted.
CREATE FUNCTION bind_allocation(told report, state_then text) RETURNS boolean
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    allocation uuid := reported_allocation(told);
BEGIN
    UPDATE allocations a
    SET state = state_then, bound_report = told.attested_body, bound_sig_kid = told.attested_kid,
        bound_sig = told.attested_signature, bound_at = compute_now(), updated_at = compute_now()
    WHERE a.node_id = told.node_id AND a.id = allocation AND a.bound_at IS NULL
      AND a.state NOT IN ('released', 'failed');
    RETURN FOUND;
END $$;

CREATE FUNCTION on_allocation_bound(told report) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM bind_allocation(told, 'bound');
END $$;

-- The same where bindings are attested: a worker verifies what the node signed.
CREATE FUNCTION on_allocation_bound_attested(told report) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    allocation uuid := reported_allocation(told);
BEGIN
    IF bind_allocation(told, 'bound-unverified') THEN
        PERFORM enqueue_work('allocation.verify', allocation::text, jsonb_build_object('node_id', told.node_id));
    END IF;
END $$;

-- An allocation ends once, by the first report that says so.
CREATE FUNCTION end_allocation(told report, state_then text) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    allocation uuid := reported_allocation(told);
BEGIN
    UPDATE allocations a
    SET state = state_then, updated_at = compute_now()
    WHERE a.node_id = told.node_id AND a.id = allocation AND a.state NOT IN ('released', 'failed');
END $$;

CREATE FUNCTION on_allocation_released(told report) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM end_allocation(told, 'released');
END $$;

CREATE FUNCTION on_allocation_failed(told report) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM end_allocation(told, 'failed');
END $$;

-- A driver's error on a GPU: {"gpu": "<name>", "xid": 79, …}.
CREATE FUNCTION on_gpu_xid(told status_report) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    body jsonb := convert_from(told.body, 'UTF8');
    gpu_told text := body ->> 'gpu';
    xid_told integer := body ->> 'xid';
BEGIN
    IF gpu_told IS NULL OR xid_told IS NULL THEN
        RAISE EXCEPTION 'the body of % must name a gpu and an xid', told.kind
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO gpu_xids AS x (node_id, gpu, xid) VALUES (told.node_id, gpu_told, xid_told)
        ON CONFLICT (node_id, gpu, xid) DO UPDATE SET times = x.times + 1, last_seen_at = compute_now();
    INSERT INTO outbox (kind, node_id, body) VALUES ('node.gpu-xid', told.node_id,
        jsonb_build_object('gpu', gpu_told, 'xid', xid_told, 'status_id', told.id));
END $$;
