-- Up to three registered nodes whose id holds a text: what someone may have meant. $1 the text.
SELECT n.node_id AS "node_id!"
FROM nodes n
WHERE strpos(lower(n.node_id), lower($1::text)) > 0
ORDER BY octet_length(n.node_id), n.node_id
LIMIT 3
