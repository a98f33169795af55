-- Events that stand in no journal: whose row is gone, or before its first seq. $1 most rows.
SELECT json_build_object('node_id', e.node_id, 'journal_id', e.journal_id, 'seq', e.seq)::text AS "row!"
FROM events e
LEFT JOIN journals j ON j.node_id = e.node_id AND j.journal_id = e.journal_id
WHERE e.seq < 1 OR j.node_id IS NULL
ORDER BY e.node_id, e.journal_id, e.seq
LIMIT $1::bigint
