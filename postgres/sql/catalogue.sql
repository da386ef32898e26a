-- The table of models. It is not part of the extension: models outlive it, and Penstock's shell makes the same table where
-- there is no extension.

-- Refuses a table of models that could run code of another user: a view, triggers, rules, policies, other columns or defaults;
-- with `trusting` false also one whose owner the caller has no reason to trust. Gives the table, NULL where there is none.
CREATE FUNCTION penstock.checked_catalogue(trusting boolean) RETURNS oid
    AS 'MODULE_PATHNAME', 'penstock_checked_catalogue' LANGUAGE C STRICT;

-- Makes the table where it is missing. Whoever asks for it, it belongs to the extension's superuser: the owner of a table can
-- have code run by all who write to it.
CREATE FUNCTION penstock.make_catalogue() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (
        SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = 'penstock' AND c.relname = 'models'
    ) THEN
        RETURN;
    END IF;
    CREATE TABLE penstock.models (
        name text PRIMARY KEY,
        kind text NOT NULL,
        outputs int NOT NULL,
        width bigint NOT NULL,
        coef float4[] NOT NULL,
        intercept float4[] NOT NULL,
        header json NOT NULL,
        format int NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        penstock_version text NOT NULL
    );
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.models TO %I WITH GRANT OPTION',
        (SELECT pg_get_userbyid(e.extowner) FROM pg_extension AS e WHERE e.extname = 'penstock'));
EXCEPTION
    WHEN unique_violation OR duplicate_table THEN
        NULL;  -- another session has just made it
END $$;

-- Gives the number of a model's next version. With `moved` the row of its default version, if there is one, gets the name of an earlier
-- version, such as m@2, and its number into its header where that does not begin with it, as it does since there are versions.
CREATE FUNCTION penstock.next_version(model text, moved boolean) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    numbers_of CONSTANT text := '^[[:space:]]*[{][[:space:]]*"version"[[:space:]]*:[[:space:]]*[{][[:space:]]*"number"[[:space:]]*:'
        '[[:space:]]*([0-9]+)([[:space:]]*,[[:space:]]*"last"[[:space:]]*:[[:space:]]*([0-9]+))?';
    highest int;
    others int[];
    numbers text[];
    number int;
BEGIN
    IF moved THEN
        PERFORM FROM penstock.models AS m WHERE m.name = model FOR UPDATE;  -- so that no other session moves it
    END IF;
    SELECT coalesce(array_agg(s.number), '{}'), coalesce(max(greatest(s.number, (s.numbers)[1]::int, (s.numbers)[3]::int)), 0)
    INTO others, highest
    FROM (
        SELECT substr(m.name, length(model) + 2)::int AS number, regexp_match(substr(m.header::text, 1, 100), numbers_of) AS numbers
        FROM penstock.models AS m
        WHERE substr(m.name, 1, length(model) + 1) = model || '@' AND substr(m.name, length(model) + 2) ~ '^[1-9][0-9]{0,8}$'
        OFFSET 0
    ) AS s;
    SELECT coalesce(regexp_match(substr(m.header::text, 1, 100), numbers_of), '{}') INTO numbers
    FROM penstock.models AS m WHERE m.name = model;
    IF NOT FOUND THEN
        RETURN highest + 1;
    END IF;
    number := coalesce(numbers[1]::int, CASE WHEN 1 = ANY (others) THEN highest + 1 ELSE 1 END);
    IF moved THEN
        UPDATE penstock.models AS m SET name = format('%s@%s', model, number), header = CASE
            WHEN numbers[1] IS NOT NULL THEN m.header
            WHEN json_typeof(m.header) = 'object' AND m.header::text !~ '^[[:space:]]*[{][[:space:]]*[}]'
                THEN (format('{"version" : {"number" : %s}, ', number) || substr(ltrim(m.header::text, E' \t\r\n'), 2))::json
            ELSE json_build_object('version', json_build_object('number', number)) END
        WHERE m.name = model;
    END IF;
    RETURN 1 + greatest(highest, number, numbers[3]::int);
END $$;

-- The schema, and a table of models that Penstock's shell has made before, go to the superuser whose rights this script has. Who
-- owned them keeps the rights to use them, and to pass these on.
DO $$
DECLARE
    place record;
    kept record;
BEGIN
    SELECT n.nspowner, r.rolname AS owner, r.rolsuper AS super, e.extowner INTO STRICT place
    FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace JOIN pg_roles AS r ON r.oid = n.nspowner
    WHERE e.extname = 'penstock';
    IF EXISTS (SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
            WHERE n.nspname = 'penstock' AND c.relname = 'models') THEN
        LOCK TABLE penstock.models IN ACCESS EXCLUSIVE MODE;  -- so that it stays as it is checked
        PERFORM penstock.checked_catalogue(true);
        SELECT c.relowner, r.rolname AS owner, r.rolsuper AS super INTO STRICT kept
        FROM pg_class AS c JOIN pg_roles AS r ON r.oid = c.relowner WHERE c.oid = 'penstock.models'::regclass;
        IF NOT kept.super AND kept.relowner NOT IN (place.nspowner, place.extowner) THEN
            RAISE EXCEPTION 'there is a table penstock.models already, and it belongs to "%"', kept.owner
                USING ERRCODE = 'duplicate_table',
                HINT = 'Look at its models, then: DROP TABLE penstock.models, or ALTER TABLE penstock.models OWNER TO the user who '
                    'installs this.';
        ELSIF NOT kept.super THEN
            EXECUTE format('ALTER TABLE penstock.models OWNER TO %I', current_user);
            EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.models TO %I WITH GRANT OPTION', kept.owner);
        END IF;
    END IF;
    IF NOT place.super THEN
        EXECUTE format('ALTER SCHEMA penstock OWNER TO %I', current_user);
        EXECUTE format('GRANT USAGE ON SCHEMA penstock TO %I WITH GRANT OPTION', place.owner);
    END IF;
END $$;
