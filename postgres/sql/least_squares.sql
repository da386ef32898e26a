-- Least squares solved exactly, by sums that parallel workers add up.
CREATE FUNCTION penstock.least_squares_add(internal, real[], real, penstock.options) RETURNS internal
    AS 'MODULE_PATHNAME', 'penstock_least_squares_add' LANGUAGE C PARALLEL SAFE COST 20;

CREATE FUNCTION penstock.least_squares_add(internal, real[], real, real, tid, oid, penstock.options) RETURNS internal
    AS 'MODULE_PATHNAME', 'penstock_least_squares_add' LANGUAGE C PARALLEL SAFE COST 20;

CREATE FUNCTION penstock.least_squares_merge(internal, internal) RETURNS internal
    AS 'MODULE_PATHNAME', 'penstock_least_squares_merge' LANGUAGE C PARALLEL SAFE;

CREATE FUNCTION penstock.least_squares_pack(internal) RETURNS bytea
    AS 'MODULE_PATHNAME', 'penstock_least_squares_pack' LANGUAGE C STRICT PARALLEL SAFE;

CREATE FUNCTION penstock.least_squares_unpack(bytea, internal) RETURNS internal
    AS 'MODULE_PATHNAME', 'penstock_least_squares_unpack' LANGUAGE C STRICT PARALLEL SAFE;

CREATE FUNCTION penstock.least_squares_solve(internal) RETURNS penstock.epoch
    AS 'MODULE_PATHNAME', 'penstock_least_squares_solve' LANGUAGE C PARALLEL SAFE;

CREATE AGGREGATE penstock.least_squares(features real[], label real, options penstock.options) (
    SFUNC = penstock.least_squares_add, STYPE = internal, SSPACE = 100000, COMBINEFUNC = penstock.least_squares_merge,
    SERIALFUNC = penstock.least_squares_pack, DESERIALFUNC = penstock.least_squares_unpack,
    FINALFUNC = penstock.least_squares_solve, FINALFUNC_MODIFY = READ_WRITE, PARALLEL = SAFE
);
COMMENT ON AGGREGATE penstock.least_squares(real[], real, penstock.options)
    IS 'solves least squares exactly from dense rows, also in parallel workers and by groups';

-- With a weight of each row, and its place in a table, by which errors name it.
CREATE AGGREGATE penstock.least_squares(features real[], label real, weight real, place tid, part oid, options penstock.options) (
    SFUNC = penstock.least_squares_add, STYPE = internal, SSPACE = 100000, COMBINEFUNC = penstock.least_squares_merge,
    SERIALFUNC = penstock.least_squares_pack, DESERIALFUNC = penstock.least_squares_unpack,
    FINALFUNC = penstock.least_squares_solve, FINALFUNC_MODIFY = READ_WRITE, PARALLEL = SAFE
);

CREATE FUNCTION penstock.may_be_exact(penstock.options) RETURNS boolean
    AS 'MODULE_PATHNAME', 'penstock_may_be_exact' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
