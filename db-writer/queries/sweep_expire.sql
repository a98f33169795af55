-- Expires pending commands whose time has passed, the earliest first. It waits for no command: what
-- another transaction holds is left, and the earliest of these is said.
-- Locks: the lease of the sweeps FOR KEY SHARE, then the commands in (node, id) order.
-- $1 owner, $2 epoch of the lead, $3 not_after from where on to look, in ms, $4 most rows.
WITH lease AS MATERIALIZED (
    SELECT l.epoch
    FROM leases l
    WHERE l.name = 'leader:sweeps' AND l.owner = $1::text AND l.epoch = $2::bigint
      AND l.expires_at > compute_now()
    FOR KEY SHARE
),
found AS MATERIALIZED (
    SELECT c.node_id, c.id, c.not_after
    FROM commands c
    WHERE c.phase = 'p' AND c.not_after IS NOT NULL
      AND c.not_after >= timestamptz 'epoch' + $3::bigint * interval '1 ms' AND c.not_after <= compute_now()
      AND EXISTS (SELECT FROM lease)
    ORDER BY c.not_after
    LIMIT $4::bigint
),
locked AS MATERIALIZED (
    SELECT f.node_id, f.id
    FROM (SELECT f.* FROM found f ORDER BY f.node_id, f.id) f
    CROSS JOIN LATERAL (
        SELECT c.id
        FROM commands c
        WHERE c.node_id = f.node_id AND c.id = f.id AND c.phase = 'p' AND c.not_after <= compute_now()
        FOR UPDATE SKIP LOCKED
    ) c
),
expired AS (
    UPDATE commands c
    SET state = 'expired', finished_at = compute_now()
    FROM locked l
    WHERE c.node_id = l.node_id AND c.id = l.id
    RETURNING c.id
)
SELECT EXISTS (SELECT FROM lease) AS "held!",
       (SELECT count(*) FROM expired) AS "expired!",
       count(f.id) AS "found!",
       -- Not rounded up: what is looked at again is harmless, what is passed over is not.
       unix_millis(max(f.not_after)) AS "last?",
       unix_millis(min(f.not_after) FILTER (
           WHERE ((f.node_id, f.id) IN (SELECT l.node_id, l.id FROM locked l)) IS NOT TRUE)) AS "skipped?",
       unix_millis(compute_now()) AS "now!"
FROM found f
