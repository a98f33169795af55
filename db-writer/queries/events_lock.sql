-- Locks journals, and makes those that are new; one element a journal in $1 node, $2 journal, in the order of
-- all locks. A row that is there is locked and not changed.
INSERT INTO journals AS j (node_id, journal_id)
SELECT a.node_id, a.journal_id
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY a (node_id, journal_id, slot)
ORDER BY a.slot
ON CONFLICT (node_id, journal_id) DO UPDATE SET acked_seq = j.acked_seq WHERE false
