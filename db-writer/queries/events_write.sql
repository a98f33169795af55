-- Stores events and moves the cursors of their journals, whose rows are locked.
-- One element a journal in $1 node, $2 journal, $3 its cursor; one element an event in $4 node,
-- $5 journal, $6 seq, $7 kind, $8 body, $9 boot id, $10 envelope's body, $11 its key id, $12 its
-- signature, $13 why it is a tombstone or null.
WITH moved AS (
    UPDATE node_journals j
    SET acked_seq = a.acked_seq, updated_at = compute_now()
    FROM unnest($1::text[], $2::text[], $3::bigint[]) a (node_id, journal_id, acked_seq)
    WHERE j.node_id = a.node_id COLLATE "C" AND j.journal_id = a.journal_id COLLATE "C"
)
INSERT INTO events (node_id, journal_id, seq, kind, body, boot_id, signed_body, signed_kid, signature, rejected)
SELECT e.node_id, e.journal_id, e.seq, e.kind, e.body, nullif(e.boot_id, ''), e.signed_body, e.signed_kid,
       e.signature, e.rejected
FROM unnest($4::text[], $5::text[], $6::bigint[], $7::text[], $8::bytea[], $9::text[], $10::bytea[], $11::text[],
            $12::bytea[], $13::text[])
    e (node_id, journal_id, seq, kind, body, boot_id, signed_body, signed_kid, signature, rejected)
-- Two runs of a batch may hold the same event.
ON CONFLICT (node_id, journal_id, seq) DO NOTHING
