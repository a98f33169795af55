-- What is known of one certificate, for a call that is passed on for it.
-- $1 serial of the certificate.
SELECT node_id, role, allowed_kinds, tenant_controlled, revoked_at IS NOT NULL AS "revoked!", revoked_reason
FROM node_certs
WHERE serial = $1::text COLLATE "C"
