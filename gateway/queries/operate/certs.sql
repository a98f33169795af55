-- Certificates of nodes, by node, of a node those first that last longest; a row a certificate, as JSON.
-- $1 node or null, $2 true: only what is revoked, $3 so many seconds from now on which it expires or null, $4 most rows.
SELECT row_to_json(v)::text AS "row!"
FROM (
    SELECT k.node_id, k.serial, k.role, k.not_after AS expires_at, k.not_after <= compute_now() AS expired,
           k.revoked_at, k.revoked_reason, k.tenant_controlled, k.allowed_kinds,
           (s.gateway_id IS NOT NULL AND s.disconnected_at IS NULL) IS TRUE AS in_use
    FROM node_certs k
    LEFT JOIN node_sessions s ON s.node_id = k.node_id AND s.certificate_serial = k.serial
    WHERE ($1::text IS NULL OR k.node_id = $1::text)
      AND (NOT $2::boolean OR k.revoked_at IS NOT NULL)
      AND ($3::float8 IS NULL OR k.not_after <= compute_now() + $3::float8 * interval '1 second')
    ORDER BY k.node_id, k.not_after DESC NULLS FIRST, k.serial
    LIMIT $4::bigint
) v
