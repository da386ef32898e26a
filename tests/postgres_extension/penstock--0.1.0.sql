\echo Use "CREATE EXTENSION penstock" to load this file. \quit

-- Options of a training, checked when they are read.
CREATE TYPE penstock.options;

CREATE FUNCTION penstock.options_in(cstring) RETURNS penstock.options
    AS 'MODULE_PATHNAME', 'penstock_options_in' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION penstock.options_out(penstock.options) RETURNS cstring
    AS 'MODULE_PATHNAME', 'penstock_options_out' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE TYPE penstock.options (INPUT = penstock.options_in, OUTPUT = penstock.options_out, LIKE = text);
COMMENT ON TYPE penstock.options IS 'options of a training, as a JSON object';

CREATE TYPE penstock.epoch AS (
    epoch int, loss float8, score float8, seconds float8, rows bigint, coef real[], intercept real[]
);
COMMENT ON TYPE penstock.epoch IS 'what an epoch came to; the weights come with the last one';

-- Asked by the planner before it takes up an aggregate, and so loads the library that plans it.
CREATE FUNCTION penstock.sgd_support(internal) RETURNS internal
    AS 'MODULE_PATHNAME', 'penstock_sgd_support' LANGUAGE C STRICT;

CREATE FUNCTION penstock.sgd_unplanned(penstock.epoch, real[], real, penstock.options) RETURNS penstock.epoch
    AS 'MODULE_PATHNAME', 'penstock_sgd_unplanned' LANGUAGE C PARALLEL UNSAFE SUPPORT penstock.sgd_support;

CREATE FUNCTION penstock.sgd_unplanned(penstock.epoch, int[], real[], real, penstock.options) RETURNS penstock.epoch
    AS 'MODULE_PATHNAME', 'penstock_sgd_unplanned' LANGUAGE C PARALLEL UNSAFE SUPPORT penstock.sgd_support;

CREATE AGGREGATE penstock.sgd(features real[], label real, options penstock.options) (
    SFUNC = penstock.sgd_unplanned, STYPE = penstock.epoch
);
COMMENT ON AGGREGATE penstock.sgd(real[], real, penstock.options)
    IS 'learns a linear model from dense rows; gives a row for each epoch';

CREATE AGGREGATE penstock.sgd(features_k int[], features_v real[], label real, options penstock.options) (
    SFUNC = penstock.sgd_unplanned, STYPE = penstock.epoch
);
COMMENT ON AGGREGATE penstock.sgd(int[], real[], real, penstock.options)
    IS 'learns a linear model from sparse rows; gives a row for each epoch';

CREATE FUNCTION penstock.columns(query text, OUT name text, OUT type regtype) RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'penstock_columns' LANGUAGE C STABLE STRICT;
COMMENT ON FUNCTION penstock.columns(text) IS 'the columns of a query, which is not run';

-- Finds the classes of a label, in the order that all of Penstock has them in, as JSON.
CREATE FUNCTION penstock.classes(rows_of text, label text, type regtype) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    shown text := CASE
        WHEN type IN ('real'::regtype, 'double precision'::regtype, 'numeric'::regtype) THEN
            'CASE WHEN c = trunc(c::numeric) THEN to_jsonb(round(c::numeric, 1)) ELSE to_jsonb(c::float8) END'
        WHEN type IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype, 'boolean'::regtype) THEN 'to_jsonb(c)'
        ELSE 'to_jsonb(c::text)' END;
    sorted text := CASE WHEN shown = 'to_jsonb(c::text)' THEN 'c::text COLLATE "C"' ELSE 'c' END;
    found jsonb;
BEGIN
    IF type = 'boolean'::regtype THEN
        RETURN '[false, true]';
    END IF;
    EXECUTE format(
        'SELECT jsonb_agg(%s ORDER BY %s) FROM (SELECT DISTINCT q.%I AS c FROM %s WHERE q.%3$I IS NOT NULL LIMIT 10001) d',
        shown, sorted, label, rows_of) INTO found;
    RETURN coalesce(found, '[]');
END $$;

-- Reads a list of columns from the options, written as an array or as one text with commas.
CREATE FUNCTION penstock.listed(asked jsonb, option text) RETURNS text[] LANGUAGE plpgsql IMMUTABLE AS $$
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

