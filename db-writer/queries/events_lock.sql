-- Locks journals and reads their cursors, slot for slot; one element a journal in $1 node, $2 journal,
-- in the order of all locks.
SELECT j.acked_seq AS "acked_seq!"
FROM (
    SELECT a.slot, a.node_id COLLATE "C" AS node_id, a.journal_id COLLATE "C" AS journal_id
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY a (node_id, journal_id, slot)
    ORDER BY a.slot
) a
CROSS JOIN LATERAL (
    SELECT j.acked_seq
    FROM node_journals j
    WHERE j.node_id = a.node_id AND j.journal_id = a.journal_id
    FOR NO KEY UPDATE
) j
