-- Options of a training, checked when they are read.
CREATE TYPE penstock.options;

CREATE FUNCTION penstock.options_in(cstring) RETURNS penstock.options
    AS 'MODULE_PATHNAME', 'penstock_options_in' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION penstock.options_out(penstock.options) RETURNS cstring
    AS 'MODULE_PATHNAME', 'penstock_options_out' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;

CREATE TYPE penstock.options (INPUT = penstock.options_in, OUTPUT = penstock.options_out, LIKE = text);
COMMENT ON TYPE penstock.options IS 'options of a training, as a JSON object';

CREATE TYPE penstock.epoch AS (
    epoch int, progressive_loss float8, progressive_score float8, seconds float8, rows bigint, coef real[], intercept real[],
    training_score float8, sample_rows bigint, weight_mean float8, held_out_loss float8,
    held_out_score float8, held_out_rows bigint
);
COMMENT ON TYPE penstock.epoch IS 'what an epoch came to; the weights, and their score on rows held out or on a sample of its rows, come with the last one';

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

