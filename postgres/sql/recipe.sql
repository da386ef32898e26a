-- Columns of text, dates and numbers with nulls as features, by a recipe: what Penstock's columns/ does in Python.

-- A row's columns, in the order in which the recipe first names them, as features: all of them, or those that are not 0.
CREATE FUNCTION penstock.encode(recipe jsonb, columns record) RETURNS real[]
    AS 'MODULE_PATHNAME', 'penstock_encode' LANGUAGE C STABLE STRICT PARALLEL SAFE;

CREATE FUNCTION penstock.encode_indices(recipe jsonb, columns record) RETURNS int[]
    AS 'MODULE_PATHNAME', 'penstock_encode_indices' LANGUAGE C STABLE STRICT PARALLEL SAFE;

CREATE FUNCTION penstock.encode_values(recipe jsonb, columns record) RETURNS real[]
    AS 'MODULE_PATHNAME', 'penstock_encode_values' LANGUAGE C STABLE STRICT PARALLEL SAFE;

-- Says what a column of text holds.
CREATE FUNCTION penstock.tally_add(state internal, value text, name text) RETURNS internal
    AS 'MODULE_PATHNAME', 'penstock_tally_add' LANGUAGE C;

CREATE FUNCTION penstock.tally_facts(state internal) RETURNS jsonb
    AS 'MODULE_PATHNAME', 'penstock_tally_facts' LANGUAGE C;

CREATE AGGREGATE penstock.tally(value text, name text) (
    SFUNC = penstock.tally_add, STYPE = internal, SSPACE = 1000000, FINALFUNC = penstock.tally_facts
);

-- What a feature of a number is brought to one scale by; 0 where numbers vary by rounding only.
CREATE FUNCTION penstock.inverse_spread(mean float8, variance float8, missing_share float8) RETURNS float8
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN s > 1e-12 * abs(mean) THEN 1 / s ELSE 0 END FROM sqrt(greatest(variance * (1 - missing_share), 0)) AS s
$$;

-- The bits that are set, as an array of texts.
CREATE FUNCTION penstock.bit_levels(bits bigint) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(jsonb_agg(i::text ORDER BY i), '[]') FROM generate_series(0, 31) AS i WHERE bits >> i & 1 = 1
$$;

