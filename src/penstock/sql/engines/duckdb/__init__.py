"""The SQL engine for DuckDB."""
