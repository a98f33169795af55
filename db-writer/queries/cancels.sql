-- Commands in flight on live sessions of $1 that someone wants canceled.
SELECT c.node_id AS "node_id!", s.session_epoch AS "session_epoch!", c.id AS "id!",
       coalesce(c.cancel_reason, '') AS "reason!"
FROM commands c
JOIN node_sessions s ON s.node_id = c.node_id
WHERE c.phase = 'f' AND c.cancel_requested_at IS NOT NULL AND s.gateway_id = $1::text AND s.disconnected_at IS NULL
ORDER BY c.node_id, c.id
