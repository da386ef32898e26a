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
