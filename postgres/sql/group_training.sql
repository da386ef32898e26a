-- penstock.train with groups: a model for each under one name, as `TRAIN BY ... GROUP BY` of penstock sql keeps them.

-- A group's value as people write it.
CREATE FUNCTION penstock.shown_key(value text, kind text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE kind WHEN 'boolean' THEN (value::int <> 0)::text
        WHEN 'date' THEN ('1970-01-01'::date + value::int)::text
        WHEN 'timestamp' THEN ('1970-01-01'::timestamp + value::bigint * '1 microsecond'::interval)::text
        WHEN 'time' THEN ('00:00'::time + value::bigint * '1 microsecond'::interval)::text
        ELSE value END
$$;

-- Runs the caller's query, by the caller's path: the keys of all groups, those of groups with a model, and what came of all of them.
CREATE FUNCTION penstock.fit_groups(
    arguments text, options jsonb, learnt text, key_values text[], path text, OUT keys json, OUT known json, OUT results penstock.group_model[]
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    query CONSTANT text := (SELECT format('SELECT pg_catalog.json_build_array(%s), pg_catalog.json_build_array(%s), pg_catalog.array_agg(r.m) '
            'FROM (SELECT %s, penstock.fit(%s, %L::penstock.options) AS m FROM %s GROUP BY %s) AS r',
            string_agg(format('pg_catalog.json_agg(r.k%s::pg_catalog.text)', i), ', ' ORDER BY i),
            string_agg(format('pg_catalog.json_agg(r.k%s::pg_catalog.text) FILTER (WHERE (r.m).weights IS NOT NULL)', i), ', ' ORDER BY i),
            string_agg(format('%s AS k%s', k, i), ', ' ORDER BY i), arguments, options, learnt, string_agg(i::text, ', ' ORDER BY i))
        FROM unnest(key_values) WITH ORDINALITY AS t(k, i));
BEGIN
    PERFORM set_config('search_path', path, true);
    EXECUTE query INTO keys, known, results;
END $$;

-- The same of all rows as one group.
CREATE FUNCTION penstock.fit_all(arguments text, options jsonb, learnt text, path text) RETURNS penstock.group_model
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    query CONSTANT text := format('SELECT (r.m).* FROM (SELECT penstock.fit(%s, %L::penstock.options) AS m FROM %s) AS r', arguments, options, learnt);
    result penstock.group_model;
BEGIN
    PERFORM set_config('search_path', path, true);
    EXECUTE query INTO result;
    RETURN result;
END $$;

-- What came of groups, as the catalogue has it beside their weights.
CREATE FUNCTION penstock.group_table(keys json, results penstock.group_model[]) RETURNS json
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT json_build_object('keys', keys, 'rows', json_agg(r.rows ORDER BY n), 'selection_rows', json_agg(r.selection_rows ORDER BY n),
        'held_out_rows', json_agg(r.held_out_rows ORDER BY n), 'config', json_agg(r.config ORDER BY n), 'loss', json_agg(r.loss ORDER BY n),
        'selection_loss', json_agg(r.selection_loss ORDER BY n), 'selection_score', json_agg(r.selection_score ORDER BY n),
        'epochs', json_agg(r.passes::int[] ORDER BY n), 'held_out_loss', json_agg(r.held_out_loss ORDER BY n),
        'held_out_score', json_agg(r.held_out_score ORDER BY n), 'pooled_loss', json_agg(r.other_loss ORDER BY n),
        'pooled_score', json_agg(r.other_score ORDER BY n), 'reason', json_agg(r.reason ORDER BY n))
    FROM (SELECT *, ordinality AS n FROM unnest(results) WITH ORDINALITY) AS r
$$;

-- How the chosen models, and the pooled one, do on the rows held out of all groups together.
CREATE FUNCTION penstock.held_out_figures(results penstock.group_model[], measure text) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN rows > 0 THEN jsonb_strip_nulls(jsonb_build_object('held_out_rows', rows, 'held_out_loss', loss / rows,
        'held_out_' || measure, CASE measure WHEN 'accuracy' THEN score / rows
            ELSE 1 - 2 * loss / nullif(squares + apart - sums ^ 2 / rows, 0) END, 'pooled_loss', other_loss / rows,
        'pooled_' || measure, CASE measure WHEN 'accuracy' THEN other_score / rows
            ELSE 1 - 2 * other_loss / nullif(squares + apart - sums ^ 2 / rows, 0) END)) ELSE '{}' END
    FROM (SELECT sum(held_out_rows) AS rows, sum(held_out_loss * held_out_rows) AS loss, sum(held_out_score * held_out_rows) AS score,
            sum(other_loss * held_out_rows) AS other_loss, sum(other_score * held_out_rows) AS other_score,
            sum(held_out_squares) AS squares, sum(held_out_mean ^ 2 * held_out_rows) AS apart, sum(held_out_mean * held_out_rows) AS sums
        FROM unnest(results) WHERE held_out_loss IS NOT NULL) AS t
$$;

CREATE FUNCTION penstock.run_group_training(
    source text, model text, by text[], name text, options jsonb, path text,
    OUT "group" text[], OUT rows bigint, OUT l2 float8, OUT held_out_rows bigint, OUT held_out_loss float8, OUT held_out_score float8,
    OUT reason text
) RETURNS SETOF record LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    given CONSTANT jsonb := CASE jsonb_typeof(options) WHEN 'object' THEN jsonb_strip_nulls(options) END;
    asked CONSTANT jsonb := '{"validation": 0.1}' || given;
    replaced CONSTANT boolean := coalesce((given->>'replace')::boolean, false);
    unseen text := coalesce(given->>'unseen', 'pooled');
    penalties CONSTANT jsonb := CASE jsonb_typeof(given->'l2') WHEN 'array' THEN given->'l2' ELSE '[null]' END;
    filled boolean := false;
    job record;
    fits record;
    whole penstock.group_model;
    settled jsonb;
    measure text;
    outputs int;
    width bigint;
    coef real[];
    figures jsonb;
    common jsonb;
    groups jsonb;
    header json;
    without bigint;
    saved text;
    statement CONSTANT text := coalesce(options->>'statement', format('SELECT * FROM penstock.train(%s)', concat_ws(', ', quote_literal(source),
        quote_literal(model), quote_nullable(by) || '::text[]', quote_nullable(options), quote_nullable(name))));
BEGIN
    PERFORM penstock.require_keeping(name, replaced);
    IF unseen NOT IN ('pooled', 'null') THEN
        RAISE EXCEPTION 'option "unseen" must be "pooled" or "null"; it is %', given->'unseen' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'It says what rows of other groups get: the prediction of a model of all rows, or none.';
    END IF;
    IF pg_size_bytes(current_setting('work_mem')) < 67108864 THEN  -- for the sort
        PERFORM set_config('work_mem', '64MB', true);
    END IF;
    LOOP
        job := penstock.prepared(source, model, coalesce(asked, options), path, filled, by);
        BEGIN
            settled := job.settled;
            IF unseen = 'pooled' THEN
                whole := penstock.fit_all(job.arguments, settled || '{"judged": true}', job.learnt, path);
                IF whole.weights IS NULL THEN
                    unseen := 'null';
                ELSIF job.placed AND whole.held_out_rows > 0 THEN  -- the same rows of a table are held out of it and of the groups
                    settled := settled || jsonb_build_object('other', to_jsonb(whole.judged));
                END IF;
            END IF;
            fits := penstock.fit_groups(job.arguments, settled, job.learnt, job.key_values, path);
            EXIT;
        EXCEPTION WHEN data_exception THEN  -- a number is missing
            IF NOT job.fillable OR SQLSTATE <> '22000' THEN
                RAISE;
            END IF;
            filled := true;
        END;
    END LOOP;
    model := job.kind;
    measure := CASE model WHEN 'linear' THEN 'r2' ELSE 'accuracy' END;
    outputs := CASE model WHEN 'softmax' THEN jsonb_array_length(job.labels->'classes') ELSE 1 END;
    SELECT count(*) INTO without FROM unnest(fits.results) AS r WHERE r.weights IS NULL;
    IF fits.results IS NULL OR without = cardinality(fits.results) THEN
        RAISE EXCEPTION 'no group has a model' USING ERRCODE = 'data_exception',
            DETAIL = coalesce((SELECT format('The first reason: %s.', r.reason) FROM unnest(fits.results) AS r LIMIT 1), 'There are no rows.');
    ELSIF without > 0 THEN
        RAISE NOTICE '% of % groups have no model: %', without, cardinality(fits.results),
            (SELECT string_agg(format('%s (%s)', t.reason, t.groups), ', ' ORDER BY t.groups DESC) FROM (
                SELECT r.reason, count(*) AS groups FROM unnest(fits.results) AS r WHERE r.weights IS NULL GROUP BY 1 ORDER BY 2 DESC LIMIT 5) AS t);
    END IF;
    SELECT array_agg(r.weights ORDER BY r.ordinality) INTO coef FROM unnest(fits.results) WITH ORDINALITY AS r WHERE r.weights IS NOT NULL;
    IF array_length(coef, 1)::bigint * array_length(coef, 2) > 125000000 THEN
        RAISE EXCEPTION '% models of % weights are more than a field holds', array_length(coef, 1), array_length(coef, 2)
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Leave features out, or group by fewer columns.';
    END IF;
    width := array_length(coef, 2) / outputs - 1;
    coef := ARRAY(SELECT unnest(coef));
    figures := penstock.held_out_figures(fits.results, measure);
    common := jsonb_build_object('solver', CASE model WHEN 'linear' THEN 'exact' ELSE 'lbfgs' END,
        'l2', CASE jsonb_typeof(given->'l2') WHEN 'number' THEN given->'l2' END, 'epochs', coalesce(given->'epochs', given->'max_epoch_num'),
        'intercept', coalesce(given->>'intercept', 'true')::boolean, 'standardize', coalesce(given->>'standardize', 'true')::boolean,
        'class_weight', given->'class_weight', 'seed', coalesce(given->'seed', '0'), 'validation', asked->'validation');
    groups := jsonb_build_object('kind', model, 'family', 'linear', 'fingerprint', '', 'layout', '[]'::jsonb, 'finished', true,
        'fixed', common, 'configs', (SELECT jsonb_agg(CASE jsonb_typeof(given->'l2') WHEN 'array' THEN
            jsonb_build_object('l2', CASE jsonb_typeof(p) WHEN 'number' THEN p END) ELSE '{}' END ORDER BY i)
            FROM jsonb_array_elements(penalties) WITH ORDINALITY AS t(p, i)),
        'recipe', jsonb_build_object('parts', penstock.sized_parts(job.parts, width),
            'label', job.label, 'weight', NULL, 'labels', job.labels, 'origin', NULL)
            || CASE WHEN job.left_out <> '{}' THEN jsonb_build_object('left_out', job.left_out) ELSE '{}' END
            || CASE WHEN job.unlabelled > 0 THEN '{"unlabelled": true}' ELSE '{}' END::jsonb);
    coef := coef || coalesce(whole.weights, '{}');
    header := json_build_object(
        'kind', model, 'encoder', groups->'recipe', 'classes', job.labels->'classes', 'config', common || jsonb_build_object('model', model),
        'metrics', figures, 'history', json_build_array(json_build_object('rows', (SELECT sum(r.rows) FROM unnest(fits.results) AS r))),
        'groups', json_build_object('by', to_json(by), 'kinds', to_json(job.key_kinds), 'keys', fits.known,
            'count', cardinality(fits.results) - without, 'unseen', unseen,
            'index', groups || jsonb_build_object('by', to_jsonb(by), 'held_out', figures),
            'table', penstock.group_table(fits.keys, fits.results),
            'pooled', CASE WHEN whole.weights IS NOT NULL THEN json_build_object(
                'index', groups || jsonb_build_object('by', '[]'::jsonb, 'held_out', penstock.held_out_figures(ARRAY[whole], measure)),
                'table', penstock.group_table('[]', ARRAY[whole])) END));
    saved := penstock.keep(name, format('%s_%s', job.stem, model), replaced, model, outputs, width, coef, '{}', header, 2, statement);
    RETURN QUERY
        SELECT k.key, r.rows, CASE jsonb_typeof(given->'l2') WHEN 'number' THEN given->'l2' ELSE penalties->r.config END::float8,
            r.held_out_rows, r.held_out_loss, r.held_out_score, r.reason
        FROM unnest(fits.results) WITH ORDINALITY AS r JOIN (
            SELECT v.n, array_agg(penstock.shown_key(v.value, job.key_kinds[c.i]) ORDER BY c.i) AS key
            FROM json_array_elements(fits.keys) WITH ORDINALITY AS c(values, i), json_array_elements_text(c.values) WITH ORDINALITY AS v(value, n)
            GROUP BY v.n) AS k ON k.n = r.ordinality
        ORDER BY r.ordinality;
    RAISE NOTICE 'models of % groups saved in penstock.models as "%"%', cardinality(fits.results) - without, saved,
        CASE WHEN figures ? ('held_out_' || measure) THEN format('; their %s on %s held-out rows is %s', CASE model WHEN 'linear' THEN 'R2'
            ELSE 'accuracy' END, figures->'held_out_rows', round((figures->>('held_out_' || measure))::numeric, 4)) ELSE '' END;
END $$;

CREATE FUNCTION penstock.train(
    source text, model text, group_by text[], options jsonb DEFAULT '{}', name text DEFAULT NULL,
    OUT "group" text[], OUT rows bigint, OUT l2 float8, OUT held_out_rows bigint, OUT held_out_loss float8, OUT held_out_score float8,
    OUT reason text
) RETURNS SETOF record LANGUAGE sql BEGIN ATOMIC
    SELECT t."group", t.rows, t.l2, t.held_out_rows, t.held_out_loss, t.held_out_score, t.reason
    FROM penstock.run_group_training(source, model, group_by, name, options, pg_catalog.current_setting('search_path')) AS t;
END;
COMMENT ON FUNCTION penstock.train(text, text, text[], jsonb, text)
    IS 'learns a model for each group of rows and keeps them in penstock.models under one name; gives a row for each group';
