-- Sessions that began on a gateway whose lease another process had taken, or that it never had.
-- $1 most rows.
SELECT json_build_object('node_id', s.node_id, 'gateway_id', s.gateway_id, 'lease_epoch', s.lease_epoch,
                         'connected_at', s.connected_at, 'taken_at', h.taken_at)::text AS "row!"
FROM node_sessions s
LEFT JOIN (
    SELECT h.name, h.epoch, min(h.acquired_at) OVER (
               PARTITION BY h.name ORDER BY h.epoch ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
           ) AS taken_at
    FROM leases_history h
) h ON h.name = 'gateway:' || s.gateway_id AND h.epoch = s.lease_epoch
WHERE s.gateway_id IS NOT NULL AND (h.name IS NULL OR h.taken_at <= s.connected_at)
ORDER BY s.node_id
LIMIT $1::bigint
