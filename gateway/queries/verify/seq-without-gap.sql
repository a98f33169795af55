-- Above what retention has passed, a node's seqs follow each other without a gap. $1 most rows.
SELECT json_build_object('node_id', g.node_id, 'after_seq', g.previous, 'next_seq', g.seq)::text AS "row!"
FROM (
    SELECT c.node_id, c.seq,
           coalesce(lag(c.seq) OVER (PARTITION BY c.node_id ORDER BY c.seq), n.seq_floor) AS previous
    FROM commands c
    JOIN node_counters n ON n.node_id = c.node_id
    WHERE c.seq > n.seq_floor
) g
WHERE g.seq <> g.previous + 1
ORDER BY g.node_id, g.seq
LIMIT $1::bigint
