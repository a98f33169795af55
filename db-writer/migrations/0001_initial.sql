-- The schema of a gateway.
--
-- 1. The key of every hot table begins with node_id, and nothing on a hot path refers to another
--    table by a foreign key: all of them can be hash-partitioned by node.
-- 2. compute_now() is the one clock.
-- 3. No dead row stands where a hot query must look, even when no vacuum can run for hours:
--    hot tables are read through monotonic keys, from a mark on or from the far end.
-- 4. Locks are taken in this order: leases, node_sessions by node, commands by (node, id),
--    node_journals by node. Text is ordered by COLLATE "C" everywhere, so that all agree.

-- The statement's time. A test may replace it.
CREATE FUNCTION compute_now() RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
    AS 'SELECT statement_timestamp()';

-- A date as milliseconds since 1970, as the gateway passes it on.
CREATE FUNCTION unix_millis(date timestamptz) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS 'SELECT floor(extract(epoch FROM date) * 1000)::bigint';

-- == gateways and their leases =======================================================================

CREATE TABLE gateways (
    id text COLLATE "C" PRIMARY KEY,
    region text NOT NULL,
    internal_url text NOT NULL,
    version text NOT NULL,
    max_streams integer NOT NULL,
    sessions integer NOT NULL DEFAULT 0,
    draining boolean NOT NULL DEFAULT false,
    started_at timestamptz NOT NULL DEFAULT compute_now(),
    heartbeat_at timestamptz NOT NULL DEFAULT compute_now()
) WITH (fillfactor = 50);

-- The name is the only key: a renewal is a non-key update and passes FOR KEY SHARE.
CREATE TABLE leases (
    name text COLLATE "C" PRIMARY KEY,
    owner text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 10);

CREATE TABLE leases_history (
    name text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    owner text COLLATE "C" NOT NULL,
    previous_owner text COLLATE "C" NOT NULL,
    acquired_at timestamptz NOT NULL,
    PRIMARY KEY (name, epoch)
);

-- == nodes ===========================================================================================

CREATE TABLE nodes (
    node_id text COLLATE "C" PRIMARY KEY
        CHECK (octet_length(node_id) BETWEEN 1 AND 128 AND node_id !~ '[\u0001-\u001F\u007F-\u009F]'),
    tenant_id text COLLATE "C" NOT NULL DEFAULT 'default',
    registered_at timestamptz NOT NULL DEFAULT compute_now()
);

CREATE TABLE node_certs (
    serial text COLLATE "C" PRIMARY KEY CHECK (serial ~ '^[0-9A-F]+$'),
    node_id text COLLATE "C" NOT NULL,
    allowed_kinds text[],
    role text NOT NULL DEFAULT 'node',
    not_after timestamptz,
    tenant_controlled boolean NOT NULL DEFAULT false,
    revoked_at timestamptz,
    revoked_reason text
);
CREATE INDEX node_certs_by_node ON node_certs (node_id);

-- One row a node, from its registration on, so that a Hello always has a row to lock.
CREATE TABLE node_sessions (
    node_id text COLLATE "C" PRIMARY KEY,
    gateway_id text COLLATE "C",
    session_epoch bigint NOT NULL DEFAULT 0,
    lease_epoch bigint,
    boot_id text,
    machine text,
    software_version text,
    role text,
    certificate_serial text,
    lanes text[] COLLATE "C",
    lane_capacities integer[],
    connected_at timestamptz,
    disconnected_at timestamptz
) WITH (fillfactor = 50);

-- Narrow, and without any index but its key: its updates stay HOT.
CREATE TABLE node_liveness (
    node_id text COLLATE "C" PRIMARY KEY,
    session_epoch bigint NOT NULL DEFAULT 0,
    last_seen_at timestamptz
) WITH (fillfactor = 50);

-- An enqueue locks the node's row, and does not update it. seq_floor is raised by retention alone:
-- no seq at or below it is given again.
CREATE TABLE node_counters (
    node_id text COLLATE "C" PRIMARY KEY,
    seq_floor bigint NOT NULL DEFAULT 0
);

CREATE FUNCTION nodes_make_rows() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO node_counters (node_id) SELECT a.node_id FROM added a ON CONFLICT DO NOTHING;
    INSERT INTO node_sessions (node_id) SELECT a.node_id FROM added a ON CONFLICT DO NOTHING;
    INSERT INTO node_liveness (node_id) SELECT a.node_id FROM added a ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

CREATE TRIGGER nodes_make_rows AFTER INSERT ON nodes
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION nodes_make_rows();

