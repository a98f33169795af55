-- Sections whose hash is not their body's: a node that has the body would be asked for it for ever, or never
-- for the right one.
SELECT json_build_object('node_id', i.node_id, 'section', i.section, 'bytes', octet_length(i.body),
                         'hash', encode(i.hash, 'hex'), 'sha256', encode(sha256(i.body), 'hex'))::text AS "row!"
FROM inventory_sections i
WHERE i.hash IS DISTINCT FROM sha256(i.body)
ORDER BY i.node_id, i.section
LIMIT $1::bigint
