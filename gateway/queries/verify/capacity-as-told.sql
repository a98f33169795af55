-- Dispatches whose own mark says that the lane was over its capacity. $1 most rows.
SELECT json_build_object('node_id', c.node_id, 'lane', c.lane, 'id', c.id, 'in_flight', c.lane_in_flight,
                         'capacity', c.lane_capacity)::text AS "row!"
FROM commands c
WHERE c.lane_in_flight > c.lane_capacity
ORDER BY c.node_id, c.seq
LIMIT $1::bigint
