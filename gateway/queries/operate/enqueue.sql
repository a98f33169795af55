-- Enqueues one command under an id of ours, so that a repeat of an idempotency key shows.
-- $1 node, $2 kind, $3 payload, $4 lane, $5 idempotency key or null, $6 most attempts; a date is
-- given as text or as seconds from now: $7 and $8 not before, $9 and $10 not after; $11 notify.
SELECT json_build_object('node_id', $1::text, 'id', e.id, 'known', e.id <> e.fresh)::text AS "row!"
FROM (
    SELECT n.fresh,
           enqueue_command(
               node_id => $1::text, kind => $2::text, payload => $3::bytea, lane => $4::text,
               idempotency_key => $5::text, max_attempts => $6::integer,
               not_before => coalesce($7::text::timestamptz, compute_now() + $8::double precision * interval '1 s'),
               not_after => coalesce($9::text::timestamptz, compute_now() + $10::double precision * interval '1 s'),
               id => n.fresh, notify => $11::boolean
           ) AS id
    FROM (SELECT new_command_id() AS fresh OFFSET 0) n
    OFFSET 0
) e
