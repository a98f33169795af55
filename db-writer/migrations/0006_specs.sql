-- Specs: desired state of a node, by name. Whoever may call these functions sets it; gateways push it.
--
-- 1. A spec's generation counts its bodies from 1 on: it rises by one with each change, and never falls.
-- 2. What could never be delivered is refused at once, with what to do.
-- 3. Locks: after those of 0001 come nodes by node, then specs by (node, name). Setting takes both, an answer of
--    a node specs alone, a look none.
-- 4. A spec is answered when applied_generation is its generation. Those that are not stand in an index of their
--    own, so that a sweep reads what is due and not what is.

CREATE INDEX specs_unanswered ON specs (node_id, name) WHERE applied_generation IS DISTINCT FROM generation;

-- Pokes the gateways that own these nodes' sessions, when the transaction commits. A channel of its own: a
-- poke of a command costs no look at specs, nor this one a look at lanes.
CREATE FUNCTION poke_specs(node_ids text[]) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
    IF lower(coalesce(nullif(current_setting('gateway.notify', true), ''), 'on')) NOT IN ('off', 'false', 'no', '0') THEN
        PERFORM pg_notify('gws:' || s.gateway_id, s.node_id)
        FROM node_sessions s
        WHERE s.node_id = ANY (node_ids) AND s.gateway_id IS NOT NULL AND s.disconnected_at IS NULL;
    END IF;
END $$;

-- Sets the same spec for many nodes, in a fixed number of statements. Gives each node's generation: one more
-- than before where the body is another, as before where it is the same. Nodes are locked in their order, so
-- that two callers never lock each other out.
CREATE FUNCTION set_specs(node_ids text[], name text, body bytea) RETURNS TABLE (node_id text, generation bigint)
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
    SET enable_seqscan = off SET enable_mergejoin = off SET enable_hashjoin = off AS $$
#variable_conflict use_column
DECLARE
    offender text;
    changed text[];
BEGIN
    IF coalesce(set_specs.name, '') = '' OR octet_length(set_specs.name) > 64
       OR set_specs.name ~ '[\u0001-\u001F\u007F-\u009F]' THEN
        RAISE EXCEPTION 'set_spec: % is no spec name', quote_nullable(left(set_specs.name, 80))
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'A spec name has 1 to 64 bytes and no control characters.';
    END IF;
    IF set_specs.body IS NULL THEN
        RAISE EXCEPTION 'set_spec: the body is null' USING ERRCODE = 'null_value_not_allowed',
            HINT = 'A node keeps what it was given: to end a spec, set a body that says so to the node.';
    END IF;
    IF octet_length(set_specs.body) > 524288 THEN
        RAISE EXCEPTION 'set_spec: the body has % bytes; at most 524288 are delivered', octet_length(set_specs.body)
            USING ERRCODE = 'program_limit_exceeded',
                  HINT = 'Store large data elsewhere and send a reference to it.';
    END IF;
    PERFORM FROM (SELECT DISTINCT a.node_id COLLATE "C" AS node_id FROM unnest(node_ids) a (node_id) ORDER BY 1) a
        CROSS JOIN LATERAL (SELECT FROM nodes n WHERE n.node_id = a.node_id FOR NO KEY UPDATE) n;
    SELECT coalesce(a.node_id, '') INTO offender FROM unnest(node_ids) a (node_id)
        WHERE NOT EXISTS (SELECT FROM nodes n WHERE n.node_id = a.node_id) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'set_spec: node % is not registered', quote_literal(left(offender, 160))
            USING ERRCODE = 'foreign_key_violation',
                  HINT = 'Register it first: SELECT register_node('
                         || quote_literal(coalesce(nullif(left(offender, 160), ''), 'spiffe://…')) || ');';
    END IF;
    -- Statements of their own, after the locks: they see what the one before us committed.
    SELECT a.node_id INTO offender FROM unnest(node_ids) a (node_id)
        WHERE (SELECT count(*) FROM specs s WHERE s.node_id = a.node_id AND s.name <> set_specs.name) >= 64 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'set_spec: node % has 64 specs already', quote_literal(offender)
            USING ERRCODE = 'program_limit_exceeded',
                  HINT = 'A Hello lists all that a node has: put what belongs together into one spec.';
    END IF;
    WITH written AS (
        INSERT INTO specs AS s (node_id, name, generation, body)
        SELECT a.node_id, set_specs.name, 1, set_specs.body
        FROM (SELECT DISTINCT a.node_id COLLATE "C" AS node_id FROM unnest(node_ids) a (node_id) ORDER BY 1) a
        ON CONFLICT (node_id, name) DO UPDATE
            SET generation = s.generation + 1, body = excluded.body, updated_at = compute_now()
            WHERE s.body <> excluded.body
        RETURNING s.node_id
    )
    SELECT array_agg(w.node_id) INTO changed FROM written w;
    IF changed IS NOT NULL THEN
        PERFORM poke_specs(changed);
    END IF;
    RETURN QUERY SELECT s.node_id, s.generation
        FROM (SELECT DISTINCT a.node_id COLLATE "C" AS node_id FROM unnest(node_ids) a (node_id)) a
        JOIN specs s ON s.node_id = a.node_id AND s.name = set_specs.name
        ORDER BY 1;
END $$;

-- Sets a spec of one node; returns its generation.
CREATE FUNCTION set_spec(node_id text, name text, body bytea) RETURNS bigint
    LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT s.generation FROM set_specs(ARRAY[set_spec.node_id], set_spec.name, set_spec.body) s
$$;

-- What a waiter reads. Name the node.
CREATE VIEW spec_status AS
    SELECT p.node_id, p.name, p.generation, octet_length(p.body) AS body_bytes, p.updated_at, p.applied_generation,
           p.applied_outcome AS outcome, p.applied_at,
           p.applied_generation IS NOT DISTINCT FROM p.generation AS answered,
           CASE
               WHEN p.applied_generation IS NOT DISTINCT FROM p.generation THEN NULL
               WHEN s.gateway_id IS NULL OR s.disconnected_at IS NOT NULL THEN 'the node is not connected'
               ELSE 'the node has not answered yet'
           END AS waits_for
    FROM specs p LEFT JOIN node_sessions s ON s.node_id = p.node_id;
