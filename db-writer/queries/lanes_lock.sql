-- Proves the lease and waits for any dispatch that may still hold the sessions of these lanes.
-- $1 gateway, $2 owner, $3 lease epoch, $4 nodes.
WITH lease AS MATERIALIZED (
    SELECT l.epoch
    FROM leases l
    WHERE l.name = 'gateway:' || $1::text AND l.owner = $2::text AND l.epoch = $3::bigint
      AND l.expires_at > compute_now()
    FOR KEY SHARE
),
locked AS MATERIALIZED (
    SELECT s.node_id
    FROM (
        SELECT DISTINCT a.node_id COLLATE "C" AS node_id
        FROM unnest($4::text[]) a (node_id) WHERE EXISTS (SELECT FROM lease) ORDER BY 1
    ) a
    CROSS JOIN LATERAL (SELECT s.node_id FROM node_sessions s WHERE s.node_id = a.node_id FOR UPDATE) s
)
SELECT EXISTS (SELECT FROM lease) AS "held!", (SELECT count(*) FROM locked) AS "locked!"
