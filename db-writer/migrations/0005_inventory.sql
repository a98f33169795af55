-- What inventories need.
--
-- 1. The hash of a section is the SHA-256 of its body: 32 bytes, the same that nodes name.
-- 2. A section remembers the epoch of the session that brought it, so that what an older session sent is
--    never stored over it, however late its commit comes.
-- 3. Locks: inventory_sections by (node, section), then work by (kind, key), behind all others.

-- No release has written to this table.
ALTER TABLE inventory_sections
    ALTER COLUMN hash TYPE bytea USING sha256(body),
    ADD COLUMN session_epoch bigint NOT NULL DEFAULT 0;

-- Removes a section that the node has no more. Returns whether it was there.
CREATE FUNCTION forget_section(node_id text, section text) RETURNS boolean
    LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    removed integer;
BEGIN
    DELETE FROM inventory_sections i
    WHERE i.node_id = forget_section.node_id AND i.section = forget_section.section;
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed = 1;
END $$;

COMMENT ON TABLE work IS
    'What a worker has to do, once for each (kind, key). What comes again while it is there moves enqueued_at. '
    'So a worker takes a row in a short transaction (not_before = when another may take it), works, and deletes '
    'it only while enqueued_at is what it took: what came meanwhile is then not lost.';
