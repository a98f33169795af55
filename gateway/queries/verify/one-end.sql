-- States and the dates that go with them. $1 most rows.
SELECT json_build_object('node_id', c.node_id, 'id', c.id, 'state', c.state, 'accepted_at', c.accepted_at,
                         'started_at', c.started_at, 'finished_at', c.finished_at)::text AS "row!"
FROM commands c
WHERE (c.phase = 't') <> (c.finished_at IS NOT NULL)
   OR (c.state = 'accepted' AND c.accepted_at IS NULL)
   OR (c.state = 'running' AND c.started_at IS NULL)
ORDER BY c.node_id, c.seq
LIMIT $1::bigint
