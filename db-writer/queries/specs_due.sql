-- The specs that are due to live sessions of $1, with bodies as far as there is room: first the first of
-- each session, then the second, and so on. Of a session without room for any, one row without a body.
-- $2 most bytes of all; one element a session in $3 node, $4 epoch, $5 names and $6 generations that the node
-- has or was sent, as array literals, $7 whether answered ones count too, $8 most bytes of the session.
-- A spec takes its body and 256 bytes, as SPEC_HEAD_BYTES in gateway_core::seam says.
WITH asked AS MATERIALIZED (
    SELECT a.slot, a.node_id COLLATE "C" AS node_id, a.epoch, a.names::text[] AS names,
           a.generations::bigint[] AS generations, a.answered_too, a.room
    FROM unnest($3::text[], $4::bigint[], $5::text[], $6::text[], $7::boolean[], $8::bigint[])
        WITH ORDINALITY a (node_id, epoch, names, generations, answered_too, room, slot)
),
due AS MATERIALIZED (
    SELECT a.slot, a.room, a.node_id, d.name, d.generation, d.bytes, row_number() OVER of_session AS place,
           sum(d.bytes) OVER of_session - d.bytes AS before_it
    FROM asked a
    CROSS JOIN LATERAL (
        SELECT s.node_id
        FROM node_sessions s
        WHERE s.node_id = a.node_id AND s.gateway_id = $1::text AND s.session_epoch = a.epoch
          AND s.disconnected_at IS NULL
    ) s
    CROSS JOIN LATERAL (
        SELECT p.name, p.generation, octet_length(p.body) + 256 AS bytes
        FROM specs p
        WHERE NOT a.answered_too AND p.node_id = s.node_id AND p.applied_generation IS DISTINCT FROM p.generation
        UNION ALL
        SELECT p.name, p.generation, octet_length(p.body) + 256
        FROM specs p
        WHERE a.answered_too AND p.node_id = s.node_id
    ) d
    WHERE d.generation > coalesce(a.generations[array_position(a.names, d.name)], 0)
    WINDOW of_session AS (PARTITION BY a.slot ORDER BY d.name)
),
decided AS MATERIALIZED (
    SELECT d.*,
           d.before_it < d.room
           AND coalesce(sum(d.bytes) FILTER (WHERE d.before_it < d.room) OVER in_turn, 0) < $2::bigint AS is_sent
    FROM due d
    WINDOW in_turn AS (ORDER BY d.place, d.slot ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
SELECT d.slot AS "slot!", d.name AS "name!", d.generation AS "generation!", b.body AS "body?", d.more AS "more!"
FROM (SELECT d.*, bool_or(NOT d.is_sent) OVER (PARTITION BY d.slot) AS more FROM decided d) d
LEFT JOIN LATERAL (
    SELECT p.body FROM specs p WHERE d.is_sent AND p.node_id = d.node_id AND p.name = d.name
) b ON true
WHERE d.is_sent OR d.place = 1
ORDER BY d.slot, d.place
