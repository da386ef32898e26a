"""Writes predictions over scores: classes, probabilities, and the columns of an explained prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.sql.dialect import double_literal, quote_identifier
from penstock.sql.prediction_query import Formula

_MOST = 500
"""Scores are cut off here before they are raised: beyond it PostgreSQL refuses the exponential, as too large or small."""


@dataclass(frozen=True, slots=True)
class OutcomeWriter:
    """Writes predictions over scores.

    ``exp`` is the engine's exponential function; ``pairs`` writes classes with their probabilities as one value.
    """

    literal: Callable[[Any], str]
    exp: str
    pairs: Callable[[Sequence[tuple[str, str]]], str]

    def columns(
        self,
        formula: Formula,
        names: Sequence[str],
        *,
        scores: Sequence[str],
        shares: Sequence[str],
        top: str,
        warehouse: bool,
    ) -> str:
        """Write the columns that are added under these names.

        Of several scores ``top`` is the highest, and ``shares`` are those of their exponentials in the sum.
        """
        probabilities = self.probabilities(formula, scores, shares)
        columns = [self.prediction(formula, scores, probabilities, top)]
        if warehouse and probabilities:
            pairs = list(zip(map(self.literal, formula.classes), probabilities, strict=True))
            columns.append(f"CASE WHEN {probabilities[0]} IS NOT NULL THEN {self.pairs(pairs)} END")
        elif not warehouse:
            columns += probabilities
        return ", ".join(f"{each} AS {quote_identifier(name)}" for each, name in zip(columns, names, strict=True))

    def exponential(self, score: str, top: str) -> str:
        """Write the exponential of one of several scores, relative to the highest."""
        return f"{self.exp}(greatest({score} - {top}, -{_MOST}))"

    def prediction(self, formula: Formula, scores: Sequence[str], probabilities: Sequence[str], top: str) -> str:
        """Write what is predicted; of equal scores the first class wins."""
        classes = [self.literal(each) for each in formula.classes]
        if not classes:
            return scores[0]
        if formula.threshold is not None:
            likely, threshold = probabilities[1], double_literal(formula.threshold)
            return (
                f"CASE WHEN {likely} > {threshold} THEN {classes[1]} WHEN {likely} <= {threshold} THEN {classes[0]} END"
            )
        if formula.loss.many:
            cases = [f"WHEN {score} = {top} THEN {each}" for score, each in zip(scores, classes, strict=True)]
            return f"CASE {' '.join(cases)} END"
        score = scores[0]
        return f"CASE WHEN {score} > 0::float8 THEN {classes[1]} WHEN {score} <= 0::float8 THEN {classes[0]} END"

    def probabilities(self, formula: Formula, scores: Sequence[str], shares: Sequence[str]) -> list[str]:
        """Write the probability of each class; none for models that have no probabilities."""
        if formula.loss.many:
            return [f"CASE WHEN {scores[0]} IS NOT NULL THEN {share} END" for share in shares]
        if formula.loss.probability_sql is None:
            return []
        score = scores[0]
        likely = formula.loss.probability_sql(f"least(greatest({score}, -{_MOST}), {_MOST})", self.exp)
        return [f"CASE WHEN {score} IS NOT NULL THEN {each} END" for each in (f"1::float8 - {likely}", likely)]

    def sign(self, formula: Formula, score: str, probabilities: Sequence[str]) -> str:
        """Write 1 where the second of two classes is predicted, or a number, and -1 where the first is."""
        if not formula.classes:
            return "1::float8"
        value, limit = score, "0::float8"
        if formula.threshold is not None:
            value, limit = probabilities[1], double_literal(formula.threshold)
        return f"CASE WHEN {value} > {limit} THEN 1::float8 WHEN {value} <= {limit} THEN -1::float8 END"

    def explained(
        self, formula: Formula, names: Sequence[str], *, score: str, sign: str, top: str, baseline: float
    ) -> str:
        """Write the columns of an explained prediction: ``top`` lists the largest contributions."""
        probabilities = self.probabilities(formula, [score], [])
        columns = [self.prediction(formula, [score], probabilities, "")]
        if probabilities:
            columns.append(
                f"CASE {sign} WHEN 1::float8 THEN {probabilities[1]} WHEN -1::float8 THEN {probabilities[0]} END"
            )
        columns += [top, f"{sign} * {double_literal(baseline)}", f"{sign} * {score}", "0::float8"]
        return ", ".join(f"{each} AS {quote_identifier(name)}" for each, name in zip(columns, names, strict=True))
