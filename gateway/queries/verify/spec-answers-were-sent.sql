-- Specs with an answer to a generation that they never had, or with half of one. $1 most rows.
SELECT json_build_object('node_id', p.node_id, 'name', p.name, 'generation', p.generation,
                         'applied_generation', p.applied_generation, 'outcome', p.applied_outcome)::text AS "row!"
FROM specs p
WHERE p.generation < 1
   OR p.applied_generation NOT BETWEEN 1 AND p.generation
   OR (p.applied_generation IS NULL) <> (p.applied_outcome IS NULL)
   OR (p.applied_generation IS NULL) <> (p.applied_at IS NULL)
ORDER BY p.node_id, p.name
LIMIT $1::bigint
