-- Publishes that an embedder's hook failed. $1 node, $2 journal and $3 seq of an event, or $4 id of a status,
-- $5 kind, $6 hook, $7 SQLSTATE or null, $8 why.
SELECT publish_report_failed(
    $1,
    jsonb_strip_nulls(jsonb_build_object('journal_id', $2::text, 'seq', $3::bigint, 'status_id', $4::text, 'kind', $5::text)),
    $6, $7::text, $8
)::text AS "nothing?"
