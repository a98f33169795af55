-- Makes of every table whose key begins with the node one that is hash-partitioned by node: the same rows,
-- defaults, keys, indexes, triggers and views, under the same names.
DO $$
DECLARE
    hot text;
    part integer;
    command text;
    commands text[];
    -- What is made anew when all tables are there: views depend on several. And their triggers.
    views text[];
    view_triggers text[];
BEGIN
    SELECT coalesce(array_agg(format('CREATE VIEW %I AS %s', v.viewname, v.definition)), '{}')
    INTO views
    FROM pg_views v
    WHERE v.schemaname = 'public' AND v.viewname NOT LIKE 'pg\_%';
    SELECT coalesce(array_agg(pg_get_triggerdef(t.oid)), '{}')
    INTO view_triggers
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relkind = 'v' AND c.relnamespace = 'public'::regnamespace AND NOT t.tgisinternal;
    FOR command IN SELECT format('DROP VIEW %I', v.viewname) FROM pg_views v
                   WHERE v.schemaname = 'public' AND v.viewname NOT LIKE 'pg\_%' LOOP
        EXECUTE command;
    END LOOP;
    FOR hot IN
        SELECT c.relname
        FROM pg_constraint k
        JOIN pg_class c ON c.oid = k.conrelid
        JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = k.conkey[1]
        WHERE k.contype = 'p' AND a.attname = 'node_id' AND c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
        ORDER BY c.relname
    LOOP
        SELECT coalesce(array_agg(d.definition ORDER BY d.step, d.definition), '{}')
        INTO commands
        FROM (
            SELECT 1 AS step, format('ALTER TABLE %I ADD CONSTRAINT %I %s', hot, k.conname, pg_get_constraintdef(k.oid))
            FROM pg_constraint k
            WHERE k.conrelid = hot::regclass AND k.contype IN ('p', 'u')
            UNION ALL
            SELECT 2, pg_get_indexdef(i.indexrelid)
            FROM pg_index i
            WHERE i.indrelid = hot::regclass
              AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid)
            UNION ALL
            SELECT 3, pg_get_triggerdef(t.oid)
            FROM pg_trigger t
            WHERE t.tgrelid = hot::regclass AND NOT t.tgisinternal
        ) d (step, definition);
        EXECUTE format('ALTER TABLE %I RENAME TO %I', hot, 'whole_' || hot);
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING IDENTITY '
                       'INCLUDING CONSTRAINTS INCLUDING STORAGE) PARTITION BY HASH (node_id)', hot, 'whole_' || hot);
        FOR part IN 0..3 LOOP
            EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES WITH (MODULUS 4, REMAINDER %s)%s',
                           hot || '_' || part, hot, part,
                           (SELECT ' WITH (' || array_to_string(c.reloptions, ', ') || ')'
                            FROM pg_class c WHERE c.oid = ('whole_' || hot)::regclass));
        END LOOP;
        SELECT format('INSERT INTO %1$I (%3$s) SELECT %3$s FROM %2$I', hot, 'whole_' || hot,
                      string_agg(quote_ident(a.attname), ', '))
        INTO command
        FROM pg_attribute a
        WHERE a.attrelid = ('whole_' || hot)::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '';
        EXECUTE command;
        EXECUTE format('DROP TABLE %I', 'whole_' || hot);
        FOREACH command IN ARRAY commands LOOP
            EXECUTE command;
        END LOOP;
    END LOOP;
    FOREACH command IN ARRAY views || view_triggers LOOP
        EXECUTE command;
    END LOOP;
END $$;
