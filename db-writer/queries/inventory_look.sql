-- What of nodes' lists is not stored as they have it, in the order of the lists.
-- One element an entry of a list in $1 slot of its node, $2 node, $3 section, $4 hash.
SELECT a.slot AS "slot!", a.section AS "section!"
FROM unnest($1::integer[], $2::text[], $3::text[], $4::bytea[])
    WITH ORDINALITY a (slot, node_id, section, hash, place)
LEFT JOIN LATERAL (
    SELECT i.hash
    FROM inventory_sections i
    WHERE i.node_id = a.node_id COLLATE "C" AND i.section = a.section COLLATE "C"
) i ON true
WHERE i.hash IS DISTINCT FROM a.hash
ORDER BY a.place
