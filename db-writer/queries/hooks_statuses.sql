-- Runs SQL hooks over statuses that this transaction stored; says how many slots it came to. One slot a hook
-- and a status: $1 function, $2 node, $3 id. $4 milliseconds after which it begins no more.
SELECT r.done AS "done!", r.failed AS "failed!"
FROM run_status_hooks($1::text[], $2::text[], $3::text[], $4) r
