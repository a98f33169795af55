-- The events that were stored last, the newest first; a row an event, as JSON.
-- $1 node or null, $2 journal or null, $3 kind or null, $4 most rows.
SELECT row_to_json(v)::text AS "row!"
FROM (
    SELECT e.node_id, e.journal_id, e.seq, e.kind, e.stored_at, e.boot_id, e.rejected,
           encode(e.body, 'hex') AS body_hex, e.signed_body IS NOT NULL AS signed, e.signed_kid
    FROM events e
    WHERE ($1::text IS NULL OR e.node_id = $1::text)
      AND ($2::text IS NULL OR e.journal_id = $2::text)
      AND ($3::text IS NULL OR e.kind = $3::text)
    ORDER BY e.stored_at DESC, e.node_id DESC, e.journal_id DESC, e.seq DESC
    LIMIT $4::bigint
) v
