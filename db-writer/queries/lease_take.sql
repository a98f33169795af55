-- Takes the lease, under the lock of lease_lock.sql and with a clock read after it, where it is
-- free, has expired, is this owner's, or belongs to a predecessor that is proven dead.
-- $1 gateway, $2 owner, $3 prefix of dead owners or null, $4 time to live in ms,
-- $5 region, $6 internal url, $7 version, $8 max streams.
WITH old AS MATERIALIZED (
    SELECT l.owner, l.epoch, l.expires_at,
           l.owner = $2::text OR l.owner = '' OR l.expires_at <= compute_now()
               OR ($3::text <> '' AND starts_with(l.owner, $3)) AS free
    FROM leases l
    WHERE l.name = 'gateway:' || $1::text
),
taken AS (
    UPDATE leases l
    SET owner = $2, epoch = o.epoch + CASE WHEN o.owner = $2 THEN 0 ELSE 1 END,
        expires_at = compute_now() + $4::bigint * interval '1 ms'
    FROM old o
    WHERE l.name = 'gateway:' || $1 AND o.free
    RETURNING l.epoch
),
history AS (
    INSERT INTO leases_history (name, epoch, owner, previous_owner, acquired_at)
    SELECT 'gateway:' || $1, t.epoch, $2, o.owner, compute_now()
    FROM taken t CROSS JOIN old o
    WHERE o.owner <> $2
),
gateway AS (
    INSERT INTO gateways (id, region, internal_url, version, max_streams)
    SELECT $1, $5::text, $6::text, $7::text, $8::integer FROM taken
    ON CONFLICT (id) DO UPDATE
    SET region = excluded.region, internal_url = excluded.internal_url, version = excluded.version,
        max_streams = excluded.max_streams, sessions = 0, draining = false,
        started_at = compute_now(), heartbeat_at = compute_now()
)
SELECT t.epoch AS "epoch?", o.owner AS "owner!",
       CASE WHEN t.epoch IS NULL THEN ceil(extract(epoch FROM o.expires_at - compute_now()) * 1000)::bigint ELSE 0 END
           AS "expires_in_ms!"
FROM old o LEFT JOIN taken t ON true
