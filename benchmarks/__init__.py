"""One file per claim; ``python -m benchmarks`` runs them all and prints one table, missed bars included."""