-- Settles a training: the query that learns, and what the catalogue has to know of its columns.
CREATE FUNCTION penstock.prepared(
    source text, model text, asked jsonb,
    OUT query text, OUT parts jsonb, OUT label text, OUT labels jsonb, OUT stem text
) LANGUAGE plpgsql STABLE AS $$
DECLARE
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
    left_out text[];
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
    asked := jsonb_strip_nulls(asked);
    options := asked - '{label,features,exclude,replace}'::text[];
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
            SELECT format('%I.%I AS q', n.nspname, c.relname), c.relname, c.oid INTO rows_of, stem, named
            FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
            WHERE c.oid = source::regclass;
        EXCEPTION WHEN invalid_name OR syntax_error OR undefined_table OR invalid_schema_name THEN
            RAISE EXCEPTION '% is neither a table or view that can be found, nor a query', source USING ERRCODE = 'undefined_table',
                HINT = 'Write names as in SQL: "My Table", shop.clicks. A query begins with SELECT, WITH, TABLE or VALUES.';
        END;
    END IF;
    SELECT array_agg(c.name), array_agg(c.type) INTO names, types FROM penstock.columns('SELECT * FROM ' || rows_of) AS c;

    SELECT n INTO label FROM unnest(names) AS n
    WHERE lower(n) = lower(coalesce(asked->>'label', 'label')) ORDER BY n = coalesce(asked->>'label', 'label') DESC LIMIT 1;
    IF label IS NULL THEN
        RAISE EXCEPTION 'there is no column "%"; say which one is the label: {"label": "clicked"}',
            coalesce(asked->>'label', 'label')
            USING ERRCODE = 'undefined_column', DETAIL = format('There are: %s.', array_to_string(names, ', '));
    END IF;
    label_type := types[array_position(names, label)];

    wanted := penstock.listed(asked, 'features');
    left_out := penstock.listed(asked, 'exclude');
    IF wanted IS NOT NULL AND left_out IS NOT NULL THEN
        RAISE EXCEPTION '"features" and "exclude" are two ways to say it; give one of them'
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF NOT names @> left_out THEN
        RAISE EXCEPTION 'there is no column "%" to leave out', (SELECT n FROM unnest(left_out) AS n WHERE n <> ALL (names) LIMIT 1)
            USING ERRCODE = 'undefined_column', DETAIL = format('There are: %s.', array_to_string(names, ', '));
    ELSIF wanted IS NULL THEN
        SELECT array_agg(n ORDER BY i) INTO choice FROM unnest(names) WITH ORDINALITY AS t(n, i)
        WHERE n <> label AND n <> ALL (coalesce(left_out, '{}'));
        wanted := CASE WHEN choice @> '{features_k,features_v}' THEN '{features_k,features_v}'
            WHEN choice @> '{features_v}' THEN '{features_v}'
            WHEN choice @> '{indices,values}' THEN '{indices,values}' ELSE choice END;
        FOR key IN
            SELECT a.attname FROM pg_catalog.pg_index AS i
            JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
            WHERE i.indisprimary AND i.indrelid = named AND a.attname = ANY (wanted)
        LOOP
            RAISE WARNING '"%" is the table''s primary key, and is learnt from as a feature', key
                USING HINT = format('Leave it out: {"exclude": %s}.', to_jsonb(key));
        END LOOP;
    END IF;
    SELECT array_agg(types[array_position(names, w)] ORDER BY i), array_agg(types[array_position(names, w)] = ANY (lists) ORDER BY i)
    INTO wanted_types, arrays FROM unnest(wanted) WITH ORDINALITY AS t(w, i);
    FOR i IN 1 .. coalesce(array_length(wanted, 1), 0) LOOP
        IF wanted_types[i] IS NULL THEN
            RAISE EXCEPTION 'there is no column "%" to learn from', wanted[i]
                USING ERRCODE = 'undefined_column', DETAIL = format('There are: %s.', array_to_string(names, ', '));
        ELSIF wanted[i] = label THEN
            RAISE EXCEPTION '"%" is the label; leave it out of the features', label USING ERRCODE = 'invalid_parameter_value';
        ELSIF NOT (arrays[i] OR wanted_types[i] = ANY (numbers)) THEN
            RAISE EXCEPTION 'column "%" is %, not a number or an array of numbers', wanted[i], wanted_types[i]
                USING ERRCODE = 'datatype_mismatch', HINT = 'Name the columns to learn from: {"features": ["a", "b"]}.';
        END IF;
    END LOOP;
    IF wanted IS NULL THEN
        RAISE EXCEPTION 'there are no columns to learn from beside the label "%"', label USING ERRCODE = 'undefined_column';
    ELSIF wanted IN ('{features_k,features_v}', '{indices,values}') AND arrays = '{t,t}' THEN
        features := format(CASE wanted_types[1] WHEN 'integer[]'::regtype THEN 'q.%I' ELSE 'q.%I::int[]' END, wanted[1]) || ', '
            || format(CASE wanted_types[2] WHEN 'real[]'::regtype THEN 'q.%I' ELSE 'q.%I::real[]' END, wanted[2]);
        parts := jsonb_build_array(
            jsonb_build_object('columns', to_jsonb(wanted), 'kind', 'pairs', 'width', NULL, 'names', '[]'::jsonb, 'hashed', NULL));
    ELSIF wanted[2] IS NULL AND arrays[1] THEN
        features := format(CASE wanted_types[1] WHEN 'real[]'::regtype THEN 'q.%I' ELSE 'q.%I::real[]' END, wanted[1]);
        parts := jsonb_build_array(
            jsonb_build_object('columns', to_jsonb(wanted), 'kind', 'vector', 'width', NULL, 'names', '[]'::jsonb, 'hashed', NULL));
    ELSIF true = ANY (arrays) THEN
        RAISE EXCEPTION 'features are one array, the pair features_k and features_v, or numbers; not %',
            array_to_string(wanted, ', ')
            USING ERRCODE = 'datatype_mismatch', HINT = 'Name what to learn from: {"features": "features_v"}; '
                'a pair by other names is a query: SELECT k AS features_k, v AS features_v, label FROM t.';
    ELSE
        SELECT format('ARRAY[%s]', string_agg(
                format(CASE wanted_types[i] WHEN 'boolean'::regtype THEN 'q.%I::int::real' ELSE 'q.%I::real' END, w), ', ' ORDER BY i)),
            jsonb_agg(jsonb_build_object('columns', jsonb_build_array(w), 'kind', 'number', 'width', 1, 'names',
                jsonb_build_array(w), 'hashed', NULL) ORDER BY i)
        INTO features, parts FROM unnest(wanted) WITH ORDINALITY AS t(w, i);
    END IF;

    target := format('q.%I::real', label);
    IF model = 'linear' THEN
        IF NOT label_type = ANY (numbers) THEN
            RAISE EXCEPTION 'the label "%" is %, not a number; classes need logistic, svm or softmax', label, label_type
                USING ERRCODE = 'datatype_mismatch';
        ELSIF label_type = 'boolean'::regtype THEN
            target := format('q.%I::int::real', label);
        END IF;
    ELSE
        classes := coalesce(asked->'classes', penstock.classes(rows_of, label, label_type));
        IF label_type = ANY (numbers) AND classes::text ~ '"-?(NaN|Infinity)"' THEN
            RAISE EXCEPTION 'the label "%" is not a finite number in some rows', label
                USING ERRCODE = 'data_exception', HINT = 'Mend or remove these rows.';
        ELSIF jsonb_array_length(classes) > 10000 THEN
            RAISE EXCEPTION 'the label "%" has over 10000 different values; these are hardly classes', label
                USING ERRCODE = 'data_exception', HINT = 'Use the model linear for a number, or name another label.';
        ELSIF jsonb_array_length(classes) = 0 THEN
            RAISE EXCEPTION 'there are no rows to learn from' USING ERRCODE = 'no_data_found';
        ELSIF jsonb_array_length(classes) = 1 THEN
            RAISE EXCEPTION 'the label "%" has a single class (%); there is nothing to tell apart', label, classes->0
                USING ERRCODE = 'data_exception';
        ELSIF jsonb_array_length(classes) > 2 AND model <> 'softmax' THEN
            RAISE EXCEPTION 'the label "%" has % classes where two are needed', label, jsonb_array_length(classes)
                USING ERRCODE = 'data_exception', HINT = 'Use softmax for more than two.';
        END IF;
        labels := jsonb_build_object('classes', classes, 'binary', model <> 'softmax', 'column', label);
        IF label_type IN ('smallint'::regtype, 'integer'::regtype, 'real'::regtype)
            AND (SELECT bool_and(CASE WHEN jsonb_typeof(c) <> 'number' THEN false ELSE
                    abs(c::float8) <= 16777216 AND (label_type = 'real'::regtype OR c::float8 = c::real::float8) END)
                 FROM jsonb_array_elements(classes) AS t(c)) THEN
            options := options || jsonb_build_object('classes', classes);
        ELSE  -- of any type: told apart by the server's own comparison; what is none of them is NaN, and refused
            SELECT format('(CASE q.%1$I %2$s ELSE CASE WHEN q.%1$I IS NOT NULL THEN %3$L END END)::real', label, string_agg(
                format('WHEN %L THEN %L', c, CASE WHEN model = 'softmax' THEN i - 1 ELSE 2 * i - 3 END), ' ' ORDER BY i), 'NaN')
            INTO target FROM jsonb_array_elements_text(classes) WITH ORDINALITY AS t(c, i);
            options := options - 'classes';
            IF model = 'softmax' THEN
                options := options || jsonb_build_object('outputs', jsonb_array_length(classes));
            END IF;
        END IF;
    END IF;
    query := format('SELECT penstock.sgd(%s, %s, %L) AS s FROM %s', features, target,
        options || jsonb_build_object('model', model), rows_of);
