-- Dispatches and liveness ahead of their node's session, and dispatches under an epoch that was
-- lower than one before them. $1 most rows.
SELECT json_build_object('node_id', v.node_id, 'session_epoch', v.epoch, 'found', v.found)::text AS "row!"
FROM (
    SELECT c.node_id, c.session_epoch AS epoch,
           'command ' || c.id || ' was dispatched, the node is at epoch ' || coalesce(s.session_epoch, 0) AS found
    FROM commands c
    LEFT JOIN node_sessions s ON s.node_id = c.node_id
    WHERE c.session_epoch > coalesce(s.session_epoch, 0)
    UNION ALL
    SELECT l.node_id, l.session_epoch, 'liveness; the node is at epoch ' || coalesce(s.session_epoch, 0)
    FROM node_liveness l
    LEFT JOIN node_sessions s ON s.node_id = l.node_id
    WHERE l.session_epoch > coalesce(s.session_epoch, 0)
    UNION ALL
    SELECT d.node_id, d.session_epoch, 'command ' || d.id || ' was dispatched after one under epoch ' || d.before
    FROM (
        SELECT c.node_id, c.id, c.session_epoch,
               max(c.session_epoch) OVER (PARTITION BY c.node_id ORDER BY c.dispatched_at) AS before
        FROM commands c
        WHERE c.session_epoch IS NOT NULL AND c.dispatched_by IS NOT NULL
    ) d
    WHERE d.session_epoch < d.before
) v
ORDER BY v.node_id, v.epoch
LIMIT $1::bigint
