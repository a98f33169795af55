-- One command more for each node of $1, on a lane that no pass looks at; their ids, slot by slot.
SELECT command_id FROM enqueue_commands(node_ids => $1, kinds => ARRAY['work'], lanes => ARRAY['elsewhere'])
ORDER BY slot
