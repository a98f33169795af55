-- Liveness and disconnects, fenced by the session's epoch. Liveness locks no session.
-- $1 gateway; one element an entry in $2 node, $3 session epoch, $4 whether it is disconnected.
WITH asked AS MATERIALIZED (
    SELECT a.slot, a.node_id COLLATE "C" AS node_id, a.session_epoch, a.gone
    FROM unnest($2::text[], $3::bigint[], $4::boolean[]) WITH ORDINALITY a (node_id, session_epoch, gone, slot)
),
ended AS MATERIALIZED (
    SELECT s.node_id, s.session_epoch, s.disconnected_at
    FROM (SELECT DISTINCT a.node_id, a.session_epoch FROM asked a WHERE a.gone ORDER BY a.node_id, a.session_epoch) a
    CROSS JOIN LATERAL (
        SELECT s.node_id, s.session_epoch, s.disconnected_at
        FROM node_sessions s
        WHERE s.node_id = a.node_id AND s.session_epoch = a.session_epoch AND s.gateway_id = $1::text
        FOR NO KEY UPDATE
    ) s
),
disconnected AS (
    UPDATE node_sessions s
    SET disconnected_at = compute_now()
    FROM ended e
    WHERE s.node_id = e.node_id AND e.disconnected_at IS NULL
    RETURNING s.node_id, s.session_epoch
),
told AS (
    INSERT INTO outbox (kind, node_id, body)
    SELECT 'node.disconnected', d.node_id, jsonb_build_object('gateway', $1, 'session_epoch', d.session_epoch)
    FROM disconnected d
),
-- In node order, as a Hello writes them too.
seen AS MATERIALIZED (
    SELECT l.node_id, l.session_epoch
    FROM (SELECT DISTINCT a.node_id, a.session_epoch FROM asked a WHERE NOT a.gone ORDER BY a.node_id, a.session_epoch) a
    CROSS JOIN LATERAL (
        SELECT l.node_id, l.session_epoch
        FROM node_liveness l
        WHERE l.node_id = a.node_id AND l.session_epoch = a.session_epoch
        FOR NO KEY UPDATE
    ) l
),
alive AS (
    UPDATE node_liveness l
    SET last_seen_at = compute_now()
    FROM seen s
    WHERE l.node_id = s.node_id
)
SELECT e.node_id IS NOT NULL OR s.node_id IS NOT NULL AS "written!"
FROM asked a
LEFT JOIN ended e ON a.gone AND e.node_id = a.node_id AND e.session_epoch = a.session_epoch
LEFT JOIN seen s ON NOT a.gone AND s.node_id = a.node_id AND s.session_epoch = a.session_epoch
ORDER BY a.slot
