-- Ends the lease at once. $1 gateway, $2 owner, $3 epoch.
WITH ended AS (
    UPDATE leases l
    SET expires_at = compute_now()
    WHERE l.name = 'gateway:' || $1::text AND l.owner = $2::text AND l.epoch = $3::bigint
    RETURNING l.epoch
)
UPDATE gateways g
SET draining = true, sessions = 0, heartbeat_at = compute_now()
WHERE g.id = $1 AND EXISTS (SELECT FROM ended)
