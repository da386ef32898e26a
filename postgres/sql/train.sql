-- Runs the caller's query, by the caller's path. In the loop, too, that path holds: all is qualified.
CREATE FUNCTION penstock.epochs(query text, measure text, exact boolean, path text) RETURNS SETOF penstock.epoch
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    each penstock.epoch;
    began CONSTANT timestamptz := clock_timestamp();
BEGIN
    PERFORM set_config('search_path', path, true);
    IF exact THEN  -- not in a loop, whose cursor would keep parallel workers out
        EXECUTE query INTO each;
        each.seconds := pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) began);
        RETURN NEXT each;
        RETURN;
    END IF;
    FOR each IN EXECUTE query LOOP
        IF each.seconds OPERATOR(pg_catalog.>) 1::pg_catalog.float8 AND each.progressive_loss IS NOT NULL THEN  -- a function's rows are seen when all of them are there
            RAISE NOTICE 'epoch %: progressive loss %, % %, % s', each.epoch,
                pg_catalog.round(each.progressive_loss::pg_catalog.numeric, 4), measure,
                pg_catalog.round(each.progressive_score::pg_catalog.numeric, 4), pg_catalog.round(each.seconds::pg_catalog.numeric, 1);
        END IF;
        RETURN NEXT each;
    END LOOP;
END $$;

CREATE FUNCTION penstock.run_explain(source text, model text, options jsonb, run boolean, path text) RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    job record := penstock.prepared(source, model, options, path, false, NULL);
BEGIN
    LOOP
        BEGIN
            PERFORM set_config('search_path', path, true);
            RETURN QUERY EXECUTE pg_catalog.format('EXPLAIN (ANALYZE %s) %s', run::pg_catalog.text, job.query);
            EXIT;
        EXCEPTION WHEN data_exception THEN  -- which undoes the setting, too
            IF NOT job.fillable OR SQLSTATE <> '22000' THEN
                RAISE;
            END IF;
            job := penstock.prepared(source, model, options, path, true, NULL);
        WHEN program_limit_exceeded THEN
            IF NOT job.exact OR options->>'solver' = 'exact' THEN
                RAISE;
            END IF;
            options := options || '{"solver": "sgd"}';
            job := penstock.prepared(source, model, options, path, false, NULL);
        END;
    END LOOP;
END $$;

-- The parts of a recipe where arrays have their length, which is known when they have been learnt from.
CREATE FUNCTION penstock.sized_parts(parts jsonb, width bigint) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE parts->0->>'kind' WHEN 'pairs' THEN jsonb_set(parts, '{0,width}', to_jsonb(width))
        WHEN 'vector' THEN jsonb_set(jsonb_set(parts, '{0,width}', to_jsonb(width)), '{0,names}',
            (SELECT jsonb_agg(format('%s[%s]', parts->0->'columns'->>0, i) ORDER BY i) FROM generate_series(0, width - 1) AS i))
        ELSE parts END
$$;

