-- Why a node has nothing that could be revoked; a word.
-- $1 node, $2 serial or null.
SELECT CASE
           WHEN EXISTS (SELECT FROM node_certs k WHERE k.node_id = $1 AND ($2::text IS NULL OR k.serial = $2::text)) THEN 'revoked'
           WHEN EXISTS (SELECT FROM nodes n WHERE n.node_id = $1) THEN 'unrecorded'
           ELSE 'unknown'
       END AS "why!"
