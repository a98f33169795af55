-- Makes sure that journals have a row to lock; one element a journal in $1 node, $2 journal, in the
-- order of all locks. A new journal begins a new cursor.
INSERT INTO node_journals (node_id, journal_id)
SELECT a.node_id, a.journal_id
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY a (node_id, journal_id, slot)
ORDER BY a.slot
ON CONFLICT (node_id, journal_id) DO NOTHING
