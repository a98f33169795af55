-- What ran to an end on some nodes, page by page. $1 nodes; $2 node and $3 id after which to begin;
-- $4 most rows.
SELECT json_build_object('node_id', c.node_id, 'id', c.id, 'state', c.state, 'attempt', c.attempt)::text AS "row!"
FROM commands c
WHERE c.node_id = ANY ($1::text[]) AND c.state IN ('succeeded', 'failed')
  AND (c.node_id, c.id) > ($2::text COLLATE "C", $3::uuid)
ORDER BY c.node_id, c.id
LIMIT $4::bigint
