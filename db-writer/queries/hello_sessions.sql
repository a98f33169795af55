-- Proves the lease and locks the sessions of the nodes that say Hello, in node order. What the next
-- statements read is then all that any dispatch before this Hello has committed.
-- Of a node that comes from another place than at its last Hello under the same certificate, also that
-- place and what is remembered of its moves.
-- $1 gateway, $2 owner, $3 lease epoch; side by side $4 node, $5 serial of its certificate, $6 machine, $7 boot id.
WITH lease AS MATERIALIZED (
    SELECT l.epoch
    FROM leases l
    WHERE l.name = 'gateway:' || $1::text AND l.owner = $2::text AND l.epoch = $3::bigint
      AND l.expires_at > compute_now()
    FOR KEY SHARE
),
asked AS MATERIALIZED (
    SELECT a.slot, a.node_id COLLATE "C" AS node_id, a.serial COLLATE "C" AS serial, a.machine, a.boot_id
    FROM unnest($4::text[], $5::text[], $6::text[], $7::text[])
        WITH ORDINALITY a (node_id, serial, machine, boot_id, slot)
    ORDER BY 2
),
-- In the order of `asked`.
locked AS MATERIALIZED (
    SELECT a.slot, a.node_id, a.serial, s.node_id IS NOT NULL AS known, s.machine, s.boot_id,
           coalesce(s.certificate_serial COLLATE "C" = a.serial AND (s.machine, s.boot_id) <> (a.machine, a.boot_id),
                    false) AS moved
    FROM asked a
    LEFT JOIN LATERAL (
        SELECT s.node_id, s.machine, s.boot_id, s.certificate_serial
        FROM node_sessions s
        WHERE EXISTS (SELECT FROM lease) AND s.node_id = a.node_id
        FOR UPDATE
    ) s ON true
)
SELECT EXISTS (SELECT FROM lease) AS "held!", l.slot AS "slot!", l.known AS "known!",
       cert.node_id AS "cert_node?", cert.role AS "cert_role?", cert.allowed_kinds AS "cert_allowed_kinds?",
       coalesce(cert.tenant_controlled, false) AS "cert_tenant_controlled!", cert.revoked_at IS NOT NULL AS "cert_revoked!",
       cert.revoked_reason AS "cert_revoked_reason?", unix_millis(compute_now()) AS "now!",
       l.moved AS "moved!", CASE WHEN l.moved THEN l.machine END AS "machine?",
       CASE WHEN l.moved THEN l.boot_id END AS "boot_id?", m.machines AS "machines?", m.boots AS "boots?",
       m.left_at AS "left_at?", m.returned_at AS "returned_at?"
FROM locked l
LEFT JOIN LATERAL (
    SELECT k.node_id, k.role, k.allowed_kinds, k.tenant_controlled, k.revoked_at, k.revoked_reason FROM node_certs k WHERE k.serial = l.serial LIMIT 1
) cert ON true
LEFT JOIN LATERAL (
    SELECT m.machines, m.boots, m.left_at, m.returned_at
    FROM node_moves m
    WHERE l.moved AND m.node_id = l.node_id AND m.certificate_serial = l.serial
    OFFSET 0
) m ON true
ORDER BY l.slot
