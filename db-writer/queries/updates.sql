-- Stores updates of commands, each at most once in a batch, and says slot for slot what became of them.
-- The rule is that of gateway_core::command::CommandState::on_report; states compare in the order of a life.
-- One element an update in $1 node, $2 command, $3 attempt, $4 state, $5 progress, $6 result, $7 error,
-- $8 reason of a refusal, $9 whether the refused may be tried again; and of what the node told before it and is stored
-- with it, by one write of the row: $10 whether it was accepted, $11 whether it ran.
WITH asked AS MATERIALIZED (
    SELECT a.slot, a.node_id COLLATE "C" AS node_id, a.id, a.attempt, a.state, a.progress, a.result, a.error,
           a.refusal, a.retryable, a.accepts, a.starts
    FROM unnest($1::text[], $2::uuid[], $3::integer[], ($4::text[])::command_state[], $5::text[], $6::bytea[],
                $7::text[], $8::text[], $9::boolean[], $10::boolean[], $11::boolean[])
        WITH ORDINALITY
        a (node_id, id, attempt, state, progress, result, error, refusal, retryable, accepts, starts, slot)
    ORDER BY 2, 3
),
decided AS MATERIALIZED (
    SELECT a.*, l.place, l.state AS stored, l.attempt AS current, l.lane,
           CASE
               WHEN l.state IS NULL THEN 'unknown'
               WHEN a.attempt < l.attempt THEN 'old'
               -- Canceled or expired while the mark of its dispatch was lost: it yields to what has begun.
               WHEN l.state IN ('canceled', 'expired') AND l.dispatched_at IS NULL
                    AND a.state IN ('accepted', 'running', 'succeeded', 'failed') THEN 'apply'
               WHEN l.state >= 'succeeded' AND l.state = a.state THEN 'repeat'
               WHEN l.state >= 'succeeded' THEN 'conflict'
               WHEN a.state = 'refused' AND a.retryable AND a.attempt < l.max_attempts
                    AND l.cancel_requested_at IS NULL THEN 'retry'
               -- A later attempt is news, whatever it says: the row's own attempt is over.
               WHEN a.state >= 'succeeded' OR a.state > l.state OR a.attempt > l.attempt THEN 'apply'
               WHEN a.state = 'running' AND l.state = 'running' AND a.progress IS NOT NULL THEN 'progress'
               ELSE 'repeat'
           END AS verdict
    FROM asked a
    -- In the order of `asked`, which is that of all locks.
    LEFT JOIN LATERAL (
        SELECT c.ctid AS place, c.state, c.attempt, c.max_attempts, c.lane, c.cancel_requested_at, c.dispatched_at
        FROM commands c
        WHERE c.node_id = a.node_id AND c.id = a.id
        FOR UPDATE
    ) l ON true
),
written AS (
    UPDATE commands c
    SET state = CASE WHEN d.verdict = 'retry' THEN 'pending' ELSE d.state END,
        attempt = CASE WHEN d.verdict = 'retry' THEN d.attempt + 1 ELSE d.attempt END,
        -- Adopted while it looked pending (or ended), or to be tried again: no longer one of the first attempts.
        deferred = c.deferred OR d.verdict = 'retry' OR d.stored = 'pending' OR d.stored >= 'succeeded',
        not_before = CASE
            WHEN d.verdict = 'retry' THEN compute_now() + least(2 ^ least(d.attempt - 1, 20), 300) * interval '1 s'
            ELSE c.not_before
        END,
        -- The new attempt has not been dispatched yet.
        dispatched_at = CASE WHEN d.verdict <> 'retry' THEN coalesce(c.dispatched_at, compute_now()) END,
        -- What the row was past already is no news.
        accepted_at = CASE
            WHEN d.state = 'accepted'
                 OR (d.accepts AND (d.stored NOT IN ('accepted', 'running') OR d.attempt > d.current))
                THEN coalesce(c.accepted_at, compute_now())
            ELSE c.accepted_at
        END,
        started_at = CASE
            WHEN d.state = 'running' OR (d.starts AND (d.stored <> 'running' OR d.attempt > d.current))
                THEN coalesce(c.started_at, compute_now())
            ELSE c.started_at
        END,
        finished_at = CASE WHEN d.verdict = 'apply' AND d.state >= 'succeeded' THEN compute_now() END,
        progress = coalesce(d.progress, c.progress),
        result = CASE WHEN d.state >= 'succeeded' AND d.verdict = 'apply' THEN d.result ELSE c.result END,
        error = coalesce(d.error, c.error),
        refusal = coalesce(d.refusal, c.refusal)
    FROM decided d
    -- The version that is locked, which is half the work of looking for it by its key again.
    WHERE c.ctid = d.place AND c.node_id = d.node_id AND c.id = d.id
      AND d.verdict IN ('apply', 'retry', 'progress')
    RETURNING d.slot
),
tally AS (
    SELECT (SELECT count(*) FROM decided d WHERE d.verdict IN ('apply', 'retry', 'progress'))
         = (SELECT count(*) FROM written) AS all_written
)
-- Overtaken: the lock was waited for, and the version that was locked then is younger than this statement, which
-- so has not written it. Who was written is looked for only where somebody was not.
SELECT CASE
           WHEN d.verdict IN ('apply', 'retry', 'progress') AND NOT t.all_written
                AND NOT EXISTS (SELECT FROM written w WHERE w.slot = d.slot) THEN 'overtaken'
           ELSE d.verdict
       END AS "verdict!",
       (CASE d.verdict WHEN 'retry' THEN 'pending' WHEN 'apply' THEN d.state ELSE d.stored END)::text AS "state?",
       d.lane AS "lane?", d.current AS "current_attempt?", d.stored::text AS "stored?"
FROM tally t CROSS JOIN decided d
ORDER BY d.slot
