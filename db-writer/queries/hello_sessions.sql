-- Proves the lease and locks the sessions of the nodes that say Hello, in node order. What the next
-- statements read is then all that any dispatch before this Hello has committed.
-- $1 gateway, $2 owner, $3 lease epoch; side by side $4 node, $5 serial of its certificate.
WITH lease AS MATERIALIZED (
    SELECT l.epoch
    FROM leases l
    WHERE l.name = 'gateway:' || $1::text AND l.owner = $2::text AND l.epoch = $3::bigint
      AND l.expires_at > compute_now()
    FOR KEY SHARE
),
asked AS MATERIALIZED (
    SELECT a.slot, a.node_id COLLATE "C" AS node_id, a.serial COLLATE "C" AS serial
    FROM unnest($4::text[], $5::text[]) WITH ORDINALITY a (node_id, serial, slot)
),
locked AS MATERIALIZED (
    SELECT n.slot, s.session_epoch
    FROM (SELECT a.slot, a.node_id FROM asked a WHERE EXISTS (SELECT FROM lease) ORDER BY a.node_id) n
    CROSS JOIN LATERAL (
        SELECT s.session_epoch FROM node_sessions s WHERE s.node_id = n.node_id FOR UPDATE
    ) s
)
SELECT EXISTS (SELECT FROM lease) AS "held!", a.slot AS "slot!", l.slot IS NOT NULL AS "known!",
       cert.node_id AS "cert_node?", cert.revoked_at IS NOT NULL AS "cert_revoked!",
       cert.revoked_reason AS "cert_revoked_reason?"
FROM asked a
LEFT JOIN locked l ON l.slot = a.slot
LEFT JOIN LATERAL (
    SELECT k.node_id, k.revoked_at, k.revoked_reason FROM node_certs k WHERE k.serial = a.serial
) cert ON true
ORDER BY a.slot
