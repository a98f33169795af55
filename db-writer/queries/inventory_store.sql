-- Stores sections, slot for slot, and enqueues work once for each node of which one has changed. What is
-- stored already is not written again.
-- Locks: the sections in (node, section) order, then the work of their nodes.
-- $1 most sections of a node; one element a section in $2 node, $3 epoch of the session that sent it,
-- $4 section, $5 hash, $6 body. A section of a node is among them once.
WITH asked AS MATERIALIZED (
    SELECT a.slot, a.node_id COLLATE "C" AS node_id, a.session_epoch, a.section COLLATE "C" AS section, a.hash
    FROM unnest($2::text[], $3::bigint[], $4::text[], $5::bytea[])
        WITH ORDINALITY a (node_id, session_epoch, section, hash, slot)
),
judged AS MATERIALIZED (
    SELECT a.*, n.node_id IS NOT NULL AS known, coalesce(s.session_epoch > a.session_epoch, false) AS superseded,
           i.hash AS stored,
           -- How many the node would have with this one, where it is new.
           CASE WHEN i.hash IS NULL THEN h.held + count(*) FILTER (
               WHERE i.hash IS NULL AND (s.session_epoch > a.session_epoch) IS NOT TRUE
           ) OVER (PARTITION BY a.node_id ORDER BY a.slot) ELSE 0 END AS place
    FROM asked a
    LEFT JOIN LATERAL (SELECT n.node_id FROM nodes n WHERE n.node_id = a.node_id) n ON true
    LEFT JOIN LATERAL (SELECT s.session_epoch FROM node_sessions s WHERE s.node_id = a.node_id) s ON true
    LEFT JOIN LATERAL (
        SELECT i.hash FROM inventory_sections i WHERE i.node_id = a.node_id AND i.section = a.section
    ) i ON true
    LEFT JOIN LATERAL (
        SELECT count(*) AS held
        FROM (SELECT FROM inventory_sections o WHERE o.node_id = a.node_id LIMIT $1::bigint) o
        WHERE i.hash IS NULL
    ) h ON true
),
stored AS (
    INSERT INTO inventory_sections AS i (node_id, section, hash, body, session_epoch)
    SELECT j.node_id, j.section, j.hash, ($6::bytea[])[j.slot], j.session_epoch
    FROM judged j
    WHERE j.known AND NOT j.superseded AND j.place <= $1::bigint AND j.stored IS DISTINCT FROM j.hash
    ORDER BY j.node_id, j.section
    ON CONFLICT (node_id, section) DO UPDATE
    SET hash = excluded.hash, body = excluded.body, session_epoch = excluded.session_epoch,
        updated_at = compute_now()
    -- Another gateway may have stored it a moment before.
    WHERE i.session_epoch <= excluded.session_epoch
    RETURNING i.node_id
),
enqueued AS (
    INSERT INTO work (kind, key)
    SELECT 'inventory', s.node_id FROM (SELECT DISTINCT s.node_id FROM stored s ORDER BY 1) s
    ON CONFLICT (kind, key) DO UPDATE SET enqueued_at = compute_now()
)
SELECT j.known AS "known!", j.superseded AS "superseded!", j.place <= $1::bigint AS "fits!"
FROM judged j
ORDER BY j.slot
