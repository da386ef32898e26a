-- `path` is the caller's search path here and below, which decides what names in the caller's query mean.
CREATE FUNCTION penstock.columns(query text, path text, OUT name text, OUT type regtype) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'penstock_columns' LANGUAGE C STABLE STRICT;
COMMENT ON FUNCTION penstock.columns(text, text) IS 'the columns of a query, which is not run';

-- Finds the classes of a label, in the order that all of Penstock has them in, as JSON.
CREATE FUNCTION penstock.classes(rows_of text, label text, type regtype, path text) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    shown text := CASE
        WHEN type IN ('real'::regtype, 'double precision'::regtype, 'numeric'::regtype) THEN
            'CASE WHEN c::pg_catalog.numeric OPERATOR(pg_catalog.=) pg_catalog.trunc(c::pg_catalog.numeric) '
            'THEN pg_catalog.to_jsonb(pg_catalog.round(c::pg_catalog.numeric, 1)) ELSE pg_catalog.to_jsonb(c::pg_catalog.float8) END'
        WHEN type IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype, 'boolean'::regtype) THEN 'pg_catalog.to_jsonb(c)'
        ELSE 'pg_catalog.to_jsonb(c::pg_catalog.text)' END;
    sorted text := CASE WHEN shown = 'pg_catalog.to_jsonb(c::pg_catalog.text)' THEN 'c::pg_catalog.text COLLATE pg_catalog."C"' ELSE 'c' END;
    query text;
    found jsonb;
BEGIN
    IF type = 'boolean'::regtype THEN
        RETURN '[false, true]';
    END IF;
    query := format(
        'SELECT COALESCE(pg_catalog.jsonb_agg(%s ORDER BY %s), %L::pg_catalog.jsonb) '
        'FROM (SELECT DISTINCT q.%I AS c FROM %s WHERE q.%4$I IS NOT NULL LIMIT 10001) AS d',
        shown, sorted, '[]', label, rows_of);
    PERFORM set_config('search_path', path, true);
    EXECUTE query INTO found;
    RETURN found;
END $$;

