-- Liveness and disconnects, fenced by the session's epoch. Liveness reads sessions and locks none:
-- what a Hello makes of it a moment later is as true as what it was. A session that is written as ended (a
-- sweep took its gateway for dead) does not live on: nothing is dispatched to it, and its gateway must know.
-- $1 gateway; one element an entry in $2 node, $3 session epoch, $4 why it is disconnected, or null.
WITH asked AS MATERIALIZED (
    SELECT a.slot, a.node_id COLLATE "C" AS node_id, a.session_epoch, a.reason, a.reason IS NOT NULL AS gone
    FROM unnest($2::text[], $3::bigint[], $4::text[]) WITH ORDINALITY a (node_id, session_epoch, reason, slot)
    ORDER BY 2, 1
),
-- In the order of `asked`: first the sessions that ended, then, in the next step, liveness.
ended AS MATERIALIZED (
    SELECT a.*, s.node_id IS NOT NULL AS matched, s.disconnected_at
    FROM asked a
    LEFT JOIN LATERAL (
        SELECT s.node_id, s.disconnected_at
        FROM node_sessions s
        WHERE a.gone AND s.node_id = a.node_id AND s.session_epoch = a.session_epoch AND s.gateway_id = $1::text
        FOR NO KEY UPDATE
    ) s ON true
),
seen AS MATERIALIZED (
    SELECT e.*, l.node_id IS NOT NULL AS alive
    FROM ended e
    LEFT JOIN LATERAL (
        SELECT s.node_id
        FROM node_sessions s
        WHERE NOT e.gone AND s.node_id = e.node_id AND s.session_epoch = e.session_epoch AND s.gateway_id = $1
          AND s.disconnected_at IS NULL
        OFFSET 0
    ) s ON true
    LEFT JOIN LATERAL (
        SELECT l.node_id FROM node_liveness l WHERE l.node_id = s.node_id FOR NO KEY UPDATE
    ) l ON true
),
disconnected AS (
    UPDATE node_sessions s
    SET disconnected_at = compute_now()
    FROM seen e
    WHERE s.node_id = e.node_id AND e.gone AND e.matched AND e.disconnected_at IS NULL
    RETURNING s.node_id, s.session_epoch, e.reason
),
told AS (
    INSERT INTO outbox (kind, node_id, body)
    SELECT 'node.disconnected', d.node_id,
           jsonb_build_object('gateway', $1, 'session_epoch', d.session_epoch, 'reason', d.reason)
    FROM disconnected d
),
written AS (
    UPDATE node_liveness l
    SET session_epoch = e.session_epoch, last_seen_at = compute_now()
    FROM seen e
    WHERE l.node_id = e.node_id AND e.alive
)
SELECT (e.matched OR e.alive) AS "written!"
FROM seen e
ORDER BY e.slot
