-- Runs SQL hooks over events that this transaction stored; says how many slots it came to. One slot a hook
-- and an event: $1 function, $2 node, $3 journal, $4 seq. $5 milliseconds after which it begins no more.
SELECT r.done AS "done!", r.failed AS "failed!"
FROM run_report_hooks($1::text[], $2::text[], $3::text[], $4::bigint[], $5) r
