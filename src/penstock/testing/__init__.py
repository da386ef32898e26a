"""Conformance suites that every source and order must pass."""
