"""From scores to what is predicted: a number or a class, and how probable each class is.

A score that is null (a feature is missing, or not a number) makes all of it null.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.sql.expressions.literals import POSTGRES, literal
from penstock.sql.expressions.pieces import Formula

_MOST = 500
"""Scores are cut off here before they are raised: beyond it PostgreSQL refuses the exponential, as too large or small."""


def prediction(formula: Formula, scores: Sequence[str], top: str, engine: str) -> str:
    """Write what is predicted; ``top`` is the highest of several scores. Of equal scores the first class wins."""
    classes = [literal(each, engine) for each in formula.classes]
    if not classes:
        return scores[0]
    if formula.kind == "softmax":
        cases = [f"WHEN {score} = {top} THEN {each}" for score, each in zip(scores, classes, strict=True)]
        return f"CASE {' '.join(cases)} END"
    return f"CASE WHEN {scores[0]} > 0 THEN {classes[1]} WHEN {scores[0]} <= 0 THEN {classes[0]} END"


def raised(score: str, top: str) -> str:
    """Write the exponential of one of several scores, held against the highest."""
    return f"exp(greatest({score} - {top}, -{_MOST}))"


def chances(formula: Formula, scores: Sequence[str], shares: Sequence[str]) -> list[str]:
    """Write the probability of each class; of several scores, ``shares`` of their exponentials. None for other kinds."""
    if formula.kind == "softmax":
        return [f"CASE WHEN {scores[0]} IS NOT NULL THEN {share} END" for share in shares]
    if formula.kind != "logistic":
        return []
    score = scores[0]
    likely = f"1 / (1 + exp(-least(greatest({score}, -{_MOST}), {_MOST})))"
    return [f"CASE WHEN {score} IS NOT NULL THEN {each} END" for each in (f"1 - {likely}", likely)]


def listed(formula: Formula, shares: Sequence[str], engine: str) -> str:
    """Write the classes with their probabilities as one value: a list of structs, or jsonb in PostgreSQL."""
    pairs = list(zip((literal(each, engine) for each in formula.classes), shares, strict=True))
    if engine == POSTGRES:
        objects = ", ".join(f"jsonb_build_object('label', {name}, 'prob', {share})" for name, share in pairs)
        written = f"to_jsonb(ARRAY[{objects}])"
    else:
        written = f"[{', '.join(f'{{label: {name}, prob: {share}}}' for name, share in pairs)}]"
    return f"CASE WHEN {shares[0]} IS NOT NULL THEN {written} END"
