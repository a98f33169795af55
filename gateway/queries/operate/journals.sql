-- How far each journal is stored: what a follower compares with what it has shown.
-- $1 node or null, $2 journal or null.
SELECT j.node_id AS "node_id!", j.journal_id AS "journal_id!", j.acked_seq AS "acked_seq!"
FROM node_journals j
WHERE ($1::text IS NULL OR j.node_id = $1::text)
  AND ($2::text IS NULL OR j.journal_id = $2::text)
ORDER BY j.node_id, j.journal_id
