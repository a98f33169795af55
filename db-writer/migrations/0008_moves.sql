-- What tells a certificate on two machines from a node that moved.
--
-- 1. A node has a row once it said Hello from another place than before, under the certificate of that Hello;
--    a Hello from the same place neither reads nor writes it.
-- 2. Places are digests, newest last and at most eight of each: the row stays small whatever a node calls itself.
-- 3. Locks: by node, behind journals; then node_certs by serial, which Hellos alone lock.

CREATE TABLE node_moves (
    node_id text COLLATE "C" PRIMARY KEY,
    certificate_serial text COLLATE "C" NOT NULL,
    -- Side by side: the places that it left, and when, in milliseconds since 1970.
    machines bigint[] NOT NULL,
    boots bigint[] NOT NULL,
    left_at bigint[] NOT NULL,
    -- When it came back to one of them.
    returned_at bigint[] NOT NULL
) WITH (fillfactor = 50);

COMMENT ON TABLE node_moves IS
    'Where a node said Hello from, as far as it matters for finding a certificate that two machines use in turn. '
    'Such a certificate is revoked with the reason duplicate-identity; to admit it again, once one machine is left, '
    'set revoked_at and revoked_reason of its row in node_certs to null.';
