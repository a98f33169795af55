-- Registered nodes, by id; a row a node, as JSON.
-- $1 pattern of LIKE or null, $2 tenant or null, $3 true: only connected ones, $4 most rows.
SELECT row_to_json(v)::text AS "row!"
FROM (
    SELECT n.node_id, n.tenant_id, n.registered_at,
           s.gateway_id IS NOT NULL AND s.disconnected_at IS NULL AS connected,
           s.gateway_id, coalesce(s.session_epoch, 0) AS session_epoch, s.connected_at, s.disconnected_at,
           greatest(l.last_seen_at, s.connected_at) AS last_seen_at, s.software_version, s.machine, s.role,
           -- Each from an index of its own, which holds open commands alone.
           (SELECT count(*) FROM commands c WHERE c.node_id = n.node_id AND c.phase = 'p' AND NOT c.deferred)
           + (SELECT count(*) FROM commands c WHERE c.node_id = n.node_id AND c.phase = 'p' AND c.deferred) AS pending,
           (SELECT count(*) FROM commands c WHERE c.node_id = n.node_id AND c.phase = 'f' AND NOT c.deferred)
           + (SELECT count(*) FROM commands c WHERE c.node_id = n.node_id AND c.phase = 'f' AND c.deferred) AS in_flight
    FROM nodes n
    LEFT JOIN node_sessions s ON s.node_id = n.node_id
    LEFT JOIN node_liveness l ON l.node_id = n.node_id
    WHERE ($1::text IS NULL OR n.node_id LIKE $1::text)
      AND ($2::text IS NULL OR n.tenant_id = $2::text)
      AND (NOT $3::boolean OR (s.gateway_id IS NOT NULL AND s.disconnected_at IS NULL))
    ORDER BY n.node_id
    LIMIT $4::bigint
) v
