-- Gateways by id, those that are gone too; a row a gateway, as JSON.
-- $1 true: only those that hold their lease, $2 most rows.
SELECT row_to_json(v)::text AS "row!"
FROM (
    SELECT g.id, g.internal_url, g.version, g.region, coalesce(l.expires_at > compute_now(), false) AS lease_held,
           g.draining, g.sessions, g.max_streams, g.started_at, g.heartbeat_at,
           extract(epoch FROM compute_now() - g.heartbeat_at)::float8 AS heartbeat_age_seconds
    FROM gateways g
    LEFT JOIN leases l ON l.name = 'gateway:' || g.id
    WHERE (NOT $1::boolean OR l.expires_at > compute_now())
    ORDER BY g.id
    LIMIT $2::bigint
) v