-- A part of a recipe with what all of its kinds have.
CREATE FUNCTION penstock.part(name text, kind text, width bigint, names jsonb, more jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_build_object('columns', jsonb_build_array(name), 'kind', kind, 'width', width, 'names', names, 'hashed', NULL)
        || jsonb_strip_nulls(more)
$$;

CREATE FUNCTION penstock.number_part(
    name text, rows float8, missing float8, mean float8, variance float8, null_values jsonb, scaled boolean
) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT penstock.part(name, 'number', 1 + told::int,
        CASE WHEN told THEN jsonb_build_array(name, name || ' is missing') ELSE jsonb_build_array(name) END,
        jsonb_build_object('fill', mean, 'missing', nullif(told, false), 'null_values', null_values)
        || CASE WHEN scaled THEN jsonb_build_object('center', mean, 'scale', penstock.inverse_spread(mean, variance, missing / rows))
            ELSE '{}' END)
    FROM CAST(missing / rows > 0.01 AS boolean) AS told
$$;

-- A date as the days elapsed, and as categories the parts of it of which several occur.
CREATE FUNCTION penstock.date_parts(
    name text, rows float8, missing float8, mean float8, variance float8, bits bigint[], null_values jsonb, scaled boolean
) RETURNS SETOF jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT penstock.part(name, 'date', 1 + told::int,
        CASE WHEN told THEN jsonb_build_array(name || ' in days', name || ' is missing') ELSE jsonb_build_array(name || ' in days') END,
        jsonb_build_object('origin', round(mean), 'missing', nullif(told, false), 'null_values', null_values,
            'scale', CASE WHEN scaled THEN penstock.inverse_spread(mean, variance, missing / rows) END))
    FROM CAST(missing / rows > 0.01 AS boolean) AS told
    UNION ALL
    SELECT penstock.part(name, 'category', jsonb_array_length(levels), '[]',
        jsonb_build_object('levels', levels, 'of', d.part, 'null_values', null_values))
    FROM (VALUES (1, 'month'), (2, 'weekday'), (3, 'hour')) AS d(i, part), penstock.bit_levels(bits[i]) AS levels
    WHERE jsonb_array_length(levels) > 1
$$;

-- The first texts of an array as a message shows them, as Python writes text.
CREATE FUNCTION penstock.shown(texts jsonb, most int) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT string_agg(quote || replace(replace(t, '\', '\\'), '''', CASE quote WHEN '"' THEN '''' ELSE '\''' END) || quote, ', ' ORDER BY i)
        || CASE WHEN jsonb_array_length(texts) > most THEN ', …' ELSE '' END
    FROM jsonb_array_elements_text(texts) WITH ORDINALITY AS o(t, i),
        LATERAL (SELECT CASE WHEN strpos(t, '''') > 0 AND strpos(t, '"') = 0 THEN '"' ELSE '''' END) AS q(quote)
    WHERE i <= most
$$;

-- Why a column of text is left out that is numbers as people write them, dates, or numbers with too many values that are none; each
-- is NULL where it is no such column.
CREATE FUNCTION penstock.spelling(facts jsonb, OUT spelled text, OUT dates text, OUT odd text)
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN f.spelled > 0 AND f.others <= f.spelled AND f.plain + f.spelled >= 0.95 * total
            THEN format('numbers with a comma, a currency or a per cent sign, such as %s; write plain numbers, such as 1234.5, into the data',
                penstock.shown(facts->'number', 1)) END,
        CASE WHEN f.date_rows > 0 AND f.date_rows >= 0.95 * total
            THEN CASE facts->'date' WHEN '[]' THEN 'dates but for some values, such as ' || penstock.shown(facts->'iso_date', 1)
                ELSE 'dates in another order or spelling than that of ISO 8601, such as ' || penstock.shown(facts->'date', 1) END END,
        CASE WHEN NOT f.codes AND f.plain > 0 AND f.plain < total AND f.plain >= 0.95 * total
            THEN format('numbers but for %s; name these values as missing ones',
                penstock.shown(CASE facts->'odd' WHEN '[]' THEN facts->'number' ELSE facts->'odd' END, 3)) END
    FROM jsonb_to_record(facts) AS f(plain float8, spelled float8, others float8, date_rows float8, codes boolean),
        LATERAL (SELECT f.plain + f.spelled + f.others) AS s(total)
$$;

-- A column of text as features, by what `tally` found; a text where it is left out, the reason.
CREATE FUNCTION penstock.text_parts(name text, facts jsonb, named boolean, scaled boolean) RETURNS SETOF jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    null_values CONSTANT jsonb := '["", "?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A"]';
    rows CONSTANT float8 := facts->'rows';
    present CONSTANT float8 := rows - (facts->'missing')::float8;
    different CONSTANT float8 := facts->'distinct';
    spelling CONSTANT record := penstock.spelling(facts);
    prose CONSTANT boolean := (facts->'words')::float8 >= 3 * present AND spelling.dates IS NULL;
    own CONSTANT boolean := NOT prose AND different > greatest(0.8 * present, 5);
    told CONSTANT boolean := nullif(present < rows, false);
    rare CONSTANT boolean := nullif((facts->'rare')::boolean, false);
    other jsonb;
    few float8;
    bits int;
BEGIN
    FOR other IN SELECT facts->k FROM unnest('{numbers,dates}'::text[]) WITH ORDINALITY AS o(k, i) WHERE facts ? k ORDER BY i
    LOOP
        -- Few numbers are codes, unless a few odd values or words for missing ones are why they are stored as text.
        few := different - (facts->'null_words')::float8 - jsonb_array_length(other->'strays');
        CONTINUE WHEN other = facts->'numbers' AND different <= 20 AND (few < 5 OR few = different
            OR (other->'stray_rows')::float8 > greatest(jsonb_array_length(other->'strays'), 0.01 * present));
        CONTINUE WHEN (other->'stray_rows')::float8 > 0.2 * present OR (other->'stray_rows')::float8 >= present;
        IF other = facts->'numbers' THEN
            RETURN NEXT penstock.number_part(name, rows, (other->'missing')::float8 + (facts->'missing')::float8,
                (other->'mean')::float8, (other->'variance')::float8, null_values || (other->'strays'), scaled);
        ELSE
            RETURN QUERY SELECT * FROM penstock.date_parts(name, rows, (other->'missing')::float8 + (facts->'missing')::float8,
                (other->'mean')::float8, (other->'variance')::float8,
                ARRAY[facts->'months', facts->'weekdays', facts->'hours']::bigint[], null_values || (other->'strays'), scaled);
        END IF;
        RETURN;
    END LOOP;
    IF present = 0 THEN
        RETURN NEXT to_jsonb('empty'::text);
    ELSIF NOT named AND different > 20 AND spelling.spelled IS NOT NULL THEN
        RETURN NEXT to_jsonb(spelling.spelled);
    ELSIF NOT named AND different = 1 AND present = rows THEN
        RETURN NEXT to_jsonb('one value'::text);
    ELSIF NOT named AND spelling.dates IS NOT NULL AND (own OR NOT facts ? 'levels') THEN
        RETURN NEXT to_jsonb(spelling.dates || '; write them as 2026-11-18 into the data');
    ELSIF NOT named AND own THEN
        RETURN NEXT to_jsonb(coalesce(spelling.odd, 'a value of its own in nearly every row'));
    ELSIF facts ? 'levels' AND NOT (prose AND different > 20) THEN
        RETURN NEXT penstock.part(name, 'category',
            jsonb_array_length(facts->'levels') + coalesce(rare, false)::int + coalesce(told, false)::int, '[]',
            jsonb_build_object('levels', facts->'levels', 'rare', rare, 'missing', told));
    ELSE
        bits := CASE WHEN prose THEN 18 ELSE least(greatest(ceil(log(2, (4 * different)::numeric)), 10), 22) END;
        RETURN NEXT penstock.part(name, 'hash', (1::bigint << bits) + coalesce(told, false)::int, '[]',
            jsonb_build_object('missing', told)) || jsonb_build_object('hashed', jsonb_build_array(name, bits, prose));
    END IF;
END $$;

-- How a column is looked at.
CREATE FUNCTION penstock.form_of(type regtype) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN type = ANY ('{smallint,integer,bigint,real,double precision,numeric,boolean,oid,time,interval}'::regtype[]) THEN 'number'
        WHEN type = ANY ('{date,timestamp,timestamptz}'::regtype[]) THEN 'date'
        WHEN type = 'bytea'::regtype THEN 'binary' ELSE 'text' END
$$;

-- The names of a part's features.
CREATE FUNCTION penstock.feature_names(part jsonb) RETURNS SETOF text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT n FROM jsonb_array_elements_text(part->'names') AS n
    UNION ALL
    SELECT stem || n FROM concat_ws(' ', part->'columns'->>0, part->>'of') AS stem,
        LATERAL (SELECT '=' || l FROM jsonb_array_elements_text(part->'levels') AS l
            UNION ALL SELECT ' is rare' WHERE part ? 'rare' UNION ALL SELECT ' is missing' WHERE part ? 'missing') AS t(n)
    WHERE part->>'kind' = 'category'
$$;

-- The text of an expression that is null where a number is not finite.
CREATE FUNCTION penstock.finite(number text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('CASE WHEN %1$s OPERATOR(pg_catalog.<) %2$L::pg_catalog.float8 AND %1$s OPERATOR(pg_catalog.>) %3$L::pg_catalog.float8 THEN %1$s END',
        number, 'Infinity', '-Infinity')
$$;

-- Finds how columns become features, by one pass over the rows that have a label.
CREATE FUNCTION penstock.fitted(
    rows_of text, label text, wanted text[], types regtype[], named boolean, scaled boolean, centered boolean, path text,
    OUT parts jsonb, OUT left_out jsonb, OUT unlabelled bigint, OUT rows float8
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    pinned CONSTANT text := current_setting('search_path');
    columns CONSTANT int := array_length(wanted, 1);
    labelled CONSTANT text := format(' FILTER (WHERE q.%I IS NOT NULL)', label);
    sums text[] := '{}';
    tallies text[] := '{}';
    query text;
    s float8[];
    facts jsonb[];
    at int := 1;
    shown text;
    each text;
    of_column jsonb[];
    runs text[] := '{}';
    narrow boolean;
BEGIN
    FOR i IN 1 .. columns LOOP
        each := format('q.%I', wanted[i]);
        CASE penstock.form_of(types[i])
        WHEN 'number' THEN
            shown := CASE types[i] WHEN 'boolean'::regtype THEN each || '::pg_catalog.int4::pg_catalog.float8'
                WHEN 'time'::regtype THEN format('pg_catalog.date_part(''epoch'', %s)', each)
                WHEN 'interval'::regtype THEN format('pg_catalog.date_part(''epoch'', %s)', each) ELSE each || '::pg_catalog.float8' END;
            IF types[i] IN ('real', 'double precision', 'numeric', 'interval') THEN
                sums := sums || format('pg_catalog.count(CASE WHEN %s OPERATOR(pg_catalog.<) ''NaN''::pg_catalog.float8 THEN 1 END)%s',
                    shown, labelled);
                shown := penstock.finite(shown);
            ELSE
                sums := sums || format('pg_catalog.count(%s)%s', each, labelled);
            END IF;
            FOREACH each IN ARRAY '{avg,var_pop,min,max}'::text[] LOOP
                sums := sums || format('pg_catalog.%s(%s)%s', each, shown, labelled);
            END LOOP;
        WHEN 'date' THEN
            shown := CASE types[i] WHEN 'timestamptz'::regtype THEN format('pg_catalog.timezone(''UTC'', %s)', each)
                ELSE each || '::pg_catalog.timestamp' END;
            sums := sums || format('pg_catalog.count(%s)%s', each, labelled);
            FOREACH each IN ARRAY '{avg,var_pop}'::text[] LOOP
                sums := sums || format('pg_catalog.%s(%s)%s', each, penstock.finite(format(
                    'pg_catalog.date_part(''epoch'', %s) OPERATOR(pg_catalog./) 86400::pg_catalog.float8', shown)), labelled);
            END LOOP;
            FOREACH each IN ARRAY '{month,isodow,hour}'::text[] LOOP
                sums := sums || format('pg_catalog.bit_or(1 OPERATOR(pg_catalog.<<) pg_catalog.date_part(%L, %s)::pg_catalog.int4)%s',
                    each, shown, labelled);
            END LOOP;
        WHEN 'text' THEN
            tallies := tallies || format('penstock.tally(%s::pg_catalog.text, %L)%s', each, wanted[i], labelled);
        ELSE
            NULL;
        END CASE;
    END LOOP;
    query := format('SELECT pg_catalog.count(*), pg_catalog.count(q.%I), ARRAY[%s]::pg_catalog.float8[], ARRAY[%s]::pg_catalog.jsonb[] FROM %s',
        label, (SELECT string_agg(x || '::pg_catalog.float8', ', ' ORDER BY i) FROM unnest(sums) WITH ORDINALITY AS t(x, i)),
        array_to_string(tallies, ', '), rows_of);
    PERFORM set_config('search_path', path, true);
    EXECUTE query INTO unlabelled, rows, s, facts;
    PERFORM pg_catalog.set_config('search_path', pinned, true);
    unlabelled := unlabelled - rows;
    IF rows = 0 THEN
        RAISE EXCEPTION 'there are no rows to learn from' USING ERRCODE = 'no_data_found';
    END IF;

    parts := '[]';
    left_out := '{}';
    FOR i IN 1 .. columns LOOP
        CASE penstock.form_of(types[i])
        WHEN 'number' THEN
            of_column := ARRAY[CASE WHEN s[at] = 0 THEN to_jsonb('empty'::text)
                ELSE penstock.number_part(wanted[i], rows, rows - s[at], coalesce(s[at + 1], 0), coalesce(s[at + 2], 0), NULL, scaled) END];
            IF NOT named AND rows >= 100 AND s[at] = rows AND s[at + 4] - s[at + 3] >= 0.92 * rows - 1
                    AND s[at + 4] - s[at + 3] < 2 * rows AND types[i] NOT IN ('boolean', 'time', 'interval') THEN
                runs := runs || wanted[i];
            END IF;
            at := at + 5;
        WHEN 'date' THEN
            of_column := CASE WHEN s[at] = 0 THEN ARRAY[to_jsonb('empty'::text)] ELSE ARRAY(SELECT * FROM penstock.date_parts(wanted[i],
                rows, rows - s[at], s[at + 1], s[at + 2], ARRAY[s[at + 3], s[at + 4], s[at + 5]]::bigint[], NULL, scaled)) END;
            at := at + 6;
        WHEN 'text' THEN
            of_column := ARRAY(SELECT * FROM penstock.text_parts(wanted[i], facts[1], named, scaled));
            facts := facts[2:];
        ELSE
            of_column := ARRAY[to_jsonb('binary'::text)];
        END CASE;
        IF jsonb_typeof(of_column[1]) = 'string' THEN
            left_out := left_out || jsonb_build_object(wanted[i], of_column[1]);
        ELSE
            parts := parts || to_jsonb(of_column);
        END IF;
    END LOOP;
    IF runs <> '{}' THEN  -- whole numbers close together, about as many of them as rows: do they number the rows?
        query := format('SELECT ARRAY[%s] FROM %s WHERE q.%I IS NOT NULL', (SELECT string_agg(format(
            'CASE WHEN pg_catalog.bool_and(q.%1$I OPERATOR(pg_catalog.=) pg_catalog.trunc(q.%1$I)) THEN pg_catalog.count(DISTINCT q.%1$I) END', r),
            ', ' ORDER BY i) FROM unnest(runs) WITH ORDINALITY AS t(r, i)), rows_of, label);
        PERFORM set_config('search_path', path, true);
        EXECUTE query INTO s;
        PERFORM pg_catalog.set_config('search_path', pinned, true);
        runs := ARRAY(SELECT r FROM unnest(runs, s) AS t(r, different) WHERE different >= 0.92 * rows);
        IF EXISTS (SELECT FROM jsonb_array_elements(parts) AS p WHERE p->'columns'->>0 <> ALL (runs)) THEN  -- where there are no others they are features
            SELECT left_out || coalesce(jsonb_object_agg(r, 'row numbers'), '{}') INTO left_out FROM unnest(runs) AS r;
            SELECT jsonb_agg(p ORDER BY i) INTO parts FROM jsonb_array_elements(parts) WITH ORDINALITY AS t(p, i)
            WHERE p->'columns'->>0 <> ALL (runs);
        END IF;
    END IF;
    IF parts = '[]' THEN
        RAISE EXCEPTION 'no column tells anything of the label' USING ERRCODE = 'data_exception',
            DETAIL = (SELECT string_agg(format('%I: %s', k, v), '; ') FROM jsonb_each_text(left_out) AS t(k, v)),
            HINT = 'Name the columns to learn from all the same: {"features": ["a", "b"]}.';
    END IF;
    IF NOT centered THEN
        SELECT jsonb_agg(p - 'center' ORDER BY i) INTO parts FROM jsonb_array_elements(parts) WITH ORDINALITY AS t(p, i);
    END IF;
    -- Categories are stored in every row where all features are few; others stand behind the numbers.
    SELECT bool_and(p->>'kind' <> 'hash') AND sum((p->'width')::bigint) <= greatest(64, 4 * count(*)) INTO narrow
    FROM jsonb_array_elements(parts) AS p;
    SELECT jsonb_agg(CASE WHEN narrow AND p->>'kind' = 'category' THEN p || '{"dense": true}' ELSE p END
        ORDER BY NOT narrow AND p->>'kind' IN ('category', 'hash'), i) INTO parts
    FROM jsonb_array_elements(parts) WITH ORDINALITY AS t(p, i);
END $$;

-- Whether L-BFGS learns from wide rows too, of which most features are rare, so that one step size suits few of them: where nothing
-- asks for SGD, weights are not too many, and the rows can be expected to stay in the system's cache.
CREATE FUNCTION penstock.may_be_fitted_wide(asked jsonb, model text, parts jsonb, classes int, rows float8) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT model IN ('logistic', 'softmax') AND width > 2000 AND width * CASE model WHEN 'softmax' THEN classes ELSE 1 END <= 600000
        AND rows * 8 * (count + 1) <= pg_size_bytes(current_setting('effective_cache_size'))
        AND NOT asked ?| '{solver,learning_rate,rate,decay,power,l1,average,batch_size,epochs,max_epoch_num,shuffle}'
    FROM (SELECT sum((p->'width')::float8), count(*) FROM jsonb_array_elements(parts) AS p) AS t(width, count)
$$;

-- Brings weights that were learnt from scaled features to the units of the columns, all features of the recipe that have none to 0.
CREATE FUNCTION penstock.unscaled(INOUT coef real[], INOUT intercept real[], INOUT parts jsonb)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    outputs CONSTANT int := array_length(intercept, 1);
    width CONSTANT int := (SELECT sum((p->'width')::int) FROM jsonb_array_elements(parts) AS p);
    learnt CONSTANT int := array_length(coef, 1) / outputs;
    sums float8[] := intercept;
    given CONSTANT real[] := coef;
    part jsonb;
    start int := 1;
    w float8;
BEGIN
    IF learnt < width THEN
        coef := '{}';
        FOR o IN 0 .. outputs - 1 LOOP
            coef := coef || given[o * learnt + 1 : (o + 1) * learnt] || array_fill(0::real, ARRAY[width - learnt]);
        END LOOP;
    END IF;
    FOR part IN SELECT p FROM jsonb_array_elements(parts) WITH ORDINALITY AS t(p, i) ORDER BY i LOOP
        IF part ? 'scale' THEN
            FOR o IN 0 .. outputs - 1 LOOP
                w := coef[o * width + start]::float8 * (part->'scale')::float8;
                coef[o * width + start] := w;
                sums[o + 1] := sums[o + 1] - w * coalesce((part->'center')::float8, 0);
            END LOOP;
        END IF;
        start := start + (part->'width')::int;
    END LOOP;
    intercept := sums::real[];
    SELECT jsonb_agg(p - '{center,scale}'::text[] ORDER BY i) INTO parts FROM jsonb_array_elements(parts) WITH ORDINALITY AS t(p, i);
END $$;

-- Predictions for a row with the columns that a model was learnt from: penstock.predict('m', t) FROM t.
CREATE FUNCTION penstock.predict(name text, columns record) RETURNS float8
    AS 'MODULE_PATHNAME', 'penstock_predict' LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION penstock.predict(text, record) IS 'the number or score that a model has for a row of a table';

CREATE FUNCTION penstock.predict_class(name text, columns record) RETURNS text
    AS 'MODULE_PATHNAME', 'penstock_predict_class' LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION penstock.predict_class(text, record) IS 'the class that a model gives a row of a table';

CREATE FUNCTION penstock.predict_probabilities(name text, columns record) RETURNS float8[]
    AS 'MODULE_PATHNAME', 'penstock_predict_probabilities' LANGUAGE C STABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION penstock.predict_probabilities(text, record) IS 'the probability of each class, in their order';
