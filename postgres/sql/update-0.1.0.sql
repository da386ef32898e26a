-- From 0.1.0: its functions in PL/pgSQL had no search path of their own, so all of them are made anew.
DROP FUNCTION penstock.train(text, text, text, jsonb);
DROP FUNCTION penstock.explain(text, text, jsonb, boolean);
DROP FUNCTION penstock.prepared(text, text, jsonb);
DROP FUNCTION penstock.listed(jsonb, text);
DROP FUNCTION penstock.classes(text, text, regtype);
DROP FUNCTION penstock.columns(text);
DROP FUNCTION penstock.make_catalogue();

ALTER TYPE penstock.epoch RENAME ATTRIBUTE loss TO progressive_loss;
ALTER TYPE penstock.epoch RENAME ATTRIBUTE score TO progressive_score;
ALTER TYPE penstock.epoch ADD ATTRIBUTE training_score float8, ADD ATTRIBUTE sample_rows bigint,
    ADD ATTRIBUTE weight_mean float8, ADD ATTRIBUTE held_out_loss float8, ADD ATTRIBUTE held_out_score float8,
    ADD ATTRIBUTE held_out_rows bigint;
COMMENT ON TYPE penstock.epoch IS 'what an epoch came to; the weights, and their score on rows held out or on a sample of its rows, come with the last one';
