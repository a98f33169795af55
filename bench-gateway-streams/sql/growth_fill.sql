-- $1 finished commands more: copies of those that were executed last, one of each node in turn, with ids of
-- their own and seqs below which nothing is given out again.
WITH of_node AS MATERIALIZED (
    SELECT n.node_id, row_number() OVER (ORDER BY n.node_id) - 1 AS turn, top.seq AS top
    FROM node_counters n
    CROSS JOIN LATERAL (
        SELECT c.seq FROM commands c WHERE c.node_id = n.node_id AND c.seq > 0 ORDER BY c.seq DESC LIMIT 1
    ) top
),
-- Of one side of the join alone, so that it can be hashed.
given AS MATERIALIZED (
    SELECT g / n.nodes AS round, g % n.nodes AS turn
    FROM generate_series(0, $1::bigint - 1) g, (SELECT count(*) AS nodes FROM of_node) n
),
template AS MATERIALIZED (
    SELECT c.* FROM commands c WHERE c.state = 'succeeded' LIMIT 1
)
INSERT INTO commands (node_id, id, seq, lane, kind, payload, state, attempt, max_attempts, enqueued_at, dispatched_at,
                      dispatched_by, lease_epoch, session_epoch, lane_capacity, lane_in_flight, lane_floor, accepted_at,
                      started_at, finished_at, result)
SELECT o.node_id, new_command_id(), o.top + 1 + g.round, t.lane, t.kind, t.payload, t.state, t.attempt, t.max_attempts,
       t.enqueued_at, t.dispatched_at, t.dispatched_by, t.lease_epoch, t.session_epoch, t.lane_capacity, t.lane_in_flight,
       o.top + 1 + g.round, t.accepted_at, t.started_at, t.finished_at, t.result
FROM given g
JOIN of_node o ON o.turn = g.turn
CROSS JOIN template t
