-- Due first attempts with a lower seq than one of their lane that was dispatched: passed over, and
-- never looked at again. $1 most rows.
SELECT json_build_object('node_id', c.node_id, 'lane', c.lane, 'id', c.id, 'seq', c.seq)::text AS "row!"
FROM commands c
WHERE c.phase = 'p' AND NOT c.deferred AND (c.not_after IS NULL OR c.not_after > compute_now())
  AND EXISTS (
      SELECT FROM commands d
      WHERE d.node_id = c.node_id AND d.lane = c.lane AND d.seq > c.seq AND d.dispatched_at IS NOT NULL
        AND NOT d.deferred
  )
ORDER BY c.node_id, c.lane, c.seq
LIMIT $1::bigint
