"""What can come of a fault, and the count of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["correct", "refused", "crashed", "silent"]
VERDICTS: tuple[Verdict, ...] = ("correct", "refused", "crashed", "silent")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one fault.

    ``correct``: the answer is that of a run without the fault. ``refused``: an error on purpose, in a clear message.
    ``crashed``: a raw traceback or a signal; noticed, but not by a message. ``silent``: another answer, without a word.
    """

    door: str
    fault: str
    verdict: Verdict
    detail: str = ""


def table(outcomes: Iterable[Outcome]) -> str:
    """Return one line per door and kind of fault, with a count of each verdict, as Markdown."""
    counts: dict[tuple[str, str], Counter[Verdict]] = {}
    for outcome in outcomes:
        counts.setdefault((outcome.door, outcome.fault), Counter())[outcome.verdict] += 1
    total = sum(counts.values(), Counter[Verdict]())
    lines = [f"| door | fault | {' | '.join(VERDICTS)} |", "|---|---|" + "---:|" * len(VERDICTS)]
    for (door, fault), count in counts.items():
        lines.append(f"| {door} | {fault} | {' | '.join(str(count[v]) for v in VERDICTS)} |")
    lines.append(f"| **all** | {total.total()} faults | {' | '.join(str(total[v]) for v in VERDICTS)} |")
    return "\n".join(lines)
