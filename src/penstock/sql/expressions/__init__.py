"""Models as SQL, an engine to a file: `duckdb`, `postgres`; `pieces` is what both write, `literals` the words."""
