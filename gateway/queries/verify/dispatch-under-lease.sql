-- Dispatches by a gateway whose lease another process had taken, or that it never had. $1 most rows.
SELECT json_build_object('node_id', c.node_id, 'id', c.id, 'gateway_id', c.dispatched_by,
                         'lease_epoch', c.lease_epoch, 'dispatched_at', c.dispatched_at,
                         'taken_at', h.taken_at)::text AS "row!"
FROM commands c
LEFT JOIN (
    SELECT h.name, h.epoch, min(h.acquired_at) OVER (
               PARTITION BY h.name ORDER BY h.epoch ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
           ) AS taken_at
    FROM leases_history h
) h ON h.name = 'gateway:' || c.dispatched_by AND h.epoch = c.lease_epoch
WHERE c.dispatched_by IS NOT NULL AND (h.name IS NULL OR h.taken_at <= c.dispatched_at)
ORDER BY c.node_id, c.seq
LIMIT $1::bigint
