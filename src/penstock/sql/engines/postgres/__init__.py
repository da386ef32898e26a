"""The SQL engine for PostgreSQL, 14 or later, with or without the extension in ``postgres/``."""
