-- Commands that were sent when their time had passed. A replay is decided by one statement of a
-- Hello and dated by its next, hence a second's grace. $1 most rows.
SELECT json_build_object('node_id', c.node_id, 'id', c.id, 'not_after', c.not_after,
                         'dispatched_at', c.dispatched_at, 'replayed_at', c.replayed_at)::text AS "row!"
FROM commands c
WHERE (c.dispatched_by IS NOT NULL AND c.dispatched_at > c.not_after)
   OR c.replayed_at > c.not_after + interval '1 s'
ORDER BY c.node_id, c.seq
LIMIT $1::bigint
