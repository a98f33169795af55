-- Gives commands that this gateway has sent, and that look pending, the mark of their dispatch back: a
-- crash of the database lost it. Their sessions are locked by lanes_lock.sql.
-- $1 gateway, $2 lease epoch; side by side $3 node, $4 session epoch, $5 command, $6 attempt.
WITH asked AS MATERIALIZED (
    SELECT a.node_id COLLATE "C" AS node_id, a.session_epoch, a.id, a.attempt
    FROM unnest($3::text[], $4::bigint[], $5::uuid[], $6::integer[]) a (node_id, session_epoch, id, attempt)
    ORDER BY 1, 3
),
lost AS MATERIALIZED (
    SELECT a.node_id, a.session_epoch, a.id
    FROM asked a
    CROSS JOIN LATERAL (
        SELECT s.node_id
        FROM node_sessions s
        WHERE s.node_id = a.node_id AND s.session_epoch = a.session_epoch AND s.gateway_id = $1::text
        OFFSET 0
    ) s
    CROSS JOIN LATERAL (
        SELECT c.id
        FROM commands c
        WHERE c.node_id = a.node_id AND c.id = a.id AND c.attempt = a.attempt AND c.phase = 'p'
        FOR UPDATE
    ) c
)
UPDATE commands c
SET state = 'dispatched', dispatched_at = compute_now(), dispatched_by = $1, lease_epoch = $2::bigint,
    session_epoch = l.session_epoch
FROM lost l
WHERE c.node_id = l.node_id AND c.id = l.id
