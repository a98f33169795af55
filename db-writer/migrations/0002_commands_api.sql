-- What any client may call in a transaction of its own: enqueue, cancel, and their notifications.
--
-- 1. seq order is commit order for a node: an enqueue holds the node's counter row, locked and not
--    updated, until its transaction ends; the next seq is one above the last that is stored.
-- 2. What could never be delivered is refused at once, with what to do.
-- 3. Each function plans for large tables, whatever the statistics say.

-- A time-ordered id (UUID version 7).
CREATE FUNCTION new_command_id() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT encode(
        set_bit(set_bit(
            overlay(uuid_send(gen_random_uuid())
                    PLACING substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                    FROM 1 FOR 6),
            52, 1), 53, 1), 'hex')::uuid
$$;

-- Pokes the gateways that own these nodes' sessions, when the transaction commits.
-- `SET gateway.notify = off` (also of a database or a role) turns that off.
CREATE FUNCTION poke_nodes(node_ids text[]) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    IF lower(coalesce(nullif(current_setting('gateway.notify', true), ''), 'on')) NOT IN ('off', 'false', 'no', '0') THEN
        PERFORM pg_notify('gw:' || s.gateway_id, s.node_id)
        FROM node_sessions s
        WHERE s.node_id = ANY (node_ids) AND s.gateway_id IS NOT NULL AND s.disconnected_at IS NULL;
    END IF;
END $$;

-- Refuses what could never be delivered.
CREATE FUNCTION check_command(
    kind text, payload bytea, lane text, not_before timestamptz, not_after timestamptz, max_attempts integer
) RETURNS void LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    IF coalesce(kind, '') = '' OR octet_length(kind) > 128 OR kind ~ '[\u0001-\u001F\u007F-\u009F]' THEN
        RAISE EXCEPTION 'enqueue: % is no command kind', quote_nullable(left(kind, 80))
            USING ERRCODE = 'invalid_parameter_value', HINT = 'A kind has 1 to 128 bytes and no control characters.';
    END IF;
    IF coalesce(lane, '') = '' OR octet_length(lane) > 64 OR lane ~ '[\u0001-\u001F\u007F-\u009F]' THEN
        RAISE EXCEPTION 'enqueue: % is no lane name', quote_nullable(left(lane, 80))
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'A lane name has 1 to 64 bytes and no control characters. Leave it out for lane ''default''.';
    END IF;
    IF payload IS NULL THEN
        RAISE EXCEPTION 'enqueue: the payload is null' USING ERRCODE = 'null_value_not_allowed',
            HINT = 'Leave it out for an empty payload.';
    END IF;
    IF octet_length(payload) > 524288 THEN
        RAISE EXCEPTION 'enqueue: the payload has % bytes; at most 524288 are delivered', octet_length(payload)
            USING ERRCODE = 'program_limit_exceeded',
                  HINT = 'Store large data elsewhere and send a reference to it.';
    END IF;
    IF max_attempts IS NULL OR max_attempts < 1 THEN
        RAISE EXCEPTION 'enqueue: max_attempts is %; it must be at least 1', coalesce(max_attempts::text, 'null')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF not_after <= compute_now() OR not_after <= not_before THEN
        RAISE EXCEPTION 'enqueue: not_after (%) has passed, or is not after not_before; the command could never be sent', not_after
            USING ERRCODE = 'invalid_parameter_value', HINT = 'The database''s clock counts: see compute_now().';
    END IF;
END $$;

