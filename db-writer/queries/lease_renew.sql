-- Prolongs the lease: a non-key update, which never waits for FOR KEY SHARE.
-- $1 gateway, $2 owner, $3 epoch, $4 time to live in ms, $5 sessions, $6 draining.
WITH renewed AS (
    UPDATE leases l
    SET expires_at = compute_now() + $4::bigint * interval '1 ms'
    WHERE l.name = 'gateway:' || $1::text AND l.owner = $2::text AND l.epoch = $3::bigint
    RETURNING l.epoch
),
gateway AS (
    UPDATE gateways g
    SET sessions = $5::integer, draining = $6::boolean, heartbeat_at = compute_now()
    WHERE g.id = $1 AND EXISTS (SELECT FROM renewed)
)
SELECT EXISTS (SELECT FROM renewed) AS "held!", l.owner AS "owner?",
       greatest(0, ceil(extract(epoch FROM l.expires_at - compute_now()) * 1000))::bigint AS "expires_in_ms?"
FROM (VALUES (1)) one (row) LEFT JOIN leases l ON l.name = 'gateway:' || $1
