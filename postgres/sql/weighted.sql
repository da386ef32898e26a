-- Rows that count by a weight of their own.
CREATE FUNCTION penstock.sgd_unplanned(penstock.epoch, real[], real, real, penstock.options) RETURNS penstock.epoch
    AS 'MODULE_PATHNAME', 'penstock_sgd_unplanned' LANGUAGE C PARALLEL UNSAFE SUPPORT penstock.sgd_support;

CREATE FUNCTION penstock.sgd_unplanned(penstock.epoch, int[], real[], real, real, penstock.options) RETURNS penstock.epoch
    AS 'MODULE_PATHNAME', 'penstock_sgd_unplanned' LANGUAGE C PARALLEL UNSAFE SUPPORT penstock.sgd_support;

CREATE AGGREGATE penstock.sgd(features real[], label real, weight real, options penstock.options) (
    SFUNC = penstock.sgd_unplanned, STYPE = penstock.epoch
);
COMMENT ON AGGREGATE penstock.sgd(real[], real, real, penstock.options)
    IS 'learns a linear model from dense rows that have weights; gives a row for each epoch';

CREATE AGGREGATE penstock.sgd(features_k int[], features_v real[], label real, weight real, options penstock.options) (
    SFUNC = penstock.sgd_unplanned, STYPE = penstock.epoch
);
COMMENT ON AGGREGATE penstock.sgd(int[], real[], real, real, penstock.options)
    IS 'learns a linear model from sparse rows that have weights; gives a row for each epoch';
