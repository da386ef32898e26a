"""The bars that the loader has to reach, judged on the outcomes of one contest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.harness import Claim
from benchmarks.loaders.turns import USUAL, Outcome, Terms

FIRST_BATCH = 0.5
LEAST_BUDGET = 100_000_000
STOCK = "hf map, "
"""How the names begin of the stock DataLoader over map-style datasets."""


def claims(terms: Terms, outcomes: Mapping[str, Outcome]) -> list[Claim]:
    """Return all claims about this kind of data in this condition."""
    return _Bars(terms, outcomes).all()


class _Bars:
    def __init__(self, terms: Terms, outcomes: Mapping[str, Outcome]) -> None:
        self.terms, self.outcomes = terms, outcomes
        self.place = f"{terms.data.name}, {terms.condition}"
        runs = [run for o in outcomes.values() for run in o.runs]
        self.note = f"{terms.data.nbytes / 1e9:.2f} GB"
        if terms.condition == "cold":
            limited = all(run["limited"] for run in runs)
            self.note += f", {(terms.limit or 0) / 1e6:.0f} MB limit{'' if limited else ' NOT set'}"
            self.note += "" if all(run["cold"] for run in runs) else ", caches NOT dropped"
        if terms.disk is not None:
            self.note += f", disk held to {terms.disk / 1e9:g} GB/s"

    def all(self) -> list[Claim]:
        cold, records = self.terms.condition == "cold", self.terms.data.name == "records"
        found: list[Claim] = []
        if records and cold:
            found += [
                self.over(
                    "global",
                    "the best peer that shuffles globally",
                    2,
                    self.best(lambda o: o.entry.contestant.globally),
                ),
                self.over("global", f"the stock DataLoader over HF map-style at {USUAL} kB", 10, self.stock(USUAL)),
                self.over("global", "the stock DataLoader over HF map-style at this read-ahead", 50, self.stock(None)),
                self.over("global", "raw sequential read", 0.35, self.raw()),
                self.over("corgipile", "raw sequential read", 0.7, self.raw()),
                self.over("corgipile", "every peer, whatever its shuffle", 1, self.best(lambda o: True)),
                self.quality("corgipile", 0, 1.2),
            ]
        elif records:
            found += [
                self.over(
                    "global",
                    "the best peer that shuffles globally",
                    None,
                    self.best(lambda o: o.entry.contestant.globally),
                ),
                self.quality("corgipile", 0, 2),
            ]
        else:
            found += [
                self.over("corgipile", "the best peer", 3, self.best(lambda o: True)),
                self.over(
                    "global",
                    "the best peer that shuffles globally",
                    2,
                    self.best(lambda o: o.entry.contestant.globally),
                ),
                self.quality("corgipile", 0, 2),
            ]
        found.append(self.quality("global", 0.9, 1.1))
        for shuffle in ("corgipile", "global"):
            found += [self.first(shuffle), self.memory(shuffle)]
        return found

    def mine(self, shuffle: str) -> Outcome | None:
        outcome = self.outcomes.get(f"penstock {shuffle}")
        return outcome if outcome is not None and outcome.works else None

    def best(self, wanted: Callable[[Outcome], bool]) -> Outcome | None:
        peers = [
            o
            for o in self.outcomes.values()
            if o.works and not o.entry.contestant.ours and not o.entry.contestant.floor and wanted(o)
        ]
        return max(peers, key=lambda o: o.rate, default=None)

    def stock(self, read_ahead: int | None) -> Outcome | None:
        return self.best(lambda o: o.entry.name.startswith(STOCK) and o.entry.read_ahead == read_ahead)

    def raw(self) -> Outcome | None:
        outcome = self.outcomes.get("raw sequential read")
        return outcome if outcome is not None and outcome.works else None

    def over(self, shuffle: str, what: str, bar: float | None, other: Outcome | None) -> Claim:
        name = f"{self.place}: {shuffle} over {what}"
        mine = self.mine(shuffle)
        text = "told only" if bar is None else f"≥ {bar:g}×"
        if mine is None or other is None:
            return Claim.not_measured(name, text, self.why(shuffle, mine is None))
        note = f"{mine.rate:,.0f} rows/s against {other.rate:,.0f} of {other.entry.name}; {self.note}"
        if bar is None:
            return Claim(name, mine.rate / other.rate, text, None, note)
        return Claim.at_least(name, mine.rate / other.rate, bar, note=note)

    def quality(self, shuffle: str, low: float, high: float) -> Claim:
        name, bar = f"{self.place}: quality of {shuffle}", f"{low:g}–{high:g}" if low else f"< {high:g}"
        mine = self.mine(shuffle)
        if mine is None:
            return Claim.not_measured(name, bar, self.why(shuffle, True))
        figure = mine.median("quality")
        return Claim(name, figure, bar, low <= figure < high, "1 is a true shuffle, the batch size none")

    def first(self, shuffle: str) -> Claim:
        name, mine = f"{self.place}: first batch of {shuffle}", self.mine(shuffle)
        if mine is None:
            return Claim.not_measured(name, f"≤ {FIRST_BATCH} s", self.why(shuffle, True))
        return Claim.at_most(name, mine.median("first"), FIRST_BATCH, unit=" s", note=self.note)

    def memory(self, shuffle: str) -> Claim:
        budget = self.terms.data.nbytes * self.terms.shares[shuffle]
        name, mine = f"{self.place}: memory of {shuffle} over its budget", self.mine(shuffle)
        if mine is None:
            return Claim.not_measured(name, "≤ 1×", self.why(shuffle, True))
        if budget < LEAST_BUDGET:
            why = f"a budget of {budget / 1e6:.0f} MB, of so few rows, is less than the libraries' own stir"
            return Claim.not_measured(name, "≤ 1×", why)
        note = f"{mine.held / 1e6:.0f} MB above the imports, budget {budget / 1e6:.0f} MB"
        return Claim.at_most(name, mine.held / budget, 1, note=note)

    def why(self, shuffle: str, missing: Any) -> str:
        if not missing:
            return "nobody to compare with took part; the peers need: make peers"
        outcome = self.outcomes.get(f"penstock {shuffle}")
        return outcome.failure if outcome is not None else f"penstock {shuffle} took no part"
