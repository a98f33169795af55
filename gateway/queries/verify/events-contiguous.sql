-- Journals of which not every acked seq is stored, but for those that retention removed. $1 most rows.
SELECT json_build_object('node_id', v.node_id, 'journal_id', v.journal_id, 'acked_seq', v.acked_seq,
                         'removed_to', v.removed_to, 'stored_behind_it', v.stored)::text AS "row!"
FROM (
    SELECT j.node_id, j.journal_id, j.acked_seq, j.removed_to, count(e.seq) AS stored
    FROM node_journals j
    LEFT JOIN events e ON e.node_id = j.node_id AND e.journal_id = j.journal_id AND e.seq > j.removed_to
    GROUP BY j.node_id, j.journal_id, j.acked_seq, j.removed_to
) v
WHERE v.stored <> v.acked_seq - v.removed_to
ORDER BY v.node_id, v.journal_id
LIMIT $1::bigint
