-- The yardstick of events: rows as the writer stores them, without a look at any journal.
-- One element an event in $1 node, $2 journal, $3 seq; $4 the kind and $5 the body of all.
INSERT INTO events (node_id, journal_id, seq, kind, body, boot_id)
SELECT a.node_id, a.journal_id, a.seq, $4::text, $5::bytea, 'boot'
FROM unnest($1::text[], $2::text[], $3::bigint[]) a (node_id, journal_id, seq)
