-- The rows of commands that logs speak of; one element a command in $1 node, $2 id.
SELECT json_build_object('node_id', c.node_id, 'id', c.id, 'state', c.state, 'attempt', c.attempt,
                         'done', c.phase = 't')::text AS "row!"
FROM unnest($1::text[], $2::uuid[]) a (node_id, id)
JOIN commands c ON c.node_id = a.node_id AND c.id = a.id
