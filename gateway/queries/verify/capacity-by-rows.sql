-- The same counted from the rows' own dates, which no gateway's ledger can gloss over: how many of
-- the lane were in flight when this one was dispatched. Rows of later attempts are left out, since
-- they keep the date of their last dispatch alone. $1 most rows.
SELECT json_build_object('node_id', v.node_id, 'lane', v.lane, 'id', v.id, 'in_flight', v.in_flight,
                         'capacity', v.capacity, 'dispatched_at', v.at)::text AS "row!"
FROM (
    SELECT m.*, sum(m.delta) OVER (
               PARTITION BY m.node_id, m.lane ORDER BY m.at, m.delta RANGE UNBOUNDED PRECEDING
           ) AS in_flight
    FROM (
        SELECT c.node_id, c.lane, c.id, c.dispatched_at AS at, 1 AS delta, c.lane_capacity AS capacity
        FROM commands c
        WHERE c.attempt = 1 AND c.phase <> 'p' AND c.dispatched_at IS NOT NULL
        UNION ALL
        SELECT c.node_id, c.lane, NULL, c.finished_at, -1, NULL
        FROM commands c
        WHERE c.attempt = 1 AND c.phase <> 'p' AND c.dispatched_at IS NOT NULL AND c.finished_at IS NOT NULL
    ) m
) v
WHERE v.delta = 1 AND v.in_flight > v.capacity
ORDER BY v.node_id, v.lane, v.at
LIMIT $1::bigint
