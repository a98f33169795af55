-- The yardstick of updates: the columns that the writer sets, and none of its decisions.
-- One element a command in $1 node, $2 id, $3 state.
UPDATE commands c
SET state = a.state,
    accepted_at = CASE WHEN a.state = 'accepted' THEN now() ELSE c.accepted_at END,
    finished_at = CASE WHEN a.state = 'succeeded' THEN now() END,
    result = CASE WHEN a.state = 'succeeded' THEN 'done'::bytea END
FROM unnest($1::text[], $2::uuid[], ($3::text[])::command_state[]) a (node_id, id, state)
WHERE c.node_id = a.node_id COLLATE "C" AND c.id = a.id
