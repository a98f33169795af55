-- Certificates whose revocation was set or cleared after (when, serial), in that order, at most $3.
-- $1 when, in microseconds since 1970; $2 serial. One row comes back even where there is none, to say the time.
SELECT (extract(epoch FROM compute_now()) * 1000000)::bigint AS "now_micros!", k.serial AS "serial?",
       (extract(epoch FROM k.revocation_changed_at) * 1000000)::bigint AS "changed_micros?",
       k.revoked_at IS NOT NULL AS "revoked!", k.revoked_reason AS "reason?"
FROM (VALUES (1)) one (row)
LEFT JOIN LATERAL (
    SELECT k.serial, k.revocation_changed_at, k.revoked_at, k.revoked_reason
    FROM node_certs k
    WHERE k.revocation_changed_at IS NOT NULL
      AND (k.revocation_changed_at, k.serial)
          > (timestamptz 'epoch' + $1::bigint * interval '1 microsecond', $2::text COLLATE "C")
    ORDER BY k.revocation_changed_at, k.serial
    LIMIT $3::bigint
) k ON true
ORDER BY k.revocation_changed_at, k.serial
