-- What is in flight on lanes, with all that is needed to send it, the lanes' cursors, and whether their
-- sessions still have their nodes: at least one row a slot. Side by side $1 node, $2 lane, $3 session epoch;
-- $4 gateway.
SELECT a.slot AS "slot!", s.node_id IS NOT NULL AS "is_live!", coalesce(top.seq, 0) AS "cursor!", f.id AS "id?", f.attempt AS "attempt?",
       f.seq AS "seq?", f.kind AS "kind?", f.payload AS "payload?", unix_millis(f.not_after) AS "not_after?"
FROM (
    SELECT a.slot, a.node_id COLLATE "C" AS node_id, a.lane COLLATE "C" AS lane, a.session_epoch
    FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY a (node_id, lane, session_epoch, slot)
) a
LEFT JOIN node_sessions s
    ON s.node_id = a.node_id AND s.session_epoch = a.session_epoch AND s.gateway_id = $4::text
       AND s.disconnected_at IS NULL
LEFT JOIN LATERAL (
    SELECT c.seq, c.lane_floor
    FROM commands c
    WHERE c.node_id = a.node_id AND c.lane = a.lane AND c.dispatched_at IS NOT NULL AND NOT c.deferred
    ORDER BY c.seq DESC
    LIMIT 1
) top ON true
LEFT JOIN LATERAL (
    (SELECT c.id, c.attempt, c.seq, c.kind, c.payload, c.not_after
     FROM commands c
     WHERE c.node_id = a.node_id AND c.lane = a.lane AND c.phase = 'f' AND NOT c.deferred
       AND c.seq >= coalesce(top.lane_floor, 0))
    UNION ALL
    (SELECT c.id, c.attempt, c.seq, c.kind, c.payload, c.not_after
     FROM commands c
     WHERE c.node_id = a.node_id AND c.lane = a.lane AND c.phase = 'f' AND c.deferred)
) f ON true
ORDER BY a.slot, f.seq
