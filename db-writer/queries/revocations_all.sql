-- Certificates that are revoked and had not expired a day ago, in order of serial from the one after $1 on, at most
-- $2. A day: clocks differ, and who is out of its time is refused for that. One row comes back even where there is
-- none, to say the time.
SELECT (extract(epoch FROM compute_now()) * 1000000)::bigint AS "now_micros!", k.serial AS "serial?",
       k.revoked_reason AS "reason?"
FROM (VALUES (1)) one (row)
LEFT JOIN LATERAL (
    SELECT k.serial, k.revoked_reason
    FROM node_certs k
    WHERE k.revoked_at IS NOT NULL AND k.serial > $1::text COLLATE "C"
      AND (k.not_after IS NULL OR k.not_after > compute_now() - interval '1 day')
    ORDER BY k.serial
    LIMIT $2::bigint
) k ON true
ORDER BY k.serial
