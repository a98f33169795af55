-- Dispatches by a gateway whose lease another process had taken, or that it never had. $1 most rows.
SELECT json_build_object('node_id', c.node_id, 'id', c.id, 'gateway_id', c.dispatched_by,
                         'lease_epoch', c.lease_epoch, 'dispatched_at', c.dispatched_at,
                         'taken_at', h.taken_at)::text AS "row!"
FROM commands c
LEFT JOIN LATERAL (
    SELECT min(h.acquired_at) FILTER (WHERE h.epoch > c.lease_epoch) AS taken_at,
           bool_or(h.epoch = c.lease_epoch) AS granted
    FROM leases_history h
    WHERE h.name = 'gateway:' || c.dispatched_by
) h ON true
WHERE c.dispatched_by IS NOT NULL
  AND (c.lease_epoch IS NULL OR h.granted IS NOT TRUE OR h.taken_at <= c.dispatched_at)
ORDER BY c.node_id, c.seq
LIMIT $1::bigint
