-- Sessions that began on a gateway whose lease another process had taken, or that it never had.
-- $1 most rows.
SELECT json_build_object('node_id', s.node_id, 'gateway_id', s.gateway_id, 'lease_epoch', s.lease_epoch,
                         'connected_at', s.connected_at, 'taken_at', h.taken_at)::text AS "row!"
FROM node_sessions s
LEFT JOIN LATERAL (
    SELECT min(h.acquired_at) FILTER (WHERE h.epoch > s.lease_epoch) AS taken_at,
           bool_or(h.epoch = s.lease_epoch) AS granted
    FROM leases_history h
    WHERE h.name = 'gateway:' || s.gateway_id
) h ON true
WHERE s.gateway_id IS NOT NULL
  AND (s.lease_epoch IS NULL OR h.granted IS NOT TRUE OR h.taken_at <= s.connected_at)
ORDER BY s.node_id
LIMIT $1::bigint
