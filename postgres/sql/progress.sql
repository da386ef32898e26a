-- How far trainings are, of all sessions; what they learn is told to those who may read their statistics.
CREATE FUNCTION penstock.training_progress(
    OUT pid int, OUT datname name, OUT usename name, OUT model text, OUT kind text, OUT phase text, OUT epoch int, OUT epochs int,
    OUT windows bigint, OUT rows bigint, OUT rows_total bigint, OUT loss float8, OUT eta interval
) RETURNS SETOF record AS 'MODULE_PATHNAME', 'penstock_progress' LANGUAGE C VOLATILE;

CREATE VIEW penstock.progress AS
    SELECT p.pid, p.datname, p.usename, p.model, p.kind, p.phase, p.epoch, p.epochs, p.windows, p.rows, p.rows_total, p.loss, p.eta
    FROM penstock.training_progress() AS p;
COMMENT ON VIEW penstock.progress IS 'how far trainings are';
GRANT SELECT ON penstock.progress TO PUBLIC;