-- Says where a label stands that is not a finite number.
CREATE FUNCTION penstock.unsound_label(rows_of text, label text, named regclass, path text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    stored CONSTANT boolean := EXISTS (SELECT FROM pg_class AS c WHERE c.oid = named AND c.relkind IN ('r', 'm', 'p'));
    query CONSTANT text := format(
        'SELECT pg_catalog.format(%L, r.place, r.part) FROM (SELECT q.%I AS c, %s FROM %s) AS r '
        'WHERE r.c::pg_catalog.float8 OPERATOR(pg_catalog.=) ANY (%L) LIMIT 1',
        CASE WHEN stored THEN 'The first is at ctid %s of "%s".' ELSE 'The first is number %s of those that the query gave.' END,
        label, CASE WHEN stored THEN 'q.ctid AS place, q.tableoid::pg_catalog.regclass AS part'
            ELSE 'pg_catalog.row_number() OVER () AS place, NULL AS part' END, rows_of, '{NaN,Infinity,-Infinity}');
    found text;
BEGIN
    PERFORM set_config('search_path', path, true);
    EXECUTE query INTO found;
    RETURN found;
END $$;

-- Reads a list of columns from the options, written as an array or as one text with commas.
CREATE FUNCTION penstock.listed(asked jsonb, option text) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given CONSTANT jsonb := asked->option;
BEGIN
    IF given IS NULL THEN
        RETURN NULL;
    ELSIF jsonb_typeof(given) = 'string' THEN
        RETURN ARRAY(SELECT trim(f) FROM unnest(string_to_array(given #>> '{}', ',')) WITH ORDINALITY AS t(f, i) ORDER BY i);
    ELSIF jsonb_typeof(given) = 'array' AND given <> '[]' AND NOT jsonb_path_exists(given, 'strict $[*] ? (@.type() <> "string")') THEN
        RETURN ARRAY(SELECT f FROM jsonb_array_elements_text(given) WITH ORDINALITY AS t(f, i) ORDER BY i);
    END IF;
    RAISE EXCEPTION 'option "%" must name columns, such as ["age", "income"]; it is %', option, given
        USING ERRCODE = 'invalid_parameter_value';
END $$;

-- Whether a name is that of a label: the same text, or the same number.
CREATE FUNCTION penstock.is_label(name text, label text) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN name ~ '^-?[0-9]+(\.[0-9]+)?$' AND label ~ '^-?[0-9]+(\.[0-9]+)?$' THEN name::numeric = label::numeric
        ELSE name = label END
$$;

-- What a group's value is compared as, in the words of the catalogue; null of what cannot name groups.
CREATE FUNCTION penstock.key_kind(type regtype) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE base(oid) AS (
        SELECT type::oid
        UNION ALL
        SELECT t.typbasetype FROM pg_type AS t JOIN base AS b ON t.oid = b.oid WHERE t.typtype = 'd'
    )
    SELECT CASE WHEN t.oid = ANY ('{smallint,integer,bigint,oid}'::regtype[]) THEN 'integer'
        WHEN t.oid = 'boolean'::regtype THEN 'boolean'
        WHEN t.oid = ANY ('{real,double precision,numeric}'::regtype[]) THEN 'float'
        WHEN t.oid = 'date'::regtype THEN 'date'
        WHEN t.oid = ANY ('{timestamp,timestamptz}'::regtype[]) THEN 'timestamp'
        WHEN t.oid = 'time'::regtype THEN 'time'
        WHEN t.typcategory IN ('S', 'E', 'U', 'I', 'T') AND t.oid <> 'bytea'::regtype THEN 'text' END
    FROM base AS b JOIN pg_type AS t ON t.oid = b.oid WHERE t.typtype <> 'd'
$$;

-- The text of an expression of the value that a group's rows share, of a type with one order for all that look alike.
CREATE FUNCTION penstock.key_value(name text, kind text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format(CASE kind WHEN 'text' THEN 'q.%I::pg_catalog.text COLLATE pg_catalog."C"'
        WHEN 'integer' THEN 'q.%I::pg_catalog.int8'
        WHEN 'boolean' THEN 'q.%I::pg_catalog.bool::pg_catalog.int4'
        WHEN 'float' THEN '(q.%I::pg_catalog.float8 OPERATOR(pg_catalog.+) 0::pg_catalog.float8)'
        WHEN 'date' THEN '(q.%I::pg_catalog.date OPERATOR(pg_catalog.-) ''1970-01-01''::pg_catalog.date)'
        ELSE '(extract(epoch FROM q.%I) OPERATOR(pg_catalog.*) 1000000::pg_catalog.numeric)::pg_catalog.int8' END, name)
$$;

-- Finds the columns to group by, with what their values are compared as.
CREATE FUNCTION penstock.group_columns(INOUT by text[], names text[], types regtype[], label text, OUT kinds text[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    kinds := '{}';
    IF array_ndims(by) IS DISTINCT FROM 1 OR array_position(by, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'name the columns to group by, such as group_by => ''{country,device}''' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR i IN array_lower(by, 1) .. array_upper(by, 1) LOOP
        IF by[i] <> ALL (names) THEN
            RAISE EXCEPTION 'there is no column "%" to group by', by[i]
                USING ERRCODE = 'undefined_column', DETAIL = format('There are: %s.', array_to_string(names, ', '));
        ELSIF by[i] = label THEN
            RAISE EXCEPTION '"%" is the label; group by other columns', label USING ERRCODE = 'invalid_parameter_value';
        ELSIF array_length(array_positions(by, by[i]), 1) > 1 THEN
            RAISE EXCEPTION 'the column "%" is named twice to group by', by[i] USING ERRCODE = 'invalid_parameter_value';
        END IF;
        kinds := kinds || penstock.key_kind(types[array_position(names, by[i])]);
        IF kinds[array_upper(kinds, 1)] IS NULL THEN
            RAISE EXCEPTION 'column "%" is %, which cannot name groups; group by text, numbers, booleans, dates or times', by[i],
                types[array_position(names, by[i])] USING ERRCODE = 'datatype_mismatch';
        END IF;
    END LOOP;
END $$;

-- The places, from 0, of the features that are 0 or 1.
CREATE FUNCTION penstock.flags_of(parts jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(jsonb_agg(f ORDER BY f), '[]')
    FROM (SELECT p->>'kind' AS kind, (p->'width')::int AS width, sum((p->'width')::int) OVER (ORDER BY i)::int AS past
        FROM jsonb_array_elements(parts) WITH ORDINALITY AS t(p, i)) AS s,
        generate_series(past - CASE kind WHEN 'category' THEN width ELSE width - 1 END, past - 1) AS f
    WHERE kind IN ('category', 'number', 'date')
$$;

-- Settles a training: the query that learns, and what the catalogue has to know of its columns.
-- With `filled` numbers may be missing; with `by` the query gives a model for each group.
CREATE FUNCTION penstock.prepared(
    source text, model text, asked jsonb, path text, filled boolean, by text[],
    OUT query text, OUT kind text, OUT parts jsonb, OUT label text, OUT labels jsonb, OUT stem text, OUT fitted boolean, OUT fillable boolean,
    OUT left_out jsonb, OUT unlabelled bigint, OUT weight text, OUT exact boolean, OUT key_kinds text[], OUT key_values text[],
    OUT arguments text, OUT settled jsonb, OUT learnt text, OUT placed boolean
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    pinned CONSTANT text := current_setting('search_path');
    rows_of text;
    named regclass;
    names text[];
    types regtype[];
    wanted text[];
    wanted_types regtype[];
    arrays boolean[];
    classes jsonb;
    label_type regtype;
    target text;
    features text;
    options jsonb;
    choice text[];
    key text;
    excluded text[];
    columns text[];
    sparse boolean := false;
    place text;
    before text := '';
    after text := '';
    rows float8;
    chosen boolean := false;
    listed_in text[];
    aside jsonb;  -- arrays beside other columns, which nobody named
    named_all boolean;  -- whether somebody named the features, so that none is left out
    weights CONSTANT jsonb := asked->'class_weight';
    unknown text;
    numbers CONSTANT regtype[] := '{smallint,integer,bigint,real,double precision,numeric,boolean}';
    lists CONSTANT regtype[] := '{smallint[],integer[],bigint[],real[],double precision[],numeric[]}';
BEGIN
    IF jsonb_typeof(asked) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'options must be a JSON object, such as {"epochs": 5}' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    model := lower(model);
    IF model IS NULL OR model NOT IN ('logistic', 'svm', 'linear', 'softmax') THEN
        RAISE EXCEPTION 'there is no model "%"; choose from: logistic, svm, linear, softmax', model
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    asked := '{"validation": "auto"}' || jsonb_strip_nulls(asked);  -- the aggregates by themselves learn from all rows
    named_all := coalesce((asked->>'named')::boolean, asked ? 'features');
    options := asked - '{label,features,exclude,weight,replace,named,narrow,statement}'::text[] - CASE WHEN by IS NULL THEN '{}' ELSE '{unseen}' END::text[];
    IF jsonb_typeof(weights) = 'object' THEN
        IF model = 'linear' THEN
            RAISE EXCEPTION '"class_weight" is for labels that are classes, and linear models predict a number'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        options := options - 'class_weight';  -- it names labels, which are found later
    END IF;
    -- Before any row is read, and with classes that will be found later.
    PERFORM (options - 'classes' || jsonb_build_object('model', model)
        || CASE model WHEN 'softmax' THEN '{"outputs": 2}' ELSE '{}' END::jsonb)::text::penstock.options;
    IF asked ? 'classes' AND (jsonb_typeof(asked->'classes') <> 'array' OR model = 'linear') THEN
        RAISE EXCEPTION 'option "classes" must be an array, such as [0, 1], and is for classifiers; it is %, for %',
            asked->'classes', model USING ERRCODE = 'invalid_parameter_value';
    END IF;
    source := regexp_replace(source, '^(\s|--[^\n]*(\n|$)|/\*.*?\*/)+|[\s;]+$', '', 'g');
    IF coalesce(source, '') = '' THEN
        RAISE EXCEPTION 'say what to learn from: a table, a view or a query' USING ERRCODE = 'invalid_parameter_value';
    ELSIF source ~* '^[\s(]*(select|with|table|values)\M' THEN
        rows_of := format(E'(%s\n) AS q', source);
        stem := 'model';
    ELSE
        BEGIN
            PERFORM set_config('search_path', path, true);
            named := source::pg_catalog.regclass;
            PERFORM pg_catalog.set_config('search_path', pinned, true);
            SELECT format('%I.%I AS q', n.nspname, c.relname), c.relname INTO rows_of, stem
            FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = named;
        EXCEPTION WHEN invalid_name OR syntax_error OR undefined_table OR invalid_schema_name THEN
            RAISE EXCEPTION '% is neither a table or view that can be found, nor a query', source USING ERRCODE = 'undefined_table',
                HINT = 'Write names as in SQL: "My Table", shop.clicks. A query begins with SELECT, WITH, TABLE or VALUES.';
        END;
    END IF;
    SELECT array_agg(c.name), array_agg(c.type) INTO names, types FROM penstock.columns('SELECT * FROM ' || rows_of, path) AS c;

    SELECT n INTO label FROM unnest(names) AS n
    WHERE lower(n) = lower(coalesce(asked->>'label', 'label')) ORDER BY n = coalesce(asked->>'label', 'label') DESC LIMIT 1;
    IF label IS NULL THEN
        RAISE EXCEPTION 'there is no column "%"; say which one is the label: {"label": "clicked"}',
            coalesce(asked->>'label', 'label')
            USING ERRCODE = 'undefined_column', DETAIL = format('There are: %s.', array_to_string(names, ', '));
    END IF;
    label_type := types[array_position(names, label)];
    IF by IS NOT NULL THEN
        key_kinds := (penstock.group_columns(by, names, types, label)).kinds;
        key_values := ARRAY(SELECT penstock.key_value(b, k) FROM unnest(by, key_kinds) WITH ORDINALITY AS t(b, k, i) ORDER BY i);
    END IF;

    IF by IS NOT NULL AND asked ? 'weight' THEN
        RAISE EXCEPTION 'rows of groups have no weights here' USING ERRCODE = 'feature_not_supported',
            HINT = 'TRAIN BY ... GROUP BY of penstock sql weighs them.';
    ELSIF asked ? 'weight' THEN
        SELECT n INTO weight FROM unnest(names) AS n
        WHERE lower(n) = lower(asked->>'weight') ORDER BY n = asked->>'weight' DESC LIMIT 1;
        IF weight IS NULL THEN
            RAISE EXCEPTION 'there is no column "%" of weights', asked->>'weight'
                USING ERRCODE = 'undefined_column', DETAIL = format('There are: %s.', array_to_string(names, ', '));
        ELSIF weight = label THEN
            RAISE EXCEPTION '"%" is the label, and cannot be the weight too', weight USING ERRCODE = 'invalid_parameter_value';
        ELSIF NOT types[array_position(names, weight)] = ANY (numbers) THEN
            RAISE EXCEPTION 'the weight "%" is %, not a number', weight, types[array_position(names, weight)]
                USING ERRCODE = 'datatype_mismatch';
        END IF;
    END IF;

    wanted := penstock.listed(asked, 'features');
    excluded := penstock.listed(asked, 'exclude');
    IF wanted IS NOT NULL AND excluded IS NOT NULL THEN
        RAISE EXCEPTION '"features" and "exclude" are two ways to say it; give one of them'
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF NOT names @> excluded THEN
        RAISE EXCEPTION 'there is no column "%" to leave out', (SELECT n FROM unnest(excluded) AS n WHERE n <> ALL (names) LIMIT 1)
            USING ERRCODE = 'undefined_column', DETAIL = format('There are: %s.', array_to_string(names, ', '));
    ELSIF wanted IS NULL THEN
        SELECT array_agg(n ORDER BY i) INTO choice FROM unnest(names) WITH ORDINALITY AS t(n, i)
        WHERE n <> label AND n IS DISTINCT FROM weight AND n <> ALL (coalesce(excluded, '{}')) AND n <> ALL (coalesce(by, '{}'));
        wanted := CASE WHEN choice @> '{features_k,features_v}' THEN '{features_k,features_v}'
            WHEN choice @> '{features_v}' THEN '{features_v}'
            WHEN choice @> '{indices,values}' THEN '{indices,values}' ELSE choice END;
        chosen := true;
        IF wanted = choice THEN
            SELECT jsonb_object_agg(w, t::text || ', an array beside other columns'), array_agg(w) INTO aside, listed_in
            FROM (SELECT w, types[array_position(names, w)] AS t FROM unnest(wanted) AS w) AS s
            WHERE EXISTS (SELECT FROM pg_type AS p WHERE p.oid = t AND p.typcategory = 'A');
            IF wanted <@ listed_in THEN
                aside := NULL;  -- there are no others
            ELSIF aside IS NOT NULL THEN
                SELECT array_agg(w ORDER BY i) INTO wanted FROM unnest(wanted) WITH ORDINALITY AS t(w, i) WHERE w <> ALL (listed_in);
            END IF;
        END IF;
    END IF;
    SELECT array_agg(types[array_position(names, w)] ORDER BY i), array_agg(types[array_position(names, w)] = ANY (lists) ORDER BY i)
    INTO wanted_types, arrays FROM unnest(wanted) WITH ORDINALITY AS t(w, i);
    FOR i IN 1 .. coalesce(array_length(wanted, 1), 0) LOOP
        IF wanted_types[i] IS NULL THEN
            RAISE EXCEPTION 'there is no column "%" to learn from', wanted[i]
                USING ERRCODE = 'undefined_column', DETAIL = format('There are: %s.', array_to_string(names, ', '));
        ELSIF wanted[i] = label THEN
            RAISE EXCEPTION '"%" is the label; leave it out of the features', label USING ERRCODE = 'invalid_parameter_value';
        ELSIF wanted[i] = weight THEN
            RAISE EXCEPTION '"%" is the weight; leave it out of the features', weight USING ERRCODE = 'invalid_parameter_value';
        ELSIF wanted_types[i] = 'bytea'::regtype AND named_all THEN
            RAISE EXCEPTION 'column "%" is bytea, which cannot be a feature', wanted[i] USING ERRCODE = 'datatype_mismatch';
        END IF;
    END LOOP;
    fitted := NOT true = ANY (arrays) AND (filled OR NOT wanted_types <@ numbers);
    fillable := NOT fitted AND NOT true = ANY (arrays) AND coalesce(asked->>'nulls', 'fill') = 'fill';
    learnt := rows_of;
    IF wanted IS NULL THEN
        RAISE EXCEPTION 'there are no columns to learn from beside the label "%"', label USING ERRCODE = 'undefined_column';
    ELSIF by IS NOT NULL AND wanted[2] IS NOT NULL AND true = ANY (arrays) THEN
        RAISE EXCEPTION 'models of groups are learnt here from columns, or from one array of numbers; not from %', array_to_string(wanted, ', ')
            USING ERRCODE = 'feature_not_supported', HINT = 'TRAIN BY ... GROUP BY of penstock sql takes sparse rows.';
    ELSIF wanted IN ('{features_k,features_v}', '{indices,values}') AND arrays = '{t,t}' THEN
        features := format(CASE wanted_types[1] WHEN 'integer[]'::regtype THEN 'q.%I' ELSE 'q.%I::pg_catalog.int4[]' END, wanted[1]) || ', '
            || format(CASE wanted_types[2] WHEN 'real[]'::regtype THEN 'q.%I' ELSE 'q.%I::pg_catalog.float4[]' END, wanted[2]);
        parts := jsonb_build_array(
            jsonb_build_object('columns', to_jsonb(wanted), 'kind', 'pairs', 'width', NULL, 'names', '[]'::jsonb, 'hashed', NULL));
        sparse := true;
    ELSIF wanted[2] IS NULL AND arrays[1] THEN
        features := format(CASE wanted_types[1] WHEN 'real[]'::regtype THEN 'q.%I' ELSE 'q.%I::pg_catalog.float4[]' END, wanted[1]);
        parts := jsonb_build_array(
            jsonb_build_object('columns', to_jsonb(wanted), 'kind', 'vector', 'width', NULL, 'names', '[]'::jsonb, 'hashed', NULL));
    ELSIF true = ANY (arrays) THEN
        RAISE EXCEPTION 'features are one array, the pair features_k and features_v, or numbers; not %',
            array_to_string(wanted, ', ')
            USING ERRCODE = 'datatype_mismatch', HINT = 'Name what to learn from: {"features": "features_v"}; '
                'a pair by other names is a query: SELECT k AS features_k, v AS features_v, label FROM t.';
    ELSIF fitted THEN
        SELECT f.parts, f.left_out, f.unlabelled, f.rows INTO parts, left_out, unlabelled, rows
        FROM penstock.fitted(rows_of, label, wanted, wanted_types, named_all,
            by IS NULL AND coalesce((asked->>'standardize')::boolean, true),  -- groups are scaled each by itself
            coalesce((asked->>'intercept')::boolean, true), path) AS f;
        IF (asked->>'narrow')::boolean AND (SELECT sum((p->'width')::bigint) > 2000 FROM jsonb_array_elements(parts) AS p) THEN
            RAISE EXCEPTION 'these columns make more than 2000 features, most of them rare' USING ERRCODE = 'data_exception';
        ELSIF by IS NOT NULL AND (SELECT sum((p->'width')::bigint) > 2000 FROM jsonb_array_elements(parts) AS p) THEN
            RAISE EXCEPTION 'these columns make % features, and models of groups are learnt here from up to 2000',
                (SELECT sum((p->'width')::bigint) FROM jsonb_array_elements(parts) AS p) USING ERRCODE = 'program_limit_exceeded',
                HINT = format('Leave out "%s", which makes most of them, or use TRAIN BY ... GROUP BY of penstock sql.',
                    (SELECT p->'columns'->>0 FROM jsonb_array_elements(parts) AS p ORDER BY (p->'width')::bigint DESC LIMIT 1));
        END IF;
        SELECT array_agg(c ORDER BY i) INTO columns
        FROM (SELECT p->'columns'->>0, min(i) FROM jsonb_array_elements(parts) WITH ORDINALITY AS t(p, i) GROUP BY 1) AS t(c, i);
        features := format('%L::pg_catalog.jsonb, ROW(%s)', parts,
            (SELECT string_agg(format('q.%I', c), ', ' ORDER BY i) FROM unnest(columns) WITH ORDINALITY AS t(c, i)));
        IF coalesce(asked->>'nulls', 'fill') = 'fill' THEN
            learnt := format('%s WHERE q.%I IS NOT NULL', rows_of, label);
            IF unlabelled > 0 THEN
                RAISE WARNING '% rows have no "%", and are left out', unlabelled, label;
            END IF;
        ELSE
            before := format('CASE WHEN %s THEN ', (SELECT string_agg(format('q.%I IS NOT NULL', c), ' AND ') FROM unnest(columns) AS c));
            after := ' END';
        END IF;
        -- Least squares are solved exactly from rows that hold all of their features.
        IF by IS NULL AND EXISTS (SELECT FROM jsonb_array_elements(parts) AS p WHERE p->>'kind' = 'hash' OR (p->>'kind' = 'category' AND NOT p ? 'dense'))
            AND (model <> 'linear' OR (SELECT sum((p->'width')::bigint) > 2000 FROM jsonb_array_elements(parts) AS p)) THEN
            features := concat(before, 'penstock.encode_indices(', features, ')', after, ', ',
                before, 'penstock.encode_values(', features, ')', after);
            sparse := true;
        ELSE
            features := concat(before, 'penstock.encode(', features, ')', after);
        END IF;
        options := options || CASE WHEN by IS NULL THEN '{"standardize": false}' ELSE jsonb_build_object('flags', penstock.flags_of(parts)) END
            || jsonb_build_object('names', (SELECT jsonb_agg(n ORDER BY i, j)
            FROM jsonb_array_elements(parts) WITH ORDINALITY AS t(p, i), penstock.feature_names(p) WITH ORDINALITY AS u(n, j)
            WHERE p->>'kind' <> 'category' OR p ? 'dense'));
    ELSE
        SELECT format('ARRAY[%s]', string_agg(
                format(CASE wanted_types[i] WHEN 'boolean'::regtype THEN 'q.%I::pg_catalog.int4::pg_catalog.float4'
                    ELSE 'q.%I::pg_catalog.float4' END, w), ', ' ORDER BY i)),
            jsonb_agg(jsonb_build_object('columns', jsonb_build_array(w), 'kind', 'number', 'width', 1, 'names',
                jsonb_build_array(w), 'hashed', NULL) ORDER BY i)
        INTO features, parts FROM unnest(wanted) WITH ORDINALITY AS t(w, i);
        options := options || jsonb_build_object('names', to_jsonb(wanted));
    END IF;
    IF aside IS NOT NULL THEN
        left_out := coalesce(left_out, '{}') || aside;
    END IF;
    IF left_out <> '{}' THEN
        RAISE NOTICE 'left out: %; name the features to learn from such columns',
            (SELECT string_agg(format('"%s" (%s)', k, v), ', ') FROM jsonb_each_text(left_out) AS t(k, v));
    END IF;

    FOR key IN
        SELECT a.attname FROM pg_index AS i
        JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
        WHERE i.indisprimary AND i.indrelid = named AND a.attname = ANY (coalesce(columns, wanted)) AND chosen AND NOT filled
    LOOP
        RAISE WARNING '"%" is the table''s primary key, and is learnt from as a feature', key
            USING HINT = format('Leave it out: {"exclude": %s}.', to_jsonb(key));
    END LOOP;

    target := format('q.%I::pg_catalog.float4', label);
    IF model = 'linear' THEN
        IF NOT label_type = ANY (numbers) THEN
            RAISE EXCEPTION 'the label "%" is %, not a number; classes need logistic, svm or softmax', label, label_type
                USING ERRCODE = 'datatype_mismatch';
        ELSIF label_type = 'boolean'::regtype THEN
            target := format('q.%I::pg_catalog.int4::pg_catalog.float4', label);
        END IF;
    ELSE
        classes := coalesce(asked->'classes', penstock.classes(rows_of, label, label_type, path));
        IF label_type = ANY (numbers) AND classes::text ~ '"-?(NaN|Infinity)"' THEN
            RAISE EXCEPTION 'the label "%" is not a finite number in some rows', label USING ERRCODE = 'data_exception',
                DETAIL = penstock.unsound_label(rows_of, label, named, path), HINT = 'Mend or remove these rows.';
        ELSIF jsonb_array_length(classes) > 10000 THEN
            RAISE EXCEPTION 'the label "%" has over 10000 different values; these are hardly classes', label
                USING ERRCODE = 'data_exception', HINT = 'Use the model linear for a number, or name another label.';
        ELSIF jsonb_array_length(classes) = 0 THEN
            RAISE EXCEPTION 'there are no rows to learn from' USING ERRCODE = 'no_data_found';
        ELSIF jsonb_array_length(classes) = 1 THEN
            RAISE EXCEPTION 'the label "%" has a single class (%); there is nothing to tell apart', label, classes->0
                USING ERRCODE = 'data_exception';
        ELSIF jsonb_array_length(classes) > 2 AND model = 'logistic' THEN
            IF NOT filled THEN
                RAISE NOTICE 'the label "%" has % classes: the model is softmax, which is logistic regression of more than two', label,
                    jsonb_array_length(classes);
            END IF;
            model := 'softmax';
        ELSIF jsonb_array_length(classes) > 2 AND model <> 'softmax' THEN
            RAISE EXCEPTION 'the label "%" has % classes where two are needed', label, jsonb_array_length(classes)
                USING ERRCODE = 'data_exception', HINT = 'Use softmax for more than two.';
        END IF;
        IF jsonb_typeof(weights) = 'object' THEN
            SELECT k INTO unknown FROM jsonb_object_keys(weights) AS k
            WHERE NOT EXISTS (SELECT FROM jsonb_array_elements_text(classes) AS c WHERE penstock.is_label(k, c)) LIMIT 1;
            IF unknown IS NOT NULL THEN
                RAISE EXCEPTION '"class_weight" names "%", which "%" does not have', unknown, label
                    USING ERRCODE = 'invalid_parameter_value', DETAIL = format('Its labels are: %s.',
                        (SELECT string_agg(c, ', ' ORDER BY i) FROM jsonb_array_elements_text(classes) WITH ORDINALITY AS t(c, i)));
            END IF;
            SELECT options || jsonb_build_object('class_weight', jsonb_agg(
                coalesce((SELECT w FROM jsonb_each(weights) AS e(k, w) WHERE penstock.is_label(k, c) LIMIT 1), '1') ORDER BY i))
            INTO options FROM jsonb_array_elements_text(classes) WITH ORDINALITY AS t(c, i);
        END IF;
        labels := jsonb_build_object('classes', classes, 'binary', model <> 'softmax', 'column', label);
        IF label_type IN ('smallint'::regtype, 'integer'::regtype, 'real'::regtype)
            AND (SELECT bool_and(CASE WHEN jsonb_typeof(c) <> 'number' THEN false ELSE
                    abs(c::float8) <= 16777216 AND (label_type = 'real'::regtype OR c::float8 = c::real::float8) END)
                 FROM jsonb_array_elements(classes) AS t(c)) THEN
            options := options || jsonb_build_object('classes', classes);
        ELSE  -- of any type: told apart by its own comparison, as DISTINCT does; what is none of them is NaN, and refused
            SELECT format(
                'COALESCE((%s OPERATOR(pg_catalog.*) pg_catalog.array_position(%L::%I.%I[], q.%I) OPERATOR(pg_catalog.-) %s)::pg_catalog.float4, '
                'CASE WHEN q.%5$I IS NOT NULL THEN %7$L::pg_catalog.float4 END)', CASE model WHEN 'softmax' THEN 1 ELSE 2 END,
                ARRAY(SELECT jsonb_array_elements_text(classes)), n.nspname, t.typname, label,
                CASE model WHEN 'softmax' THEN 1 ELSE 3 END, 'NaN')
            INTO target FROM pg_type AS t JOIN pg_namespace AS n ON n.oid = t.typnamespace WHERE t.oid = label_type;
            options := options - 'classes';
            IF model = 'softmax' THEN
                options := options || jsonb_build_object('outputs', jsonb_array_length(classes));
            END IF;
        END IF;
    END IF;
    IF by IS NULL AND fitted AND penstock.may_be_fitted_wide(asked, model, parts, coalesce(jsonb_array_length(classes), 1), rows) THEN
        options := options || '{"solver": "lbfgs"}';
    END IF;
    kind := model;
    arguments := concat(features, ', ', target);
    IF weight IS NOT NULL THEN
        arguments := arguments || format(CASE types[array_position(names, weight)] WHEN 'boolean'::regtype
            THEN ', q.%I::pg_catalog.int4::pg_catalog.float4' ELSE ', q.%I::pg_catalog.float4' END, weight);
    END IF;
    settled := options || jsonb_build_object('model', model, 'title', coalesce(asked->>'title', concat_ws('_', stem, model)));
    exact := by IS NULL AND NOT sparse AND penstock.may_be_exact(settled::text::penstock.options);
    placed := EXISTS (SELECT FROM pg_class AS c WHERE c.oid = named AND c.relkind IN ('r', 'm', 'p'));
    IF exact OR by IS NOT NULL THEN
        place := CASE WHEN placed THEN 'q.ctid' ELSE 'NULL::pg_catalog.tid' END
            || CASE WHEN by IS NOT NULL THEN '' WHEN placed THEN ', q.tableoid' ELSE ', NULL::pg_catalog.oid' END;
        arguments := concat_ws(', ', arguments, CASE WHEN exact AND weight IS NULL THEN '1::pg_catalog.float4' END, place);
    END IF;
    query := format('SELECT penstock.%s(%s, %L::penstock.options) AS s FROM %s', CASE WHEN exact THEN 'least_squares' ELSE 'sgd' END,
        arguments, settled, learnt);
END $$;

