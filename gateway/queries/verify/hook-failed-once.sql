-- Hooks that are published as failed more often than once for an event. A status may come again under its id
-- when retention has removed it. $1 most rows.
SELECT json_build_object('node_id', v.node_id, 'journal_id', v.journal_id, 'seq', v.seq, 'hook', v.hook,
                         'times', v.times)::text AS "row!"
FROM (
    SELECT o.node_id, o.body ->> 'journal_id' AS journal_id, (o.body ->> 'seq')::bigint AS seq,
           o.body ->> 'hook' AS hook, count(*) AS times
    FROM outbox o
    WHERE o.kind = 'node.report-failed' AND o.body ? 'seq'
    GROUP BY 1, 2, 3, 4
) v
WHERE v.times > 1
ORDER BY v.node_id, v.journal_id, v.seq
LIMIT $1::bigint
