-- Specs as a waiter sees them; a row a spec, as JSON.
-- $1 node or null, $2 name or null (with both, with its body), $3 only those that are not answered, $4 most rows.
SELECT row_to_json(v)::text AS "row!"
FROM (
    SELECT s.node_id, s.name, s.generation, s.body_bytes, s.updated_at, s.answered, s.applied_generation, s.outcome,
           s.applied_at, s.waits_for,
           CASE WHEN $1::text IS NOT NULL AND $2::text IS NOT NULL THEN
               (SELECT encode(p.body, 'hex') FROM specs p WHERE p.node_id = s.node_id AND p.name = s.name)
           END AS body_hex
    FROM spec_status s
    WHERE ($1::text IS NULL OR s.node_id = $1::text)
      AND ($2::text IS NULL OR s.name = $2::text)
      AND (NOT $3::boolean OR NOT s.answered)
    ORDER BY s.node_id, s.name
    LIMIT $4::bigint
) v
