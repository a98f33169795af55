-- Whether functions can be hooks, slot for slot. $1 their names, with schema or without, $2 the type of the
-- argument that each must take.
SELECT p.oid IS NOT NULL AS "is_there!",
       coalesce(p.prokind = 'f' AND NOT p.proretset AND p.prorettype = 'void'::regtype, false) AS "returns_void!",
       coalesce(has_function_privilege(p.oid, 'EXECUTE'), false) AS "may_execute!",
       (SELECT string_agg(other.oid::regprocedure::text, ', ' ORDER BY other.oid::regprocedure::text)
        FROM pg_proc other
        JOIN pg_namespace s ON s.oid = other.pronamespace
        WHERE other.proname = h.parts[cardinality(h.parts)]
          AND CASE WHEN cardinality(h.parts) > 1 THEN s.nspname = h.parts[1] ELSE pg_function_is_visible(other.oid) END
       ) AS "namesakes?",
       current_user::text AS "role!"
FROM (
    SELECT a.slot, string_to_array(a.name, '.') AS parts,
           to_regprocedure((SELECT string_agg(quote_ident(part), '.' ORDER BY place)
                            FROM unnest(string_to_array(a.name, '.')) WITH ORDINALITY q (part, place))
                           || '(' || a.argument || ')') AS found
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY a (name, argument, slot)
) h
LEFT JOIN pg_proc p ON p.oid = h.found
ORDER BY h.slot