CREATE FUNCTION raise_unknown_node(node_id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'enqueue: node % is not registered', quote_nullable(left(node_id, 160))
        USING ERRCODE = 'foreign_key_violation',
              HINT = 'Register it first: SELECT register_node(' || quote_literal(coalesce(left(node_id, 160), 'spiffe://…')) || ');';
END $$;

-- Enqueues one command and returns its id. The same idempotency key again, for the same node,
-- returns the id of the first and changes nothing. With notify => true its end is told on the
-- channel gateway_command_done, as '<id> <state>'.
CREATE FUNCTION enqueue_command(
    node_id text, kind text, payload bytea DEFAULT '', lane text DEFAULT 'default',
    idempotency_key text DEFAULT NULL, not_before timestamptz DEFAULT NULL, not_after timestamptz DEFAULT NULL,
    max_attempts integer DEFAULT 5, id uuid DEFAULT NULL, notify boolean DEFAULT false
) RETURNS uuid
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
    SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    counter_floor bigint;
    next_seq bigint;
    new_id uuid := coalesce(enqueue_command.id, new_command_id());
    known_id uuid;
BEGIN
    PERFORM check_command(kind, payload, lane, not_before, not_after, max_attempts);
    SELECT n.seq_floor INTO counter_floor FROM node_counters n
        WHERE n.node_id = enqueue_command.node_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM raise_unknown_node(node_id);
    END IF;
    IF idempotency_key IS NOT NULL THEN
        SELECT c.id INTO known_id FROM commands c
            WHERE c.node_id = enqueue_command.node_id AND c.idempotency_key = enqueue_command.idempotency_key;
        IF FOUND THEN
            RETURN known_id;
        END IF;
    END IF;
    -- A statement of its own, after the lock: it sees what the one before us committed.
    SELECT c.seq INTO next_seq FROM commands c
        WHERE c.node_id = enqueue_command.node_id AND c.seq > 0 ORDER BY c.seq DESC LIMIT 1;
    next_seq := greatest(counter_floor, coalesce(next_seq, 0)) + 1;
    -- A snapshot that is older than the lock (REPEATABLE READ) ends here with 40001.
    INSERT INTO commands (node_id, id, seq, lane, kind, payload, deferred, max_attempts, not_before, not_after,
                          idempotency_key, notify)
        VALUES (enqueue_command.node_id, new_id, next_seq, enqueue_command.lane, enqueue_command.kind,
                enqueue_command.payload, coalesce(enqueue_command.not_before > compute_now(), false),
                enqueue_command.max_attempts, enqueue_command.not_before, enqueue_command.not_after,
                enqueue_command.idempotency_key, coalesce(enqueue_command.notify, false))
        ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'enqueue: node % has a command % already', quote_literal(node_id), new_id
            USING ERRCODE = 'unique_violation',
                  HINT = 'Leave the id out; for an enqueue that may be repeated pass an idempotency_key.';
    END IF;
    PERFORM poke_nodes(ARRAY[enqueue_command.node_id]);
    RETURN new_id;
END $$;

-- Enqueues many commands in a fixed number of statements. The arrays go side by side; kinds,
-- payloads and lanes may hold one element for all. Counters are locked in node order, so that two
-- callers never lock each other out. Returns the id of each slot, from 1 on.
CREATE FUNCTION enqueue_commands(
    node_ids text[], kinds text[], payloads bytea[] DEFAULT ARRAY[''::bytea], lanes text[] DEFAULT ARRAY['default'],
    idempotency_keys text[] DEFAULT NULL, not_before timestamptz DEFAULT NULL, not_after timestamptz DEFAULT NULL,
    max_attempts integer DEFAULT 5, ids uuid[] DEFAULT NULL, notify boolean DEFAULT false
) RETURNS TABLE (slot bigint, command_id uuid)
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
    SET enable_seqscan = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    entries integer := coalesce(cardinality(node_ids), 0);
    stranger text;
BEGIN
    IF coalesce(cardinality(kinds), 0) NOT IN (1, entries) OR coalesce(cardinality(payloads), 0) NOT IN (1, entries)
       OR coalesce(cardinality(lanes), 0) NOT IN (1, entries) OR cardinality(ids) <> entries
       OR cardinality(idempotency_keys) <> entries THEN
        RAISE EXCEPTION 'enqueue: the arrays differ in length'
            USING ERRCODE = 'array_subscript_error',
                  HINT = 'Pass as many kinds, payloads and lanes as node_ids, or one for all; ids and idempotency_keys one each.';
    END IF;
    PERFORM check_command(k.kind, p.payload, l.lane, not_before, not_after, max_attempts)
        FROM generate_series(1, greatest(cardinality(kinds), cardinality(payloads), cardinality(lanes))) i
        CROSS JOIN LATERAL (SELECT kinds[least(i, cardinality(kinds))] AS kind) k
        CROSS JOIN LATERAL (SELECT payloads[least(i, cardinality(payloads))] AS payload) p
        CROSS JOIN LATERAL (SELECT lanes[least(i, cardinality(lanes))] AS lane) l
        WHERE i <= entries;
    PERFORM FROM (SELECT DISTINCT a.node_id COLLATE "C" AS node_id FROM unnest(node_ids) a(node_id) ORDER BY 1) a
        CROSS JOIN LATERAL (SELECT FROM node_counters n WHERE n.node_id = a.node_id FOR NO KEY UPDATE) n;
    SELECT a.node_id INTO stranger FROM unnest(node_ids) a(node_id)
        WHERE NOT EXISTS (SELECT FROM node_counters n WHERE n.node_id = a.node_id) LIMIT 1;
    IF FOUND THEN
        PERFORM raise_unknown_node(stranger);
    END IF;
    -- Of several slots with the same node and key the first counts, and a stored one before it.
    RETURN QUERY
    WITH given AS MATERIALIZED (
        SELECT a.slot, a.node_id COLLATE "C" AS node_id,
               kinds[least(a.slot, cardinality(kinds))] AS kind,
               payloads[least(a.slot, cardinality(payloads))] AS payload,
               lanes[least(a.slot, cardinality(lanes))] AS lane,
               idempotency_keys[a.slot] AS key, coalesce(ids[a.slot], new_command_id()) AS id
        FROM unnest(node_ids) WITH ORDINALITY a(node_id, slot)
    ),
    asked AS MATERIALIZED (
        SELECT g.slot, g.node_id, g.kind, g.payload, g.lane, g.key, first_value(g.id) OVER same AS id,
               row_number() OVER same = 1 AS leads
        FROM given g
        WINDOW same AS (PARTITION BY g.node_id, coalesce(g.key, g.slot::text), g.key IS NULL ORDER BY g.slot)
    ),
    resolved AS MATERIALIZED (
        SELECT a.*, known.id AS known_id
        FROM asked a
        LEFT JOIN LATERAL (
            SELECT c.id FROM commands c WHERE c.node_id = a.node_id AND c.idempotency_key = a.key
        ) known ON true
    ),
    last AS MATERIALIZED (
        SELECT n.node_id, greatest(n.seq_floor, coalesce(top.seq, 0)) AS seq
        FROM (SELECT DISTINCT r.node_id FROM resolved r WHERE r.leads AND r.known_id IS NULL) d
        JOIN node_counters n ON n.node_id = d.node_id
        LEFT JOIN LATERAL (
            SELECT c.seq FROM commands c WHERE c.node_id = d.node_id AND c.seq > 0 ORDER BY c.seq DESC LIMIT 1
        ) top ON true
    ),
    stored AS (
        INSERT INTO commands (node_id, id, seq, lane, kind, payload, deferred, max_attempts, not_before, not_after,
                              idempotency_key, notify)
        SELECT r.node_id, r.id, l.seq + row_number() OVER (PARTITION BY r.node_id ORDER BY r.slot), r.lane, r.kind,
               r.payload, coalesce(enqueue_commands.not_before > compute_now(), false), enqueue_commands.max_attempts,
               enqueue_commands.not_before, enqueue_commands.not_after, r.key,
               coalesce(enqueue_commands.notify, false)
        FROM resolved r JOIN last l ON l.node_id = r.node_id
        WHERE r.leads AND r.known_id IS NULL
    )
    SELECT r.slot, coalesce(r.known_id, r.id) FROM resolved r ORDER BY r.slot;
    PERFORM poke_nodes(node_ids);
EXCEPTION WHEN unique_violation THEN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'enqueue: another transaction has enqueued since this one began to read'
            USING ERRCODE = 'serialization_failure', HINT = 'Run the transaction again.';
    END IF;
    RAISE;
END $$;

-- Cancels a command that is pending; asks for the cancellation of one that a node has. Returns the
-- command's state: 'canceled' at once, an earlier one where the node has still to answer, or the
-- one it ended in before.
CREATE FUNCTION cancel_command(node_id text, id uuid, reason text DEFAULT '') RETURNS text
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
    SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    stored command_state;
BEGIN
    -- It goes to the node in one frame, again at every Hello.
    IF octet_length(reason) > 4096 THEN
        RAISE EXCEPTION 'cancel: the reason has % bytes; at most 4096 are delivered', octet_length(reason)
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Say it in a sentence.';
    END IF;
    SELECT c.state INTO stored FROM commands c
        WHERE c.node_id = cancel_command.node_id AND c.id = cancel_command.id FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'cancel: node % has no command %', quote_nullable(left(node_id, 160)), coalesce(id::text, 'null')
            USING ERRCODE = 'no_data_found', HINT = 'Name the node that the command was enqueued for, and its id.';
    END IF;
    IF stored >= 'succeeded' THEN
        RETURN stored;
    END IF;
    UPDATE commands c
        SET state = CASE WHEN stored = 'pending' THEN 'canceled' ELSE c.state END,
            finished_at = CASE WHEN stored = 'pending' THEN compute_now() END,
            cancel_requested_at = coalesce(c.cancel_requested_at, compute_now()),
            cancel_reason = coalesce(c.cancel_reason, cancel_command.reason, '')
        WHERE c.node_id = cancel_command.node_id AND c.id = cancel_command.id;
    IF stored = 'pending' THEN
        RETURN 'canceled';
    END IF;
    PERFORM poke_nodes(ARRAY[cancel_command.node_id]);
    RETURN stored;
END $$;

-- Removes terminal commands that ended before a date, at most so many of a node; returns how many.
-- Raises the node's seq_floor first, so that no seq is ever given twice.
CREATE FUNCTION remove_old_commands(node_id text, ended_before timestamptz, at_most integer DEFAULT 1000) RETURNS integer
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    removed integer;
BEGIN
    PERFORM FROM node_counters n WHERE n.node_id = remove_old_commands.node_id FOR NO KEY UPDATE;
    WITH old AS MATERIALIZED (
        SELECT c.id, c.seq FROM commands c
        WHERE c.node_id = remove_old_commands.node_id AND c.seq > 0 AND c.phase = 't' AND c.finished_at < ended_before
        ORDER BY c.seq LIMIT at_most
    ),
    gone AS (
        DELETE FROM commands c USING old o
        WHERE c.node_id = remove_old_commands.node_id AND c.id = o.id AND c.phase = 't'
        RETURNING c.seq
    ),
    raised AS (
        UPDATE node_counters n SET seq_floor = g.seq FROM (SELECT max(seq) AS seq FROM gone) g
        WHERE n.node_id = remove_old_commands.node_id AND n.seq_floor < g.seq
    )
    SELECT count(*) INTO removed FROM gone;
    RETURN removed;
END $$;
