-- Events beyond their journal's cursor: stored over a gap, or without an ack. $1 most rows.
SELECT json_build_object('node_id', e.node_id, 'journal_id', e.journal_id, 'seq', e.seq,
                         'acked_seq', coalesce(j.acked_seq, 0))::text AS "row!"
FROM events e
LEFT JOIN node_journals j ON j.node_id = e.node_id AND j.journal_id = e.journal_id
WHERE e.seq < 1 OR e.seq > coalesce(j.acked_seq, 0)
ORDER BY e.node_id, e.journal_id, e.seq
LIMIT $1::bigint
