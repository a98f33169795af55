-- Stores what nodes said of specs, each spec of a node at most once in a batch, and says slot for slot what
-- became of it. One element an answer in $1 node, $2 name, $3 generation, $4 outcome.
WITH asked AS MATERIALIZED (
    SELECT a.slot, a.node_id COLLATE "C" AS node_id, a.name COLLATE "C" AS name, a.generation, a.outcome
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
        WITH ORDINALITY a (node_id, name, generation, outcome, slot)
    ORDER BY 2, 3
),
decided AS MATERIALIZED (
    SELECT a.*, l.generation AS current,
           CASE
               WHEN l.generation IS NULL THEN 'unknown'
               WHEN a.generation > l.generation THEN 'beyond'
               WHEN a.generation < l.applied_generation THEN 'old'
               WHEN a.generation = l.applied_generation AND a.outcome = l.applied_outcome THEN 'repeat'
               ELSE 'apply'
           END AS verdict
    FROM asked a
    -- In the order of `asked`, which is that of all locks.
    LEFT JOIN LATERAL (
        SELECT p.generation, p.applied_generation, p.applied_outcome
        FROM specs p
        WHERE p.node_id = a.node_id AND p.name = a.name
        FOR NO KEY UPDATE
    ) l ON true
),
written AS (
    UPDATE specs p
    SET applied_generation = d.generation, applied_outcome = d.outcome, applied_at = compute_now()
    FROM decided d
    WHERE p.node_id = d.node_id AND p.name = d.name AND d.verdict = 'apply'
)
SELECT d.verdict AS "verdict!", d.current AS "current?"
FROM decided d
ORDER BY d.slot
