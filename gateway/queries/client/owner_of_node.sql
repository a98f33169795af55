-- The gateway of a node's live session. $1: the node's id.
SELECT gateway_id FROM node_sessions
WHERE node_id = $1 AND gateway_id IS NOT NULL AND disconnected_at IS NULL
