-- Takes `leader:sweeps` where it is free, has expired, or belongs to a predecessor that is proven dead;
-- prolongs it where it is this owner's. The row is locked only where it is to be taken, so that who asks
-- and does not get it never stands in the way of who leads.
-- $1 owner, $2 prefix of dead owners or null, $3 time to live in ms.
WITH old AS MATERIALIZED (
    SELECT l.owner, l.epoch
    FROM leases l
    WHERE l.name = 'leader:sweeps'
      AND (l.owner = $1::text OR l.expires_at <= compute_now() OR ($2::text <> '' AND starts_with(l.owner, $2)))
    FOR UPDATE
),
taken AS (
    INSERT INTO leases AS l (name, owner, epoch, expires_at)
    SELECT 'leader:sweeps', $1, 1, compute_now() + $3::bigint * interval '1 ms'
    -- First the lock, then the row.
    FROM (SELECT count(*) AS rows FROM old) locked
    WHERE locked.rows > 0 OR NOT EXISTS (SELECT FROM leases l WHERE l.name = 'leader:sweeps')
    ON CONFLICT (name) DO UPDATE
    SET owner = $1, epoch = l.epoch + CASE WHEN l.owner = $1 THEN 0 ELSE 1 END, expires_at = excluded.expires_at
    WHERE l.owner = $1 OR l.expires_at <= compute_now() OR ($2 <> '' AND starts_with(l.owner, $2))
    RETURNING l.epoch
),
history AS (
    INSERT INTO leases_history (name, epoch, owner, previous_owner, acquired_at)
    SELECT 'leader:sweeps', t.epoch, $1, coalesce(o.owner, ''), compute_now()
    FROM taken t LEFT JOIN old o ON true
    WHERE o.owner IS DISTINCT FROM $1
)
SELECT t.epoch AS "epoch?",
       coalesce(greatest(0, ceil(extract(epoch FROM l.expires_at - compute_now()) * 1000)), 0)::bigint AS "expires_in_ms!"
FROM (VALUES (1)) one (row)
LEFT JOIN taken t ON true
LEFT JOIN leases l ON l.name = 'leader:sweeps'
