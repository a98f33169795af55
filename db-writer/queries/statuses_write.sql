-- Stores statuses, each id of a node at most once in a batch; gives those that were not there.
-- One element a status in $1 node, $2 id, $3 kind, $4 body, $5 boot id.
INSERT INTO node_statuses (node_id, id, kind, body, boot_id)
SELECT a.node_id, a.id, a.kind, a.body, nullif(a.boot_id, '')
FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::text[]) a (node_id, id, kind, body, boot_id)
-- The order of all locks.
ORDER BY a.node_id COLLATE "C", a.id COLLATE "C"
ON CONFLICT (node_id, id) DO NOTHING
RETURNING node_id AS "node_id!", id AS "id!"
