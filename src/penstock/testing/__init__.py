"""Conformance suites for sources, orders, sample formats, executors, SQL engines and kinds of models."""
