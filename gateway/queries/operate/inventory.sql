-- Sections of inventories, by node and name; a row a section, as JSON.
-- $1 node or null, $2 section or null, $3 most rows. Where both are named, the body comes with it.
SELECT row_to_json(v)::text AS "row!"
FROM (
    SELECT i.node_id, i.section, octet_length(i.body) AS bytes, encode(i.hash, 'hex') AS sha256, i.updated_at,
           i.session_epoch,
           CASE WHEN $1::text IS NOT NULL AND $2::text IS NOT NULL THEN encode(i.body, 'hex') END AS body_hex
    FROM inventory_sections i
    WHERE ($1::text IS NULL OR i.node_id = $1::text)
      AND ($2::text IS NULL OR i.section = $2::text)
    ORDER BY i.node_id, i.section
    LIMIT $3::bigint
) v