-- Makes a node known. Returns whether it is new.
CREATE FUNCTION register_node(node_id text, tenant_id text DEFAULT 'default') RETURNS boolean
    LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    added integer;
BEGIN
    IF coalesce(register_node.node_id, '') = '' OR octet_length(register_node.node_id) > 128
       OR register_node.node_id ~ '[\u0001-\u001F\u007F-\u009F]' THEN
        RAISE EXCEPTION 'register_node: % is no node id', quote_nullable(register_node.node_id)
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'A node id is the SPIFFE URI of the node''s certificate: 1 to 128 bytes without control characters.';
    END IF;
    INSERT INTO nodes (node_id, tenant_id) VALUES (register_node.node_id, register_node.tenant_id)
        ON CONFLICT (node_id) DO NOTHING;
    GET DIAGNOSTICS added = ROW_COUNT;
    RETURN added = 1;
END $$;

-- == commands ========================================================================================

-- In the order of a life; the rules of updates compare by this order.
CREATE TYPE command_state AS ENUM (
    'pending', 'dispatched', 'accepted', 'running', 'succeeded', 'failed', 'canceled', 'expired', 'refused'
);

CREATE TABLE commands (
    node_id text COLLATE "C" NOT NULL,
    id uuid NOT NULL,
    seq bigint NOT NULL CHECK (seq > 0),
    lane text COLLATE "C" NOT NULL CHECK (octet_length(lane) BETWEEN 1 AND 64),
    kind text NOT NULL,
    payload bytea NOT NULL DEFAULT '',
    state command_state NOT NULL DEFAULT 'pending',
    -- What indexes ask of the state: pending, in flight, terminal. It does not change between
    -- dispatched, accepted and running, so that those updates are HOT.
    phase "char" NOT NULL GENERATED ALWAYS AS (
        CASE WHEN state = 'pending' THEN 'p'::"char" WHEN state < 'succeeded' THEN 'f'::"char" ELSE 't'::"char" END
    ) STORED,
    -- Not in the row of first attempts that is served by seq: it waits for its time (delayed, or
    -- refused and to be tried again), or it was adopted from what the node knows. Never unset.
    deferred boolean NOT NULL DEFAULT false,
    attempt integer NOT NULL DEFAULT 1,
    max_attempts integer NOT NULL DEFAULT 5,
    not_before timestamptz,
    not_after timestamptz,
    idempotency_key text COLLATE "C",
    -- Whether its end is told on the channel gateway_command_done.
    notify boolean NOT NULL DEFAULT false,
    enqueued_at timestamptz NOT NULL DEFAULT compute_now(),
    -- The dispatch of the current attempt.
    dispatched_at timestamptz,
    dispatched_by text COLLATE "C",
    lease_epoch bigint,
    session_epoch bigint,
    lane_capacity integer,
    -- How many of the lane were in flight then, with this one.
    lane_in_flight integer,
    -- No undeferred command of the lane with a lower seq was in flight then, nor will be.
    lane_floor bigint,
    replays integer NOT NULL DEFAULT 0,
    replayed_at timestamptz,
    accepted_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    progress text,
    result bytea,
    error text,
    refusal text,
    cancel_requested_at timestamptz,
    cancel_reason text,
    PRIMARY KEY (node_id, id)
) WITH (fillfactor = 75);

