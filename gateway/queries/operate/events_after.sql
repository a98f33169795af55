-- Events of some journals, each from a seq (not with it) to a seq (with it); a row an event, as JSON.
-- One element a journal in $1 node, $2 journal, $3 from, $4 to; $5 kind or null.
SELECT row_to_json(v)::text AS "row!"
FROM (
    SELECT e.node_id, e.journal_id, e.seq, e.kind, e.stored_at, e.boot_id, e.rejected,
           encode(e.body, 'hex') AS body_hex, e.signed_body IS NOT NULL AS signed, e.signed_kid
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) j (node_id, journal_id, after, until)
    JOIN events e ON e.node_id = j.node_id AND e.journal_id = j.journal_id AND e.seq > j.after AND e.seq <= j.until
    WHERE $5::text IS NULL OR e.kind = $5::text
    ORDER BY e.stored_at, e.node_id, e.journal_id, e.seq
) v
