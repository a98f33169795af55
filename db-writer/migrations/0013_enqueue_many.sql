-- Enqueueing many at once costs the same for each, however many they are and however often it is called.
--
-- From its sixth call on in a session a function's statements run by a plan that knows no counts. The one for
-- `enqueue_commands` then joined two lists, each as long as the call, by looking through one for each row of the other:
-- 500 commands compared 250,000 pairs, for three quarters of the time of the call.
--
-- 1. No list is joined to a list: what a slot needs of its node is looked up by an index, once a node.
-- 2. Arrays are read in one pass; an element of a long array is found by walking to it.

CREATE OR REPLACE FUNCTION enqueue_commands(
    node_ids text[], kinds text[], payloads bytea[] DEFAULT ARRAY[''::bytea], lanes text[] DEFAULT ARRAY['default'],
    idempotency_keys text[] DEFAULT NULL, not_before timestamptz DEFAULT NULL, not_after timestamptz DEFAULT NULL,
    max_attempts integer DEFAULT 5, ids uuid[] DEFAULT NULL, notify boolean DEFAULT false
) RETURNS TABLE (slot bigint, command_id uuid)
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
    SET enable_seqscan = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    entries integer := coalesce(cardinality(node_ids), 0);
    -- What holds for all slots, where it does; arrays of one are not unnested, so that no slot goes without.
    every_kind text := CASE WHEN cardinality(kinds) = 1 THEN kinds[1] END;
    every_payload bytea := CASE WHEN cardinality(payloads) = 1 THEN payloads[1] END;
    every_lane text := CASE WHEN cardinality(lanes) = 1 THEN lanes[1] END;
    stranger text;
BEGIN
    IF coalesce(cardinality(kinds), 0) NOT IN (1, entries) OR coalesce(cardinality(payloads), 0) NOT IN (1, entries)
       OR coalesce(cardinality(lanes), 0) NOT IN (1, entries) OR cardinality(ids) <> entries
       OR cardinality(idempotency_keys) <> entries THEN
        RAISE EXCEPTION 'enqueue: the arrays differ in length'
            USING ERRCODE = 'array_subscript_error',
                  HINT = 'Pass as many kinds, payloads and lanes as node_ids, or one for all; ids and idempotency_keys one each.';
    END IF;
    PERFORM check_command(coalesce(every_kind, a.kind), coalesce(every_payload, a.payload),
                          coalesce(every_lane, a.lane), not_before, not_after, max_attempts)
        FROM unnest(kinds, payloads, lanes) WITH ORDINALITY a (kind, payload, lane, slot)
        WHERE a.slot <= entries;
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
        SELECT a.slot, a.node_id COLLATE "C" AS node_id, coalesce(every_kind, a.kind) AS kind,
               coalesce(every_payload, a.payload) AS payload, coalesce(every_lane, a.lane) AS lane, a.key,
               coalesce(a.id, new_command_id()) AS id
        FROM unnest(node_ids, kinds, payloads, lanes, idempotency_keys, ids)
            WITH ORDINALITY a (node_id, kind, payload, lane, key, id, slot)
        WHERE a.slot <= entries
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
    fresh AS MATERIALIZED (
        SELECT r.*, row_number() OVER (PARTITION BY r.node_id ORDER BY r.slot) AS place
        FROM resolved r
        WHERE r.leads AND r.known_id IS NULL
    ),
    -- The first of a node looks for the node's last seq, for all of them.
    numbered AS MATERIALIZED (
        SELECT f.*, f.place + max(last.seq) OVER (PARTITION BY f.node_id) AS seq
        FROM fresh f
        LEFT JOIN LATERAL (
            SELECT greatest(n.seq_floor, coalesce(top.seq, 0)) AS seq
            FROM node_counters n
            LEFT JOIN LATERAL (
                SELECT c.seq FROM commands c WHERE c.node_id = n.node_id AND c.seq > 0 ORDER BY c.seq DESC LIMIT 1
            ) top ON true
            WHERE n.node_id = f.node_id AND f.place = 1
        ) last ON true
    ),
    stored AS (
        INSERT INTO commands (node_id, id, seq, lane, kind, payload, deferred, max_attempts, not_before, not_after,
                              idempotency_key, notify)
        SELECT f.node_id, f.id, f.seq, f.lane, f.kind, f.payload,
               coalesce(enqueue_commands.not_before > compute_now(), false), enqueue_commands.max_attempts,
               enqueue_commands.not_before, enqueue_commands.not_after, f.key,
               coalesce(enqueue_commands.notify, false)
        FROM numbered f
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
