-- Locks and reads, in (node, id) order, what the nodes may have: what is in flight, and what they
-- list. A payload comes only with what may have to be sent again.
-- $1 nodes, whose sessions are locked; side by side $2 node, $3 command that it lists, $4 attempt.
WITH lanes AS MATERIALIZED (
    -- From lane to lane, each with its last dispatched first attempt.
    SELECT a.node_id, l.lane, l.lane_floor
    FROM (SELECT a.node_id COLLATE "C" AS node_id FROM unnest($1::text[]) a (node_id)) a
    CROSS JOIN LATERAL (
        WITH RECURSIVE lanes AS (
            (SELECT c.lane, c.lane_floor
             FROM commands c
             WHERE c.node_id = a.node_id AND c.dispatched_at IS NOT NULL AND NOT c.deferred
             ORDER BY c.lane DESC, c.seq DESC
             LIMIT 1)
            UNION ALL
            SELECT n.lane, n.lane_floor
            FROM lanes
            CROSS JOIN LATERAL (
                SELECT c.lane, c.lane_floor
                FROM commands c
                WHERE c.node_id = a.node_id AND c.dispatched_at IS NOT NULL AND NOT c.deferred
                  AND c.lane < lanes.lane
                ORDER BY c.lane DESC, c.seq DESC
                LIMIT 1
            ) n
        )
        SELECT lanes.lane, lanes.lane_floor FROM lanes
    ) l
),
wanted AS MATERIALIZED (
    SELECT w.node_id, w.id, max(w.listed) AS listed
    FROM (
        SELECT l.node_id, c.id, 0 AS listed
        FROM lanes l
        CROSS JOIN LATERAL (
            SELECT c.id
            FROM commands c
            WHERE c.node_id = l.node_id AND c.lane = l.lane AND c.phase = 'f' AND NOT c.deferred
              AND c.seq >= coalesce(l.lane_floor, 0)
            OFFSET 0 -- a probe for each lane, never one scan for all
        ) c
        UNION ALL
        SELECT a.node_id COLLATE "C", c.id, 0
        FROM unnest($1::text[]) a (node_id)
        CROSS JOIN LATERAL (
            SELECT c.id FROM commands c WHERE c.node_id = a.node_id AND c.phase = 'f' AND c.deferred OFFSET 0
        ) c
        UNION ALL
        SELECT a.node_id COLLATE "C", a.id, a.attempt
        FROM unnest($2::text[], $3::uuid[], $4::integer[]) a (node_id, id, attempt)
    ) w
    GROUP BY w.node_id, w.id
)
SELECT c.node_id AS "node_id!", c.id AS "id!", c.seq AS "seq!", c.lane AS "lane!", c.kind AS "kind!",
       CASE WHEN w.listed < c.attempt THEN c.payload END AS "payload?", c.state::text AS "state!", c.attempt AS "attempt!",
       c.dispatched_at IS NOT NULL AS "marked!", unix_millis(c.not_after) AS "not_after?", coalesce(c.not_after <= compute_now(), false) AS "too_late!",
       c.cancel_requested_at IS NOT NULL AS "cancel_requested!", c.cancel_reason AS "cancel_reason?"
FROM (SELECT w.* FROM wanted w ORDER BY w.node_id, w.id) w
CROSS JOIN LATERAL (
    SELECT c.* FROM commands c WHERE c.node_id = w.node_id AND c.id = w.id FOR UPDATE
) c
ORDER BY c.node_id, c.seq
