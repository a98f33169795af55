-- Failures of hooks that name an event that is not stored, nor removed by retention, or that is of another kind.
-- $1 most rows.
SELECT json_build_object('outbox_id', o.id, 'node_id', o.node_id, 'body', o.body)::text AS "row!"
FROM outbox o
WHERE o.kind = 'node.report-failed' AND o.body ? 'seq'
  AND NOT EXISTS (
      SELECT FROM events e
      WHERE e.node_id = o.node_id AND e.journal_id = o.body ->> 'journal_id' AND e.seq = (o.body ->> 'seq')::bigint
        AND e.kind = o.body ->> 'kind'
  )
  AND NOT EXISTS (
      SELECT FROM journals j
      WHERE j.node_id = o.node_id AND j.journal_id = o.body ->> 'journal_id'
        AND (o.body ->> 'seq')::bigint <= j.removed_to
  )
ORDER BY o.id
LIMIT $1::bigint
