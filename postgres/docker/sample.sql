-- Visits of a shop: who buys is known of 20,000 of them.
CREATE EXTENSION penstock;
SELECT setseed(0.5);
CREATE TABLE visits AS
    SELECT id, country, pages, minutes, (day + '2026-01-01'::date) AS day,
        random() < 1 / (1 + exp(2.5 - 0.35 * pages - 0.05 * minutes - CASE country WHEN 'NO' THEN 1 WHEN 'FR' THEN 0.5 ELSE 0 END)) AS bought
    FROM (
        SELECT id, (ARRAY['DE', 'FR', 'IT', 'NO'])[1 + floor(4 * random())::int] AS country, floor(12 * random())::int AS pages,
            CASE WHEN random() < 0.95 THEN round((-15 * ln(1 - random()))::numeric, 1) END AS minutes, floor(90 * random())::int AS day
        FROM generate_series(1, 20000) AS id
    ) AS v;
ALTER TABLE visits ADD PRIMARY KEY (id);
ANALYZE visits;
