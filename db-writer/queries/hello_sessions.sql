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
    ORDER BY 2
),
-- In the order of `asked`.
locked AS MATERIALIZED (
    SELECT a.slot, a.serial, s.node_id IS NOT NULL AS known
    FROM asked a
    LEFT JOIN LATERAL (
        SELECT s.node_id
        FROM node_sessions s
        WHERE EXISTS (SELECT FROM lease) AND s.node_id = a.node_id
        FOR UPDATE
    ) s ON true
)
SELECT EXISTS (SELECT FROM lease) AS "held!", l.slot AS "slot!", l.known AS "known!",
       cert.node_id AS "cert_node?", cert.revoked_at IS NOT NULL AS "cert_revoked!",
       cert.revoked_reason AS "cert_revoked_reason?"
FROM locked l
LEFT JOIN LATERAL (
    SELECT k.node_id, k.revoked_at, k.revoked_reason FROM node_certs k WHERE k.serial = l.serial LIMIT 1
) cert ON true
ORDER BY l.slot
