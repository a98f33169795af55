-- The cursors of journals, slot for slot; one element a journal in $1 node, $2 journal, whose rows are locked: by
-- a statement before this one, so that what the one who held them stored is seen.
SELECT greatest(j.acked_seq, e.seq) AS "acked_seq!"
FROM (
    SELECT a.slot, a.node_id COLLATE "C" AS node_id, a.journal_id COLLATE "C" AS journal_id
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY a (node_id, journal_id, slot)
) a
JOIN journals j ON j.node_id = a.node_id AND j.journal_id = a.journal_id
LEFT JOIN LATERAL (
    SELECT e.seq FROM events e
    WHERE e.node_id = a.node_id AND e.journal_id = a.journal_id
    ORDER BY e.seq DESC
    LIMIT 1
) e ON true
ORDER BY a.slot