END $$;

CREATE FUNCTION penstock.explain(
    source text, model text DEFAULT 'logistic', options jsonb DEFAULT '{}', run boolean DEFAULT false
) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY EXECUTE format('EXPLAIN (ANALYZE %s) %s', run::text, (penstock.prepared(source, model, options)).query);
END $$;
COMMENT ON FUNCTION penstock.explain(text, text, jsonb, boolean) IS 'the plan of a training; with run, also what it came to';

-- Makes the table of models where it is missing. It is not part of the extension: models outlive it, and Penstock's shell
-- makes the same table where there is no extension.
CREATE FUNCTION penstock.make_catalogue() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = 'penstock' AND c.relname = 'models'
    ) THEN
        RETURN;
    END IF;
    CREATE TABLE IF NOT EXISTS penstock.models (
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
EXCEPTION
    WHEN unique_violation OR duplicate_table THEN
        NULL;  -- another session has just made it
    WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'there is no table of models, and this user may not make one' USING ERRCODE = 'insufficient_privilege',
            HINT = format('Have the owner of the schema run: SELECT penstock.make_catalogue(); GRANT USAGE ON SCHEMA penstock TO %I; '
                'GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.models TO %1$I;', current_user);
END $$;

CREATE FUNCTION penstock.train(
    source text, model text DEFAULT 'logistic', name text DEFAULT NULL, options jsonb DEFAULT '{}',
    OUT epoch int, OUT loss float8, OUT score float8, OUT seconds float8, OUT rows bigint
) RETURNS SETOF record LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    asked CONSTANT jsonb := coalesce(options, '{}');
    replaced CONSTANT boolean := coalesce((asked->>'replace')::boolean, false);
    job record;
    each penstock.epoch;
    history jsonb := '[]';
    measure text;
    guess float8;
    features jsonb;
    width bigint;
    number int := 1;
    header json;
    saved text;
BEGIN
    model := lower(model);
    IF current_setting('transaction_read_only')::boolean THEN
        RAISE EXCEPTION 'a model cannot be kept in a read-only transaction' USING ERRCODE = 'read_only_sql_transaction',
            HINT = 'penstock.explain and penstock.sgd learn without keeping one.';
    END IF;
    PERFORM penstock.make_catalogue();
    IF NOT has_table_privilege('penstock.models', 'SELECT') OR NOT has_table_privilege('penstock.models', 'INSERT')
        OR (replaced AND NOT has_table_privilege('penstock.models', 'UPDATE')) THEN
        RAISE EXCEPTION 'this user may not keep models in penstock.models' USING ERRCODE = 'insufficient_privilege',
            HINT = format('Have its owner run: GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.models TO %I;', current_user);
    END IF;
    IF name IS NOT NULL AND NOT replaced AND EXISTS (SELECT FROM penstock.models AS m WHERE m.name = train.name) THEN
        RAISE EXCEPTION 'there is a model "%" already', name USING ERRCODE = 'unique_violation',
            HINT = 'Take another name, delete it from penstock.models, or replace it: {"replace": true}.';
    ELSIF name = '' OR octet_length(name) > 1000 THEN
        RAISE EXCEPTION 'the name of a model has 1 to 1000 bytes, not %', octet_length(name)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF asked ? 'read_only' THEN
        RAISE EXCEPTION 'a training that only reads has no model to keep; use penstock.explain'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    job := penstock.prepared(source, model, asked);
    measure := CASE model WHEN 'linear' THEN 'r2' ELSE 'accuracy' END;
    FOR each IN EXECUTE format('SELECT (x.s).* FROM (%s OFFSET 0) AS x', job.query) LOOP
        epoch := each.epoch; loss := each.loss; score := each.score; seconds := each.seconds; rows := each.rows;
        history := history || jsonb_build_object('epoch', epoch, 'loss', loss, measure, score, 'seconds', seconds, 'rows', rows);
        IF seconds > 1 THEN  -- a function's rows are seen when all of them are there
            RAISE NOTICE 'epoch %: loss %, % %, % s', epoch, round(loss::numeric, 4), measure, round(score::numeric, 4),
                round(seconds::numeric, 1);
        END IF;
        RETURN NEXT;
    END LOOP;
    guess := CASE model WHEN 'svm' THEN 1 WHEN 'softmax' THEN ln(array_length(each.intercept, 1)) ELSE ln(2) END;
    -- Large steps can raise the loss of a model that is right in most rows; that is told only where it is far off.
    IF score < 0 OR (model <> 'linear' AND loss > CASE WHEN score < 0.75 THEN guess ELSE 10 * guess END) THEN
        RAISE WARNING 'the loss is %, worse than a guess', loss
            USING HINT = 'The steps are too large: use a smaller learning_rate, or bring the features to a common scale.';
    END IF;

    width := array_length(each.coef, 1) / array_length(each.intercept, 1);
    IF job.parts->0->>'kind' IN ('vector', 'pairs') THEN
        job.parts := jsonb_set(job.parts, '{0,width}', to_jsonb(width));
    END IF;
    IF job.parts->0->>'kind' = 'vector' THEN
        SELECT jsonb_set(job.parts, '{0,names}', jsonb_agg(format('%s[%s]', job.parts->0->'columns'->>0, i) ORDER BY i))
        INTO job.parts FROM generate_series(0, width - 1) AS i;
    END IF;
    IF job.parts->0->>'kind' <> 'pairs' THEN
        SELECT jsonb_agg(n ORDER BY i, j) INTO features FROM jsonb_array_elements(job.parts) WITH ORDINALITY AS t(part, i),
            jsonb_array_elements(part->'names') WITH ORDINALITY AS u(n, j);
    END IF;
    header := json_build_object(
        'kind', model,
        'recipe', json_build_object('parts', job.parts, 'label', job.label, 'weight', NULL, 'labels', job.labels, 'origin', NULL),
        'features', features,
        'classes', job.labels->'classes',
        'config', json_build_object(
            'model', model, 'solver', 'sgd', 'learning_rate', asked->'learning_rate',
            'rate', coalesce(asked->>'rate', 'exponential'), 'decay', coalesce(asked->'decay', '0.95'),
            'power', coalesce(asked->'power', '0.25'), 'epochs', epoch, 'batch_size', coalesce(asked->'batch_size', '1'),
            'l1', coalesce(asked->'l1', '0.0'), 'l2', coalesce(asked->'l2', '0.0'),
            'intercept', coalesce(asked->>'intercept', 'true')::boolean, 'shuffle', coalesce(asked->>'shuffle', 'corgipile'),
            'memory', coalesce(asked->'buffer_size', asked->'memory', '"10%"'), 'seed', coalesce(asked->'seed', '0'),
            'standardize', false, 'validation', 0.0, 'patience', NULL, 'tolerance', 0.0001),
        'history', history,
        'fingerprint', '',
        'metrics', json_build_object('loss', loss, measure, score));
    LOOP
        saved := coalesce(name, format('%s_%s', job.stem, model) || CASE number WHEN 1 THEN '' ELSE '_' || number END);
        INSERT INTO penstock.models AS m (name, kind, outputs, width, coef, intercept, header, format, penstock_version)
        VALUES (saved, model, array_length(each.intercept, 1), width, each.coef, each.intercept, header, 1, '0.1.0')
        ON CONFLICT ON CONSTRAINT models_pkey DO NOTHING;
        EXIT WHEN FOUND;
        IF name IS NOT NULL AND replaced THEN
            UPDATE penstock.models AS m SET kind = model, outputs = array_length(each.intercept, 1), width = width,
                coef = each.coef, intercept = each.intercept, header = header, format = 1, created_at = now(),
                penstock_version = '0.1.0'
            WHERE m.name = saved;
            EXIT WHEN FOUND;
        ELSIF name IS NOT NULL THEN
            RAISE EXCEPTION 'there is a model "%" already, made while this one was trained', name USING ERRCODE = 'unique_violation';
        END IF;
        number := number + 1;
    END LOOP;
    RAISE NOTICE 'model "%" saved in penstock.models', saved;
END $$;
COMMENT ON FUNCTION penstock.train(text, text, text, jsonb)
    IS 'learns a model from a table or a query and keeps it in penstock.models; gives a row for each epoch';

-- Features of predictions are arrays of any numbers; real[] and int[] are fastest. The two of a sparse row differ in type,
-- which two families of polymorphic types allow.

-- Predictions by weights at hand: immutable, and as fast as reading the rows.
CREATE FUNCTION penstock.predict(coef real[], intercept real, features anyarray) RETURNS float8
    AS 'MODULE_PATHNAME', 'penstock_score' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION penstock.predict(real[], real, anyarray) IS 'the score of a dense row';

CREATE FUNCTION penstock.predict(coef real[], intercept real, features_k anyarray, features_v anycompatiblearray) RETURNS float8
    AS 'MODULE_PATHNAME', 'penstock_score' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION penstock.predict(real[], real, anyarray, anycompatiblearray) IS 'the score of a sparse row';

CREATE FUNCTION penstock.probability(score float8) RETURNS float8
    AS 'MODULE_PATHNAME', 'penstock_probability' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION penstock.probability(float8) IS 'of the second class, by the score of a logistic model';

-- Predictions by a model's name, which is looked up once for each query.
CREATE FUNCTION penstock.predict(name text, features anyarray) RETURNS float8
    AS 'MODULE_PATHNAME', 'penstock_predict' LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION penstock.predict(text, anyarray) IS 'the number or score that a model has for a dense row';

CREATE FUNCTION penstock.predict(name text, features_k anyarray, features_v anycompatiblearray) RETURNS float8
    AS 'MODULE_PATHNAME', 'penstock_predict' LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION penstock.predict(text, anyarray, anycompatiblearray) IS 'the number or score that a model has for a sparse row';

CREATE FUNCTION penstock.predict_class(name text, features anyarray) RETURNS text
    AS 'MODULE_PATHNAME', 'penstock_predict_class' LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION penstock.predict_class(text, anyarray) IS 'the class that a model gives a dense row';

CREATE FUNCTION penstock.predict_class(name text, features_k anyarray, features_v anycompatiblearray) RETURNS text
    AS 'MODULE_PATHNAME', 'penstock_predict_class' LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION penstock.predict_class(text, anyarray, anycompatiblearray) IS 'the class that a model gives a sparse row';

CREATE FUNCTION penstock.predict_probabilities(name text, features anyarray) RETURNS float8[]
    AS 'MODULE_PATHNAME', 'penstock_predict_probabilities' LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION penstock.predict_probabilities(text, anyarray) IS 'the probability of each class, in their order';

CREATE FUNCTION penstock.predict_probabilities(name text, features_k anyarray, features_v anycompatiblearray) RETURNS float8[]
    AS 'MODULE_PATHNAME', 'penstock_predict_probabilities' LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION penstock.predict_probabilities(text, anyarray, anycompatiblearray) IS 'the probability of each class, in their order';
