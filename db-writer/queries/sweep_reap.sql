-- Looks through one page of nodes, and marks their sessions on a dead gateway disconnected.
-- Locks: the lease of the sweeps FOR KEY SHARE; the dead gateway's, where it is expired, FOR UPDATE, so
-- that none of its Hellos is under way and none begins meanwhile; then sessions in node order. It waits
-- for none of them: a lease that is locked is about to live, a session that is locked is about to move.
-- The lease of a gateway that lives is not locked: sessions of an older epoch than it has stay dead.
-- $1 owner, $2 epoch of the lead, $3 gateway, $4 the epoch that its lease has reached, $5 whether the
-- lease is expired; $6 node after which to look or '', $7 when the look through began, in ms, or null,
-- $8 whether it skipped a session before, $9 nodes of a page.
WITH lead AS MATERIALIZED (
    SELECT l.epoch
    FROM leases l
    WHERE l.name = 'leader:sweeps' AND l.owner = $1::text AND l.epoch = $2::bigint
      AND l.expires_at > compute_now()
    FOR KEY SHARE
),
dead AS MATERIALIZED (
    SELECT l.epoch
    FROM leases l
    WHERE $5::boolean AND l.name = 'gateway:' || $3::text AND l.expires_at <= compute_now()
      AND EXISTS (SELECT FROM lead)
    FOR UPDATE SKIP LOCKED
),
ready AS MATERIALIZED (
    SELECT FROM lead WHERE NOT $5 OR EXISTS (SELECT FROM dead)
),
page AS MATERIALIZED (
    SELECT s.node_id, s.session_epoch,
           (s.gateway_id = $3 AND s.disconnected_at IS NULL AND ($5 OR s.lease_epoch < $4::bigint)) IS TRUE AS is_left
    FROM node_sessions s
    WHERE s.node_id > $6::text AND EXISTS (SELECT FROM ready)
    ORDER BY s.node_id
    LIMIT $9::bigint
),
locked AS MATERIALIZED (
    SELECT p.node_id, p.session_epoch
    FROM (SELECT p.* FROM page p WHERE p.is_left ORDER BY p.node_id) p
    CROSS JOIN LATERAL (
        SELECT s.node_id
        FROM node_sessions s
        WHERE s.node_id = p.node_id AND s.session_epoch = p.session_epoch AND s.gateway_id = $3
          AND s.disconnected_at IS NULL
        FOR NO KEY UPDATE SKIP LOCKED
    ) s
),
reaped AS (
    UPDATE node_sessions s
    SET disconnected_at = compute_now()
    FROM locked l
    WHERE s.node_id = l.node_id
    RETURNING s.node_id, s.session_epoch
),
told AS (
    INSERT INTO outbox (kind, node_id, body)
    SELECT 'node.disconnected', r.node_id,
           jsonb_build_object('gateway', $3, 'session_epoch', r.session_epoch, 'reason', 'gateway-dead')
    FROM reaped r
),
counted AS MATERIALIZED (
    SELECT count(*) AS looked_at, max(p.node_id) AS last, count(*) FILTER (WHERE p.is_left) AS left_over,
           (SELECT count(*) FROM locked) AS taken
    FROM page p
),
finished AS (
    UPDATE gateways g
    SET sessions = CASE WHEN $5 THEN 0 ELSE g.sessions END, sessions_reaped_below = $4,
        sessions_reaped_at = CASE
            WHEN $5 THEN coalesce(timestamptz 'epoch' + $7::bigint * interval '1 ms', compute_now())
            ELSE g.sessions_reaped_at
        END
    FROM counted c
    WHERE g.id = $3 AND EXISTS (SELECT FROM ready) AND c.looked_at < $9 AND c.left_over = c.taken AND NOT $8::boolean
)
SELECT EXISTS (SELECT FROM lead) AS "led!", EXISTS (SELECT FROM ready) AS "is_dead!", c.looked_at AS "looked_at!",
       c.last AS "last?", c.left_over > c.taken AS "skipped!", c.taken AS "reaped!",
       unix_millis(compute_now()) AS "now!"
FROM counted c
