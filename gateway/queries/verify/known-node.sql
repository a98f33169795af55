-- Nodes without the rows that a Hello and an enqueue lock, and commands of nobody. $1 most rows.
SELECT json_build_object('node_id', v.node_id, 'missing', v.missing)::text AS "row!"
FROM (
    SELECT n.node_id, concat_ws(', ', CASE WHEN c.node_id IS NULL THEN 'node_counters' END,
                                CASE WHEN s.node_id IS NULL THEN 'node_sessions' END,
                                CASE WHEN l.node_id IS NULL THEN 'node_liveness' END) AS missing
    FROM nodes n
    LEFT JOIN node_counters c ON c.node_id = n.node_id
    LEFT JOIN node_sessions s ON s.node_id = n.node_id
    LEFT JOIN node_liveness l ON l.node_id = n.node_id
    WHERE c.node_id IS NULL OR s.node_id IS NULL OR l.node_id IS NULL
    UNION ALL
    SELECT DISTINCT c.node_id, 'nodes'
    FROM commands c
    WHERE NOT EXISTS (SELECT FROM nodes n WHERE n.node_id = c.node_id)
) v
ORDER BY v.node_id
LIMIT $1::bigint
