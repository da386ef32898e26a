\echo Use "CREATE EXTENSION penstock" to load this file. \quit

-- How this script is kept safe. It runs with a superuser's rights, also where another user installs it, so it trusts nothing
-- that was in the database before: names are looked up in pg_catalog alone, what is made is named with its schema, nothing is
-- taken over by OR REPLACE or IF NOT EXISTS, and what is in the way is refused. The functions pin their search path too. They
-- run the caller's queries by the caller's path, around which everything is qualified.
--
-- The Makefile joins the files of this folder: all but update-0.1.0.sql for a new installation; for the update from 0.1.0 that
-- file in the place of types.sql and predictions.sql, whose objects are kept because users' views and columns depend on them.
SET LOCAL search_path = pg_catalog, pg_temp;

DO $$
DECLARE
    place record;
    others text;
BEGIN
    SELECT n.oid, n.nspacl, n.nspowner, o.rolname AS owner, o.rolsuper AS super, e.extowner INTO STRICT place
    FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace JOIN pg_roles AS o ON o.oid = n.nspowner
    WHERE e.extname = 'penstock';
    IF NOT place.super AND place.nspowner <> place.extowner THEN
        RAISE EXCEPTION 'the schema "penstock" is there already, and belongs to "%"', place.owner
            USING ERRCODE = 'duplicate_schema', DETAIL = 'Whoever owns the schema could put functions of their own into it.',
            HINT = 'Look at what it holds, then: DROP SCHEMA penstock, or ALTER SCHEMA penstock OWNER TO the user who installs this.';
    END IF;
    SELECT string_agg(CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname) END, ', ') INTO others
    FROM aclexplode(place.nspacl) AS a LEFT JOIN pg_roles AS r ON r.oid = a.grantee
    WHERE a.privilege_type = 'CREATE' AND a.grantee <> place.nspowner AND NOT coalesce(r.rolsuper, false);
    IF others IS NOT NULL THEN
        RAISE EXCEPTION 'others may create objects in the schema "penstock": %', others
            USING ERRCODE = 'insufficient_privilege', HINT = format('Run: REVOKE CREATE ON SCHEMA penstock FROM %s;', others);
    END IF;
    -- All that is in a schema depends on it. The table of models is looked at below.
    SELECT string_agg(pg_describe_object(d.classid, d.objid, d.objsubid), ', ') INTO others
    FROM pg_depend AS d
    WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = place.oid AND d.classid <> 'pg_extension'::regclass
        AND NOT (d.classid = 'pg_class'::regclass
            AND EXISTS (SELECT FROM pg_class AS c WHERE c.oid = d.objid AND c.relname = 'models'))
        AND NOT EXISTS (SELECT FROM pg_depend AS m JOIN pg_extension AS e ON e.oid = m.refobjid
            WHERE m.classid = d.classid AND m.objid = d.objid AND m.deptype = 'e'
                AND m.refclassid = 'pg_extension'::regclass AND e.extname = 'penstock');
    IF others IS NOT NULL THEN
        RAISE EXCEPTION 'the schema "penstock" holds what the extension did not make: %', others
            USING ERRCODE = 'duplicate_object', HINT = 'Look at these objects, and drop them or move them to another schema.';
    END IF;
END $$;

