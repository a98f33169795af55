-- Half of each page of commands is left free for the younger versions of its rows.
--
-- A command has three after its first: dispatched, accepted, ended. With a quarter free most of the second and third
-- found no room beside the first, and one that goes to another page has an entry made in every index, which is more
-- work than all the rest of an update. Pages that are there keep what they hold; new rows follow the rule.

DO $$
DECLARE
    held_in regclass;
BEGIN
    -- The table itself, or its partitions.
    FOR held_in IN SELECT relid FROM pg_partition_tree('commands') WHERE isleaf LOOP
        EXECUTE format('ALTER TABLE %s SET (fillfactor = 50)', held_in);
    END LOOP;
END $$;
