-- Commands as a waiter sees them, the newest first; a row a command, as JSON.
-- $1 node or null, $2 id or null (then with its result), $3 states or null, $4 lane or null,
-- $5 enqueued within so many seconds, or null, $6 most rows.
SELECT row_to_json(v)::text AS "row!"
FROM (
    SELECT c.node_id, c.id, c.lane, c.seq, c.kind, c.state, c.done, c.attempt, c.max_attempts, c.waits_for,
           c.enqueued_at, c.not_before, c.not_after, c.dispatched_at, c.accepted_at, c.started_at, c.finished_at,
           c.progress, c.error, c.refusal, c.cancel_requested_at, c.cancel_reason,
           octet_length(c.result) AS result_bytes,
           CASE WHEN $2::uuid IS NOT NULL THEN encode(c.result, 'hex') END AS result_hex
    FROM command_status c
    WHERE ($1::text IS NULL OR c.node_id = $1::text)
      AND ($2::uuid IS NULL OR c.id = $2::uuid)
      AND ($3::text[] IS NULL OR c.state = ANY (($3::text[])::command_state[]))
      AND ($4::text IS NULL OR c.lane = $4::text)
      AND ($5::double precision IS NULL OR c.enqueued_at >= compute_now() - $5::double precision * interval '1 s')
    ORDER BY c.enqueued_at DESC, c.node_id, c.seq DESC
    LIMIT $6::bigint
) v
