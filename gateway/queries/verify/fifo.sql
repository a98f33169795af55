-- First attempts that were dispatched before one with a lower seq of their lane. $1 most rows.
-- Deferred and adopted ones are not part of that order.
SELECT json_build_object('node_id', d.node_id, 'lane', d.lane, 'id', d.id, 'seq', d.seq,
                         'dispatched_at', d.dispatched_at, 'lower_seq_dispatched_at', d.before)::text AS "row!"
FROM (
    SELECT c.node_id, c.lane, c.id, c.seq, c.dispatched_at,
           max(c.dispatched_at) OVER (
               PARTITION BY c.node_id, c.lane ORDER BY c.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ) AS before
    FROM commands c
    WHERE c.dispatched_at IS NOT NULL AND NOT c.deferred AND c.dispatched_by IS NOT NULL
) d
WHERE d.before > d.dispatched_at
ORDER BY d.node_id, d.lane, d.seq
LIMIT $1::bigint
