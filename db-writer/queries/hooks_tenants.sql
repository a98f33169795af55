-- The tenants of nodes, slot for slot; an unknown node has none. $1 nodes.
SELECT coalesce(n.tenant_id, '') AS "tenant_id!"
FROM unnest($1::text[]) WITH ORDINALITY a (node_id, slot)
LEFT JOIN nodes n ON n.node_id = a.node_id COLLATE "C"
ORDER BY a.slot
