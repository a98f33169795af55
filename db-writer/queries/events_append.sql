-- Stores events that nobody else has stored, in the order of their keys; one that is there fails all of them.
-- One element an event in $1 node, $2 journal, $3 seq, $4 kind, $5 body, $6 boot id, $7 envelope's body, $8 its
-- key id, $9 its signature, $10 why it is a tombstone or null.
INSERT INTO events (node_id, journal_id, seq, kind, body, boot_id, signed_body, signed_kid, signature, rejected)
SELECT e.node_id, e.journal_id, e.seq, e.kind, e.body, nullif(e.boot_id, ''), e.signed_body, e.signed_kid,
       e.signature, e.rejected
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::bytea[], $6::text[], $7::bytea[], $8::text[],
            $9::bytea[], $10::text[])
    e (node_id, journal_id, seq, kind, body, boot_id, signed_body, signed_kid, signature, rejected)
