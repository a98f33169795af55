-- Journals of which not every acked seq, from 1 on, is stored. $1 most rows.
SELECT json_build_object('node_id', v.node_id, 'journal_id', v.journal_id, 'acked_seq', v.acked_seq,
                         'stored', v.stored)::text AS "row!"
FROM (
    SELECT j.node_id, j.journal_id, j.acked_seq, count(e.seq) AS stored
    FROM node_journals j
    LEFT JOIN events e ON e.node_id = j.node_id AND e.journal_id = j.journal_id AND e.seq BETWEEN 1 AND j.acked_seq
    GROUP BY j.node_id, j.journal_id, j.acked_seq
) v
WHERE v.stored <> v.acked_seq
ORDER BY v.node_id, v.journal_id
LIMIT $1::bigint
