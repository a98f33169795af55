-- Commands in flight below the mark from which on a Hello looks for them. $1 most rows.
SELECT json_build_object('node_id', c.node_id, 'lane', c.lane, 'id', c.id, 'seq', c.seq,
                         'lane_floor', d.lane_floor)::text AS "row!"
FROM commands c
CROSS JOIN LATERAL (
    SELECT d.lane_floor
    FROM commands d
    WHERE d.node_id = c.node_id AND d.lane = c.lane AND d.dispatched_at IS NOT NULL AND NOT d.deferred
    ORDER BY d.seq DESC
    LIMIT 1
) d
WHERE c.phase = 'f' AND NOT c.deferred AND c.seq < d.lane_floor
ORDER BY c.node_id, c.lane, c.seq
LIMIT $1::bigint
