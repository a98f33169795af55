-- Gateways whose lease has ended, or has passed on to a newer process, since their sessions were last
-- looked through. Locks nothing of theirs.
-- $1 owner, $2 epoch of the lead. One row comes back in any case, to say whether the lead is held.
WITH lease AS MATERIALIZED (
    SELECT l.epoch
    FROM leases l
    WHERE l.name = 'leader:sweeps' AND l.owner = $1::text AND l.epoch = $2::bigint
      AND l.expires_at > compute_now()
    FOR KEY SHARE
)
SELECT EXISTS (SELECT FROM lease) AS "held!", d.id AS "gateway?", d.epoch AS "epoch?",
       d.is_expired AS "is_expired?"
FROM (VALUES (1)) one (row)
LEFT JOIN (
    SELECT g.id, l.epoch, l.expires_at <= compute_now() AS is_expired
    FROM leases l
    CROSS JOIN LATERAL (
        SELECT g.id
        FROM gateways g
        WHERE g.id = substr(l.name, 9)
          AND (g.sessions_reaped_below < l.epoch
               OR (l.expires_at <= compute_now()
                   AND (g.sessions_reaped_at IS NULL OR g.sessions_reaped_at < l.expires_at)))
    ) g
    -- `;` follows `:`.
    WHERE l.name > 'gateway:' AND l.name < 'gateway;' AND EXISTS (SELECT FROM lease)
) d ON true
ORDER BY d.id
