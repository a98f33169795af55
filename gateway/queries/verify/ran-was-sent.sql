-- What a node has, or has run, was marked as sent to it, or adopted from it. $1 most rows.
SELECT json_build_object('node_id', c.node_id, 'id', c.id, 'state', c.state)::text AS "row!"
FROM commands c
WHERE c.dispatched_at IS NULL AND (c.phase = 'f' OR c.state IN ('succeeded', 'failed'))
ORDER BY c.node_id, c.seq
LIMIT $1::bigint
