-- Leases behind their own history, and takeovers out of the order of their epochs. $1 most rows.
SELECT json_build_object('lease', v.name, 'epoch', v.epoch, 'found', v.found)::text AS "row!"
FROM (
    SELECT h.name, h.epoch, 'acquired before epoch ' || h.lower AS found
    FROM (
        SELECT h.name, h.epoch, h.acquired_at, lag(h.epoch) OVER w AS lower, lag(h.acquired_at) OVER w AS before
        FROM leases_history h
        WINDOW w AS (PARTITION BY h.name ORDER BY h.epoch)
    ) h
    WHERE h.acquired_at < h.before
    UNION ALL
    SELECT h.name, h.epoch, 'the lease itself has epoch ' || coalesce(l.epoch::text, 'none')
    FROM (SELECT h.name, max(h.epoch) AS epoch FROM leases_history h GROUP BY h.name) h
    LEFT JOIN leases l ON l.name = h.name
    WHERE l.epoch IS NULL OR l.epoch < h.epoch
) v
ORDER BY v.name, v.epoch
LIMIT $1::bigint
