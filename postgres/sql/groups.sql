-- A model for each group.

CREATE TYPE penstock.group_model AS (
    rows bigint, selection_rows bigint, held_out_rows bigint, config int, weights real[], loss float8[], selection_loss float8[],
    selection_score float8[], passes float8[], held_out_loss float8, held_out_score float8,
    held_out_mean float8, held_out_squares float8, other_loss float8, other_score float8, judged real[], reason text
);
COMMENT ON TYPE penstock.group_model
    IS 'what came of a group: how many rows it has, the penalty that was chosen (counted from 0), the weights, the loss and so on of each '
        'penalty, how the chosen model does on rows held out, and why there is none';

CREATE FUNCTION penstock.fit_add(internal, real[], real, penstock.options) RETURNS internal
    AS 'MODULE_PATHNAME', 'penstock_fit_add' LANGUAGE C PARALLEL SAFE SUPPORT penstock.sgd_support;

CREATE FUNCTION penstock.fit_final(internal) RETURNS penstock.group_model
    AS 'MODULE_PATHNAME', 'penstock_fit_final' LANGUAGE C PARALLEL SAFE;

CREATE AGGREGATE penstock.fit(features real[], label real, options penstock.options) (
    SFUNC = penstock.fit_add, STYPE = internal, FINALFUNC = penstock.fit_final, FINALFUNC_MODIFY = READ_WRITE, PARALLEL = SAFE
);

-- With a row's place in a table, by which it is drawn what the row is for.
CREATE FUNCTION penstock.fit_add(internal, real[], real, tid, penstock.options) RETURNS internal
    AS 'MODULE_PATHNAME', 'penstock_fit_add' LANGUAGE C PARALLEL SAFE SUPPORT penstock.sgd_support;

CREATE AGGREGATE penstock.fit(features real[], label real, place tid, options penstock.options) (
    SFUNC = penstock.fit_add, STYPE = internal, FINALFUNC = penstock.fit_final, FINALFUNC_MODIFY = READ_WRITE, PARALLEL = SAFE
);

COMMENT ON AGGREGATE penstock.fit(real[], real, penstock.options)
    IS 'learns a linear model from each group''s rows; gives the model and how it does on rows held out';
