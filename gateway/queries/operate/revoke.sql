-- Revokes a node's certificates; gives their serials.
-- $1 the node, $2 a serial, or null for all of them, $3 why.
UPDATE node_certs
SET revoked_at = compute_now(), revoked_reason = $3
WHERE node_id = $1 AND revoked_at IS NULL AND ($2::text IS NULL OR serial = $2)
RETURNING serial
