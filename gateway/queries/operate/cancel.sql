-- Cancels a command, or asks its node to stop. $1 node, $2 id, $3 reason.
SELECT cancel_command(node_id => $1::text, id => $2::uuid, reason => $3::text) AS "state!"
