-- The cursors of journals, slot for slot, null for one without a row; one element a journal in $1 node,
-- $2 journal. Where rows are locked, by a statement before this one: what their holder stored is seen.
SELECT CASE WHEN j.node_id IS NOT NULL THEN greatest(j.acked_seq, e.seq) END AS "acked_seq?"
FROM (
    SELECT a.slot, a.node_id COLLATE "C" AS node_id, a.journal_id COLLATE "C" AS journal_id
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY a (node_id, journal_id, slot)
) a
LEFT JOIN journals j ON j.node_id = a.node_id AND j.journal_id = a.journal_id
LEFT JOIN LATERAL (
    SELECT e.seq FROM events e
    WHERE e.node_id = a.node_id AND e.journal_id = a.journal_id
    ORDER BY e.seq DESC
    LIMIT 1
) e ON true
ORDER BY a.slot