-- Of the indexes only the primary key is whole. Every other has a condition that a query repeats to
-- use it, so that a plan made over a small table has no wrong index to take.
-- The last seq of a node, by a probe from the far end.
CREATE UNIQUE INDEX commands_by_seq ON commands (node_id, seq) WHERE seq > 0;
-- First attempts that are due, from the lane's cursor on.
CREATE INDEX commands_due ON commands (node_id, lane, seq) WHERE phase = 'p' AND NOT deferred;
-- Those that wait for their time.
CREATE INDEX commands_deferred ON commands (node_id, lane, not_before) WHERE phase = 'p' AND deferred;
-- The last first attempt that was dispatched on a lane, by a probe from the far end: its seq is a
-- cursor, its lane_floor says from where on commands may be in flight.
CREATE INDEX commands_dispatched ON commands (node_id, lane, seq) WHERE dispatched_at IS NOT NULL AND NOT deferred;
-- In flight, from the lane's floor on.
CREATE INDEX commands_in_flight ON commands (node_id, lane, seq) WHERE phase = 'f' AND NOT deferred;
CREATE INDEX commands_in_flight_deferred ON commands (node_id, id) WHERE phase = 'f' AND deferred;
CREATE UNIQUE INDEX commands_by_idempotency_key ON commands (node_id, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX commands_to_cancel ON commands (node_id, id) WHERE phase = 'f' AND cancel_requested_at IS NOT NULL;
-- For the sweep that expires.
CREATE INDEX commands_expiring ON commands (not_after) WHERE phase = 'p' AND not_after IS NOT NULL;

-- Tells who asked for it that a command has ended. A trigger, so that no way to an end forgets it.
CREATE FUNCTION commands_tell_end() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_notify('gateway_command_done', NEW.id || ' ' || NEW.state);
    RETURN NULL;
END $$;

CREATE TRIGGER commands_tell_end AFTER UPDATE ON commands FOR EACH ROW
    WHEN (NEW.notify AND OLD.state < 'succeeded' AND NEW.state >= 'succeeded')
    EXECUTE FUNCTION commands_tell_end();

-- What a waiter reads. Name the node and the id.
CREATE VIEW command_status AS
    SELECT c.node_id, c.id, c.lane, c.seq, c.kind, c.state, c.phase = 't' AS done, c.attempt, c.max_attempts,
           c.enqueued_at, c.not_before, c.not_after, c.dispatched_at, c.accepted_at, c.started_at,
           c.finished_at, c.progress, c.result, c.error, c.refusal, c.cancel_requested_at, c.cancel_reason,
           CASE
               WHEN c.phase = 't' THEN NULL
               WHEN s.gateway_id IS NULL OR s.disconnected_at IS NOT NULL THEN 'the node is not connected'
               WHEN c.phase = 'f' AND c.cancel_requested_at IS NOT NULL THEN 'cancellation is asked for'
               WHEN c.phase = 'f' THEN 'the node has it'
               WHEN NOT c.lane = ANY (s.lanes) THEN 'the node did not declare this lane'
               WHEN c.not_before > compute_now() THEN 'its time has not come'
               WHEN c.not_after <= compute_now() THEN 'its time has passed'
               ELSE 'it waits for a credit of its lane'
           END AS waits_for
    FROM commands c LEFT JOIN node_sessions s ON s.node_id = c.node_id;

-- == events, inventory, specs, allocations ===========================================================

CREATE TABLE node_journals (
    node_id text COLLATE "C" NOT NULL,
    journal_id text COLLATE "C" NOT NULL,
    acked_seq bigint NOT NULL DEFAULT 0,
    updated_at timestamptz NOT NULL DEFAULT compute_now(),
    PRIMARY KEY (node_id, journal_id)
) WITH (fillfactor = 50);

CREATE TABLE events (
    node_id text COLLATE "C" NOT NULL,
    journal_id text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    kind text NOT NULL,
    body bytea NOT NULL DEFAULT '',
    boot_id text,
    -- As received; the gateway verifies none of them.
    signed_body bytea,
    signed_kid text,
    signature bytea,
    -- Why the event was refused; a tombstone keeps the journal contiguous.
    rejected text,
    stored_at timestamptz NOT NULL DEFAULT compute_now(),
    PRIMARY KEY (node_id, journal_id, seq)
);

CREATE TABLE inventory_sections (
    node_id text COLLATE "C" NOT NULL,
    section text COLLATE "C" NOT NULL,
    hash text NOT NULL,
    body bytea NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT compute_now(),
    PRIMARY KEY (node_id, section)
);

CREATE TABLE specs (
    node_id text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    generation bigint NOT NULL,
    body bytea NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT compute_now(),
    applied_generation bigint,
    applied_outcome text,
    applied_at timestamptz,
    PRIMARY KEY (node_id, name)
);

CREATE TABLE allocations (
    node_id text COLLATE "C" NOT NULL,
    id uuid NOT NULL,
    tenant_id text COLLATE "C" NOT NULL,
    state text NOT NULL,
    bound_report jsonb,
    bound_sig_kid text,
    bound_sig bytea,
    updated_at timestamptz NOT NULL DEFAULT compute_now(),
    PRIMARY KEY (node_id, id)
);

CREATE TABLE work (
    kind text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    payload jsonb NOT NULL DEFAULT '{}',
    enqueued_at timestamptz NOT NULL DEFAULT compute_now(),
    not_before timestamptz,
    attempts integer NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, key)
);

-- What the gateway publishes: node.connected, node.disconnected, node.report-failed, …
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    node_id text COLLATE "C",
    body jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT compute_now()
);