-- Refuses a training whose model could not be kept.
CREATE FUNCTION penstock.require_keeping(name text, replaced boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_read_only')::boolean THEN
        RAISE EXCEPTION 'a model cannot be kept in a read-only transaction' USING ERRCODE = 'read_only_sql_transaction',
            HINT = 'penstock.explain and penstock.sgd learn without keeping one.';
    END IF;
    PERFORM penstock.make_catalogue();
    PERFORM penstock.checked_catalogue(false);
    IF NOT has_table_privilege('penstock.models', 'SELECT') OR NOT has_table_privilege('penstock.models', 'INSERT')
        OR (replaced AND NOT has_table_privilege('penstock.models', 'UPDATE')) THEN
        RAISE EXCEPTION 'this user may not keep models in penstock.models' USING ERRCODE = 'insufficient_privilege',
            HINT = format('Have its owner run: GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.models TO %I;', current_user);
    END IF;
    IF name IS NOT NULL AND NOT replaced AND EXISTS (SELECT FROM penstock.models AS m WHERE m.name = require_keeping.name) THEN
        RAISE EXCEPTION 'there is a model "%" already', name USING ERRCODE = 'unique_violation',
            HINT = 'Take another name, delete it from penstock.models, or replace it: {"replace": true}.';
    ELSIF name = '' OR octet_length(name) > 1000 THEN
        RAISE EXCEPTION 'the name of a model has 1 to 1000 bytes, not %', octet_length(name)
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF name ~ '.@[1-9][0-9]{0,8}$' THEN
        RAISE EXCEPTION 'a model cannot be called "%", which means a version of another one', name
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave out what comes after the @, and the @.';
    END IF;
END $$;

-- Keeps a model, under a name or the first that is free after a stem, with the statement that it comes from; gives the name. One that it
-- replaces stays as an earlier version.
CREATE FUNCTION penstock.keep(
    name text, stem text, replaced boolean, kind text, outputs int, width bigint, coef real[], intercept real[], header json, format int,
    statement text, OUT saved text
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    number int := 1;
    version int;
BEGIN
    LOOP
        saved := coalesce(name, stem || CASE number WHEN 1 THEN '' ELSE '_' || number END);
        version := penstock.next_version(saved, name IS NOT NULL AND replaced);
        INSERT INTO penstock.models AS m (name, kind, outputs, width, coef, intercept, header, format, penstock_version)
        VALUES (saved, kind, outputs, width, coef, intercept,
            (format('{"version" : {"number" : %s, "statement" : %s, "owner" : %s, "snapshot" : "%s"}, ', version, to_json(statement),
                to_json(current_user::text), pg_current_snapshot()) || substr(header::text, 2))::json, format, '0.2.0')
        ON CONFLICT ON CONSTRAINT models_pkey DO NOTHING;
        EXIT WHEN FOUND;
        IF name IS NOT NULL AND NOT replaced THEN
            RAISE EXCEPTION 'there is a model "%" already, made while this one was trained', name USING ERRCODE = 'unique_violation';
        END IF;
        number := number + 1;
    END LOOP;
END $$;

CREATE FUNCTION penstock.run_training(
    source text, model text, name text, options jsonb, path text,
    OUT epoch int, OUT progressive_loss float8, OUT progressive_score float8, OUT training_score float8, OUT seconds float8,
    OUT rows bigint, OUT held_out_loss float8, OUT held_out_score float8, OUT held_out_rows bigint
) RETURNS SETOF record LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    asked jsonb := coalesce(options, '{}');
    given CONSTANT jsonb := CASE jsonb_typeof(asked) WHEN 'object' THEN jsonb_strip_nulls(asked) ELSE '{}' END;
    replaced CONSTANT boolean := coalesce((asked->>'replace')::boolean, false);
    job record;
    each penstock.epoch;
    history jsonb := '[]';
    measure text;
    guess float8;
    score float8;
    features jsonb;
    width bigint;
    filled boolean := false;
    coef real[];
    intercept real[];
    header json;
    saved text;
    statement CONSTANT text := coalesce(options->>'statement', format('SELECT * FROM penstock.train(%s)',
        concat_ws(', ', quote_literal(source), quote_literal(model), quote_nullable(name), quote_nullable(options))));
BEGIN
    model := lower(model);
    IF jsonb_typeof(asked) = 'object' AND name IS NOT NULL THEN
        asked := asked || jsonb_build_object('title', name);
    END IF;
    PERFORM penstock.require_keeping(name, replaced);
    IF asked ? 'read_only' THEN
        RAISE EXCEPTION 'a training that only reads has no model to keep; use penstock.explain'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    LOOP
        job := penstock.prepared(source, model, asked, path, filled, NULL);
        measure := CASE job.kind WHEN 'linear' THEN 'r2' ELSE 'accuracy' END;
        BEGIN
            FOR each IN SELECT * FROM penstock.epochs(format('SELECT (x.s).* FROM (%s OFFSET 0) AS x', job.query), measure, job.exact, path)
            LOOP
                epoch := each.epoch; progressive_loss := each.progressive_loss; progressive_score := each.progressive_score;
                training_score := each.training_score; seconds := each.seconds; rows := each.rows;
                held_out_loss := each.held_out_loss; held_out_score := each.held_out_score; held_out_rows := each.held_out_rows;
                history := history || jsonb_strip_nulls(jsonb_build_object('epoch', epoch, 'progressive_loss', progressive_loss,
                    'progressive_' || measure, progressive_score, 'held_out_loss', held_out_loss, 'held_out_' || measure, held_out_score,
                    'seconds', seconds, 'rows', rows));
                RETURN NEXT;
            END LOOP;
            EXIT;
        EXCEPTION WHEN data_exception THEN  -- a number that is missing is met in the first pass, before there is an epoch
            IF NOT job.fillable OR SQLSTATE <> '22000' THEN
                RAISE;
            END IF;
            filled := true;
        WHEN program_limit_exceeded THEN  -- more features than the products of all pairs have room for
            IF NOT job.exact OR asked->>'solver' = 'exact' THEN
                RAISE;
            END IF;
            asked := asked || '{"solver": "sgd"}';
        END;
    END LOOP;
    model := job.kind;
    coef := each.coef;
    intercept := each.intercept;
    IF job.fitted THEN
        SELECT u.coef, u.intercept, u.parts INTO coef, intercept, job.parts FROM penstock.unscaled(coef, intercept, job.parts) AS u;
    END IF;
    score := coalesce(held_out_score, training_score);
    guess := CASE model WHEN 'svm' THEN 1 WHEN 'softmax' THEN ln(array_length(intercept, 1)) ELSE ln(2) END;
    -- Large steps can raise the loss of a model that is right in most rows; that is told only where it is far off.
    IF score < 0 OR (model <> 'linear'
            AND progressive_loss > CASE WHEN score < 0.75 THEN guess ELSE 10 * guess END) THEN
        RAISE WARNING 'the progressive loss is %, worse than a guess', progressive_loss
            USING HINT = CASE WHEN jsonb_typeof(given->'learning_rate') = 'number' THEN 'Use a smaller learning_rate, or leave it out.'
                WHEN given->>'standardize' = 'false' THEN 'Leave standardize out.'
                ELSE 'Look for columns that tell more of the label.' END;
    END IF;

    width := array_length(coef, 1) / array_length(intercept, 1);
    job.parts := penstock.sized_parts(job.parts, width);
    IF NOT EXISTS (SELECT FROM jsonb_array_elements(job.parts) AS p
            WHERE p->>'kind' IN ('pairs', 'hash') OR (p->>'kind' = 'category' AND NOT p ? 'dense')) THEN
        SELECT jsonb_agg(n ORDER BY i, j) INTO features FROM jsonb_array_elements(job.parts) WITH ORDINALITY AS t(part, i),
            penstock.feature_names(part) WITH ORDINALITY AS u(n, j);
    END IF;
    header := json_build_object(
        'kind', model,
        'encoder', jsonb_build_object('parts', job.parts, 'label', job.label, 'weight', job.weight, 'labels', job.labels, 'origin', NULL)
            || CASE WHEN job.weight IS NULL THEN '{}' ELSE jsonb_build_object('weight_mean', each.weight_mean) END
            || CASE WHEN job.left_out <> '{}' THEN jsonb_build_object('left_out', job.left_out) ELSE '{}' END
            || CASE WHEN job.unlabelled > 0 THEN '{"unlabelled": true}' ELSE '{}' END::jsonb,
        'features', features,
        'classes', job.labels->'classes',
        'config', json_build_object(
            'model', model, 'solver', CASE WHEN progressive_loss IS NOT NULL THEN 'sgd' WHEN model = 'linear' THEN 'exact'
                ELSE 'lbfgs' END,
            'learning_rate', coalesce(given->'learning_rate', '"auto"'),
            'rate', coalesce(given->>'rate', 'auto'), 'decay', coalesce(given->'decay', '0.95'),
            'power', coalesce(given->'power', '0.25'), 'epochs', epoch, 'batch_size', coalesce(given->'batch_size', '1'),
            'l1', coalesce(given->'l1', '0.0'), 'l2', CASE WHEN jsonb_typeof(given->'l2') = 'number' THEN given->'l2'
                WHEN (given->>'l1')::float8 > 0 THEN '0.0' ELSE to_jsonb(1.0::float8 / rows) END,
            'average', coalesce(given->>'average', 'true')::boolean, 'class_weight', given->'class_weight',
            'intercept', coalesce(given->>'intercept', 'true')::boolean, 'shuffle', coalesce(given->>'shuffle', 'corgipile'),
            'memory', coalesce(given->'buffer_size', given->'memory', '"10%"'), 'seed', coalesce(given->'seed', '0'),
            'standardize', coalesce(given->>'standardize', 'true')::boolean, 'validation', CASE WHEN held_out_rows IS NULL THEN 0.0
                ELSE coalesce((nullif(given->>'validation', 'auto'))::float8, held_out_rows::float8 / (rows + held_out_rows)) END, 'patience', NULL,
            'tolerance', 0.0001),
        'history', history,
        'fingerprint', '',
        'metrics', jsonb_strip_nulls(jsonb_build_object('progressive_loss', progressive_loss, 'progressive_' || measure,
            progressive_score, 'training_' || measure, training_score, 'held_out_loss', held_out_loss, 'held_out_' || measure,
            held_out_score, 'held_out_rows', held_out_rows)));
    saved := penstock.keep(name, format('%s_%s', job.stem, model), replaced, model, array_length(intercept, 1), width, coef, intercept, header, 1,
        statement);
    RAISE NOTICE 'model "%" saved in penstock.models; its % on % % rows is %', saved,
        CASE model WHEN 'linear' THEN 'R2' ELSE 'accuracy' END, coalesce(held_out_rows, each.sample_rows),
        CASE WHEN held_out_rows IS NULL THEN 'of its training' ELSE 'held-out' END, round(score::numeric, 4);
END $$;
-- These have no search path of their own, so that they can hand the caller's on. Their bodies were read when they were made:
-- no path changes what they mean.
CREATE FUNCTION penstock.train(
    source text, model text DEFAULT 'logistic', name text DEFAULT NULL, options jsonb DEFAULT '{}',
    OUT epoch int, OUT progressive_loss float8, OUT progressive_score float8, OUT training_score float8, OUT seconds float8,
    OUT rows bigint, OUT held_out_loss float8, OUT held_out_score float8, OUT held_out_rows bigint
) RETURNS SETOF record LANGUAGE sql BEGIN ATOMIC
    SELECT t.epoch, t.progressive_loss, t.progressive_score, t.training_score, t.seconds, t.rows, t.held_out_loss, t.held_out_score,
        t.held_out_rows
    FROM penstock.run_training(source, model, name, options, pg_catalog.current_setting('search_path')) AS t;
END;
COMMENT ON FUNCTION penstock.train(text, text, text, jsonb)
    IS 'learns a model from a table or a query and keeps it in penstock.models; gives a row for each epoch';

CREATE FUNCTION penstock.explain(
    source text, model text DEFAULT 'logistic', options jsonb DEFAULT '{}', run boolean DEFAULT false
) RETURNS SETOF text LANGUAGE sql BEGIN ATOMIC
    SELECT line FROM penstock.run_explain(source, model, options, run, pg_catalog.current_setting('search_path')) AS line;
END;
COMMENT ON FUNCTION penstock.explain(text, text, jsonb, boolean) IS 'the plan of a training; with run, also what it came to';
